"""The intrinsic gas of a transaction, and transactions that no endpoint accepts."""

from __future__ import annotations

from typing import Any, cast

import pytest
from eth_account import Account

from fencepost.application.accept import MAX_TX_BYTES, Request, RequestAcceptor
from fencepost.domain.gas import encoded_bytes_max, intrinsic_gas
from fencepost.domain.ids import Signer, parse_address
from fencepost.domain.transaction import AccessEntry, Call
from fencepost.domain.transaction_state import Intent
from fencepost.errors import Unsendable

TO = parse_address("0x" + "35" * 20)
ENTRY = AccessEntry(address=TO, storage_keys=(b"\1" * 32, b"\2" * 32))


@pytest.mark.parametrize(
    ("call", "gas"),
    [
        (Call(to=TO), 21_000),
        (Call(to=TO, data=b"\0" * 10), 21_000 + 100),  # the floor: 10 tokens of 10
        (Call(to=TO, data=b"\1" * 10), 21_000 + 400),
        (Call(to=None, data=b"\1" * 33), 53_000 + 16 * 33 + 2 * 2),
        (Call(to=TO, access_list=(ENTRY,)), 21_000 + 2_400 + 2 * 1_900),
        (Call(to=None, data=b"\1" * 5_000), 21_000 + 40 * 5_000),  # above the cost of a creation
    ],
)
def test_intrinsic_gas_matches_known_transactions(call: Call, gas: int) -> None:
    assert intrinsic_gas(call) == gas


@pytest.mark.parametrize(("data_bytes", "entries"), [(0, 0), (100_000, 0), (1_000, 300), (70_000, 500)])
def test_the_bound_by_size_holds_and_is_close(data_bytes: int, entries: int) -> None:
    call = Call(to=TO, value_wei=2**255, data=b"\1" * data_bytes, access_list=(ENTRY,) * entries)
    tx: dict[str, Any] = {
        "type": 2,
        "chainId": 2**60,
        "nonce": 2**60,
        "to": TO,
        "value": 2**255,
        "gas": 2**60,
        "maxFeePerGas": 2**200,
        "maxPriorityFeePerGas": 2**200,
        "data": call.data,
        "accessList": [{"address": TO, "storageKeys": ["0x" + key.hex() for key in ENTRY.storage_keys]}]
        * entries,
    }
    size = len(Account.sign_transaction(tx, "0x" + "46" * 32).raw_transaction)
    assert size <= encoded_bytes_max(call) <= size + 256 + 8 * entries


def accepting(**more: Any) -> RequestAcceptor:
    keys = cast("Any", type("Keys", (), {"addresses": staticmethod(lambda: [TO])}))
    return RequestAcceptor(cast("Any", None), keys, frozenset({1}), lambda _: None, **more)


@pytest.mark.parametrize(
    ("call", "gas", "text"),
    [
        (Call(to=TO), 20_999, "intrinsic gas too low"),
        (Call(to=TO, data=b"\1" * 10), 21_399, "intrinsic gas too low"),
        (Call(to=TO), 30_000_001, "exceeds block gas limit"),
        (Call(to=TO), 2**24 + 1, "transaction gas limit too high"),
        (Call(to=TO, data=b"\1" * (MAX_TX_BYTES - 100)), None, "oversized data"),
    ],
)
def test_a_transaction_that_every_endpoint_rejects_is_rejected_before_it_has_a_nonce(
    call: Call, gas: int | None, text: str
) -> None:
    accept = accepting(tx_gas_max=2**24, block_gas_limit=lambda _: 30_000_000)
    with pytest.raises(Unsendable) as rejected:
        accept.validate(Request(Signer(1, TO), Intent(call=call, gas=gas)))
    assert text in rejected.value.node_text


def test_a_valid_transaction_is_accepted() -> None:
    accept = accepting(tx_gas_max=2**24, block_gas_limit=lambda _: 30_000_000)
    for gas in (None, 21_000, 2**24):
        accept.validate(Request(Signer(1, TO), Intent(call=Call(to=TO), gas=gas)))
    accepting().validate(Request(Signer(1, TO), Intent(call=Call(to=TO), gas=2**25)))
