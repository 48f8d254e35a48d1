"""A payload in canonical form: what is stored, compared and signed.

Two payloads that mean the same have the same digest, so a retry with another spelling is still the same request.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from fencepost.domain.ids import Address
from fencepost.domain.managed import Intent
from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType


def to_payload(intent: Intent) -> dict[str, Any]:
    """JSON of an intent; numbers that may pass 2⁵³ are decimal text."""
    payload: dict[str, Any] = {"type": int(intent.type), "value": str(intent.call.value_wei)}
    if intent.call.to is not None:
        payload["to"] = intent.call.to
    if intent.call.data:
        payload["data"] = "0x" + intent.call.data.hex()
    if intent.gas is not None:
        payload["gas"] = intent.gas
    if intent.fees is not None:
        payload["fees"] = {"feeCap": str(intent.fees.fee_cap_wei), "tip": str(intent.fees.tip_wei)}
    if intent.call.access_list:
        payload["accessList"] = [
            {"address": entry.address, "storageKeys": ["0x" + key.hex() for key in entry.storage_keys]}
            for entry in intent.call.access_list
        ]
    return payload


class _StoredFees(msgspec.Struct):
    fee_cap: str = msgspec.field(name="feeCap")
    tip: str


class _StoredEntry(msgspec.Struct):
    address: str
    storage_keys: list[str] = msgspec.field(name="storageKeys")


class _Stored(msgspec.Struct):
    type: int
    value: str
    to: str | None = None
    data: str | None = None
    gas: int | None = None
    fees: _StoredFees | None = None
    access_list: list[_StoredEntry] = msgspec.field(name="accessList", default_factory=list)


_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_read = msgspec.json.Decoder(_Stored).decode
_TYPES = {int(tx_type): tx_type for tx_type in TxType}


def from_payload(text: str | bytes) -> Intent:
    """What was stored of it."""
    stored = _read(text)
    fees = stored.fees
    call = Call(
        to=None if stored.to is None else Address(stored.to),
        value_wei=int(stored.value),
        data=b"" if stored.data is None else bytes.fromhex(stored.data[2:]),
        access_list=tuple(
            AccessEntry(
                address=Address(entry.address),
                storage_keys=tuple(bytes.fromhex(key[2:]) for key in entry.storage_keys),
            )
            for entry in stored.access_list
        ),
    )
    return Intent(
        call=call,
        gas=stored.gas,
        fees=None if fees is None else Fees(fee_cap_wei=int(fees.fee_cap), tip_wei=int(fees.tip)),
        type=_TYPES[stored.type],
    )


def canonical(intent: Intent) -> bytes:
    """What is stored of it."""
    return _encode_sorted(to_payload(intent))


def digest(canonical_payload: bytes) -> bytes:
    return hashlib.sha256(canonical_payload).digest()
