"""Signatures agree, both ways, with the public library of Standard Webhooks."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from fencepost.client import verify_webhook
from fencepost.client.errors import WebhookInvalid
from fencepost.events.signatures import (
    InvalidSignature,
    new_secret,
    parse_secret,
    secret_text,
    sign,
    signed_headers,
    verify,
)

# The example of the specification's libraries.
SPEC_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SPEC_ID, SPEC_TIMESTAMP, SPEC_BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SPEC_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
EVENT_ID = "evt_0199c82cc000000000000000126700000000000014000"
BODY = (
    f'{{"id":"{EVENT_ID}","type":"webhook.test","timestamp":"2026-01-02T03:04:05Z","chainId":1,'
    '"signer":null,"sequence":"1","data":{}}'
).encode()


def test_the_example_of_the_specification_has_its_signature() -> None:
    secret = parse_secret(SPEC_SECRET)
    assert sign(secret, message_id=SPEC_ID, timestamp=SPEC_TIMESTAMP, body=SPEC_BODY) == SPEC_SIGNATURE


@given(body=st.text(max_size=200), secret=st.binary(min_size=24, max_size=64))
def test_the_public_library_accepts_our_signatures(body: str, secret: bytes) -> None:
    encoded = json.dumps({"x": body}).encode()
    now_s = int(time.time())
    headers = signed_headers([new_secret(), secret], message_id="evt_1", timestamp=now_s, body=encoded)
    assert Webhook(secret_text(secret)).verify(encoded, dict(headers)) == {"x": body}
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_text(new_secret())).verify(encoded, dict(headers))


@given(body=st.text(max_size=200), secret=st.binary(min_size=24, max_size=64))
def test_we_accept_the_signatures_of_the_public_library(body: str, secret: bytes) -> None:
    now = datetime.now(UTC)
    headers = {
        "Webhook-Id": "evt_1",
        "Webhook-Timestamp": str(int(now.timestamp())),
        "Webhook-Signature": Webhook(secret_text(secret)).sign("evt_1", now, body),
    }
    assert verify(body.encode(), headers, [secret], now_s=now.timestamp()) == "evt_1"


def headers_of(secret: bytes, *, at_s: float | None = None, message_id: str = EVENT_ID) -> dict[str, str]:
    timestamp = int(time.time() if at_s is None else at_s)
    return dict(signed_headers([secret], message_id=message_id, timestamp=timestamp, body=BODY))


def test_a_receiver_gets_the_event_with_any_of_its_secrets() -> None:
    old, new = new_secret(), new_secret()
    event = verify_webhook(BODY, headers_of(old), [secret_text(new), secret_text(old)])
    assert (event.id, event.type) == (EVENT_ID, "webhook.test")
    assert verify_webhook(BODY.decode(), headers_of(new), secret_text(new)).id == EVENT_ID


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "evt_2"},
        {"webhook-timestamp": "1"},
        {"webhook-timestamp": str(int(time.time()) + 400)},
        {"webhook-timestamp": "x"},
        {"webhook-timestamp": "9" * 30},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,é"},
        {"webhook-signature": "v2,abc v1,"},
    ],
)
def test_what_was_changed_is_rejected(change: dict[str, str]) -> None:
    secret = new_secret()
    with pytest.raises(WebhookInvalid):
        verify_webhook(BODY, headers_of(secret) | change, secret_text(secret))


def test_other_bodies_ids_and_missing_headers_are_rejected() -> None:
    secret = new_secret()
    with pytest.raises(WebhookInvalid):
        verify_webhook(BODY + b" ", headers_of(secret), secret_text(secret))
    with pytest.raises(WebhookInvalid, match="webhook-id is not"):
        verify_webhook(BODY, headers_of(secret, message_id="evt_2"), secret_text(secret))
    with pytest.raises(WebhookInvalid, match="missing"):
        verify_webhook(BODY, {}, secret_text(secret))
    with pytest.raises(InvalidSignature):
        verify(BODY, headers_of(secret), [], now_s=time.time())


@pytest.mark.parametrize("text", ["whsec_", "whsec_AAAA", "whsec_!!!", "whsec_" + "A" * 100])
def test_a_secret_of_another_form_is_rejected_without_showing_it(text: str) -> None:
    with pytest.raises(ValueError, match="secret") as raised:
        parse_secret(text)
    assert text.removeprefix("whsec_") not in str(raised.value) or text == "whsec_"
