"""Sign and verify webhooks as the Standard Webhooks specification says.

A secret is `whsec_` and base64 of 24 to 64 random bytes. The signature is HMAC-SHA256 over `id.timestamp.body`; the header has one
signature per valid secret, so that a receiver can change its secret without missing an event.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

ID_HEADER = "webhook-id"
TIMESTAMP_HEADER = "webhook-timestamp"
SIGNATURE_HEADER = "webhook-signature"
PREFIX = "whsec_"
NEW_SECRET_BYTES = 32
MIN_SECRET_BYTES = 24
MAX_SECRET_BYTES = 64
MAX_SIGNATURES = 10  # compared per request
TOLERANCE_S = 300.0


class InvalidSignature(ValueError):
    """Report that a webhook was not sent by the holder of the secret, was changed, or is too old."""


def new_secret() -> bytes:
    """Return a new random secret."""
    return secrets.token_bytes(NEW_SECRET_BYTES)


def secret_text(secret: bytes) -> str:
    """Return a secret in the form that its owner sees once."""
    return PREFIX + base64.b64encode(secret).decode()


def parse_secret(text: str) -> bytes:
    """Return the bytes of a secret. Raises `ValueError`, which never contains the secret."""
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the secret is not whsec_ and base64") from None
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise ValueError(f"the secret must have {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes")
    return secret


def sign(secret: bytes, *, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature, with its version."""
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


def signed_headers(
    keys: Sequence[bytes], *, message_id: str, timestamp: int, body: bytes
) -> Mapping[str, str]:
    """Return the three headers of a webhook, signed with every valid secret."""
    signatures = [sign(key, message_id=message_id, timestamp=timestamp, body=body) for key in keys]
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: " ".join(signatures),
    }


def verify(
    body: bytes,
    headers: Mapping[str, str],
    keys: Sequence[bytes],
    *,
    now_s: float,
    tolerance_s: float = TOLERANCE_S,
) -> str:
    """Return the id of a webhook whose signature is valid for one of the secrets. Raises `InvalidSignature`."""
    given = {name.lower(): value for name, value in headers.items()}
    missing = [
        name
        for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER)
        if not isinstance(given.get(name), str)
    ]
    if missing:
        raise InvalidSignature(f"the header {missing[0]} is missing")
    message_id, text = given[ID_HEADER], given[TIMESTAMP_HEADER]
    if not (text.isascii() and text.isdigit() and len(text) <= 12):  # noqa: PLR2004 - until the year 33658
        raise InvalidSignature("webhook-timestamp is not a number of seconds")
    if abs(now_s - int(text)) > tolerance_s:
        raise InvalidSignature(f"webhook-timestamp differs from the clock by more than {tolerance_s:g} s")
    expected = [sign(key, message_id=message_id, timestamp=int(text), body=body) for key in keys]
    for signature in given[SIGNATURE_HEADER].split(" ")[:MAX_SIGNATURES]:
        if any(hmac.compare_digest(signature.encode(), one.encode()) for one in expected):
            return message_id
    raise InvalidSignature("no signature matches the secret")
