"""Convert intents to and from the canonical payload, which is stored and compared.

Two payloads with the same meaning have the same digest, so a retry with another spelling is still the same request.
"""

from __future__ import annotations

import hashlib

import msgspec

from fencepost.domain.fees import FeeTier
from fencepost.domain.ids import Address
from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType
from fencepost.domain.transaction_state import Intent

# Fields are in alphabetical order, because the encoder writes them in this order; default values are not written.
# Numbers that may exceed 2⁵³ are decimal text.


class _Fees(msgspec.Struct, gc=False):
    fee_cap: str = msgspec.field(name="feeCap")
    tip: str


class _Entry(msgspec.Struct, gc=False):
    address: str
    storage_keys: list[str] = msgspec.field(name="storageKeys")


class _Payload(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    access_list: tuple[_Entry, ...] = msgspec.field(name="accessList", default=())
    data: str | None = None
    fees: _Fees | None = None
    gas: int | None = None
    tier: str | None = None
    to: str | None = None
    type: int
    value: str


_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(_Payload).decode
_TYPES = {int(tx_type): tx_type for tx_type in TxType}


def from_payload(text: str | bytes) -> Intent:
    """Decode a stored payload."""
    stored = _read(text)
    fees = stored.fees
    call = Call(
        to=None if stored.to is None else Address(stored.to),
        value_wei=int(stored.value),
        data=bytes.fromhex(stored.data[2:]) if stored.data else b"",
        access_list=tuple([_entry_of(entry) for entry in stored.access_list]) if stored.access_list else (),
    )
    return Intent(
        call=call,
        gas=stored.gas,
        fees=None if fees is None else Fees(fee_cap_wei=int(fees.fee_cap), tip_wei=int(fees.tip)),
        type=_TYPES[stored.type],
        tier=None if stored.tier is None else FeeTier(stored.tier),
    )


def _entry_of(stored: _Entry) -> AccessEntry:
    keys = tuple([bytes.fromhex(key[2:]) for key in stored.storage_keys])
    return AccessEntry(address=Address(stored.address), storage_keys=keys)


def canonical(intent: Intent) -> bytes:
    """Encode an intent as its canonical payload."""
    call, fees = intent.call, intent.fees
    return _write(
        _Payload(
            access_list=tuple([_stored_entry(entry) for entry in call.access_list])
            if call.access_list
            else (),
            data="0x" + call.data.hex() if call.data else None,
            fees=None if fees is None else _Fees(fee_cap=str(fees.fee_cap_wei), tip=str(fees.tip_wei)),
            gas=intent.gas,
            tier=None if intent.tier is None else intent.tier.value,
            to=call.to,
            type=int(intent.type),
            value=str(call.value_wei),
        )
    )


def _stored_entry(entry: AccessEntry) -> _Entry:
    return _Entry(address=entry.address, storage_keys=["0x" + key.hex() for key in entry.storage_keys])


def digest(canonical_payload: bytes) -> bytes:
    return hashlib.sha256(canonical_payload).digest()
