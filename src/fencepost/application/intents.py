"""A payload in canonical form: what is stored, compared and signed.

Two payloads that mean the same have the same digest, so a retry with another spelling is still the same request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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


def from_payload(payload: Mapping[str, Any]) -> Intent:
    fees = payload.get("fees")
    return Intent(
        call=Call(
            to=Address(payload["to"]) if "to" in payload else None,
            value_wei=int(payload["value"]),
            data=bytes.fromhex(payload["data"][2:]) if "data" in payload else b"",
            access_list=tuple(
                AccessEntry(
                    address=Address(entry["address"]),
                    storage_keys=tuple(bytes.fromhex(key[2:]) for key in entry["storageKeys"]),
                )
                for entry in payload.get("accessList", ())
            ),
        ),
        gas=payload.get("gas"),
        fees=Fees(fee_cap_wei=int(fees["feeCap"]), tip_wei=int(fees["tip"])) if fees else None,
        type=TxType(payload["type"]),
    )


def canonical(intent: Intent) -> bytes:
    """What is stored of it."""
    return msgspec.json.encode(to_payload(intent), order="sorted")


def digest(canonical_payload: bytes) -> bytes:
    return hashlib.sha256(canonical_payload).digest()
