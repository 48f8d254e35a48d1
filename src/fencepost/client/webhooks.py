"""Verify webhooks in a receiver: the sender, the bytes and the time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec

from fencepost.client.errors import WebhookInvalid
from fencepost.events.signatures import TOLERANCE_S, InvalidSignature, parse_secret, verify
from fencepost.schemas.events import EventOut


def verify_webhook(
    body: bytes | str,
    headers: Mapping[str, str],
    secret: str | Sequence[str],
    *,
    tolerance_s: float = TOLERANCE_S,
) -> EventOut:
    """Return the event of a webhook. Raises `WebhookInvalid` if it is not from Fencepost, was changed, or is too old.

    `body` is the body as it was received: parsing and encoding it again changes the bytes. `secret` is that of the subscription, or
    several during a rotation. An event may come more than once: remember its `id`.
    """
    given = body.encode() if isinstance(body, str) else bytes(body)
    keys = [parse_secret(text) for text in ([secret] if isinstance(secret, str) else secret)]
    try:
        event_id = verify(given, headers, keys, now_s=time.time(), tolerance_s=tolerance_s)
        event = msgspec.json.decode(given, type=EventOut)
    except (InvalidSignature, msgspec.DecodeError) as error:
        raise WebhookInvalid(f"the webhook is rejected: {error}") from None
    if event.id != event_id:
        raise WebhookInvalid("the webhook is rejected: webhook-id is not the id of the event")
    return event
