"""A payload is stored as the same bytes whatever wrote it, because two spellings would be two requests."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fencepost.application.accept import MAX_GAS, MAX_WEI
from fencepost.application.canonical_payload import canonical, from_payload
from fencepost.domain.ids import Address
from fencepost.domain.transaction import AccessEntry, Call, Fees, TxType
from fencepost.domain.transaction_state import Intent

WEI = st.integers(0, MAX_WEI)
ADDRESSES = st.binary(min_size=20, max_size=20).map(lambda raw: Address("0x" + raw.hex()))
ENTRIES = st.builds(
    AccessEntry,
    address=ADDRESSES,
    storage_keys=st.lists(st.binary(min_size=32, max_size=32), max_size=3).map(tuple),
)
CALLS = st.builds(
    Call,
    to=st.none() | ADDRESSES,
    value_wei=WEI,
    data=st.binary(max_size=40),
    access_list=st.lists(ENTRIES, max_size=3).map(tuple),
)
INTENTS = st.builds(
    Intent,
    call=CALLS,
    gas=st.none() | st.integers(1, MAX_GAS),
    fees=st.none() | st.builds(Fees, fee_cap_wei=WEI, tip_wei=WEI),
    type=st.sampled_from(TxType),
)


def as_it_was_always_written(intent: Intent) -> bytes:
    """Encode a payload as existing databases contain it."""
    call, fees = intent.call, intent.fees
    payload: dict[str, Any] = {"type": int(intent.type), "value": str(call.value_wei)}
    if call.to is not None:
        payload["to"] = call.to
    if call.data:
        payload["data"] = "0x" + call.data.hex()
    if intent.gas is not None:
        payload["gas"] = intent.gas
    if fees is not None:
        payload["fees"] = {"feeCap": str(fees.fee_cap_wei), "tip": str(fees.tip_wei)}
    if call.access_list:
        payload["accessList"] = [
            {"address": entry.address, "storageKeys": ["0x" + key.hex() for key in entry.storage_keys]}
            for entry in call.access_list
        ]
    return json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()


@given(INTENTS)
def test_a_payload_has_one_encoding_and_decodes_to_itself(intent: Intent) -> None:
    stored = canonical(intent)
    assert stored == as_it_was_always_written(intent)
    assert from_payload(stored) == intent
    assert from_payload(stored.decode()) == intent
