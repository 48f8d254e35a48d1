"""The sender of a raw transaction of every type, compared with eth-account."""

from __future__ import annotations

from typing import Any

import pytest
from eth_account import Account

from fencepost.adapters.evm.recover_sender import sender_of

KEY = "0x" + "4c" * 32
TO = "0x" + "11" * 20
ZERO = "0x" + "00" * 32
KINDS: dict[str, dict[str, Any]] = {
    "before EIP-155": {"gasPrice": 10**9},
    "legacy": {"gasPrice": 10**9, "chainId": 31337},
    "access list": {
        "type": 1,
        "gasPrice": 10**9,
        "chainId": 1,
        "accessList": [{"address": TO, "storageKeys": [ZERO]}],
    },
    "dynamic fee": {"type": 2, "maxFeePerGas": 10**9, "maxPriorityFeePerGas": 1, "chainId": 1},
}


def signed(kind: dict[str, Any]) -> bytes:
    tx = {"nonce": 7, "gas": 21_000, "to": TO, "value": 5, "data": "0x", **kind}
    return bytes(Account.sign_transaction(tx, KEY).raw_transaction)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_sender_of_each_transaction_type_is_recovered(kind: dict[str, Any]) -> None:
    assert sender_of(signed(kind)) == Account.from_key(KEY).address.lower()


def test_the_sender_of_a_delegation_is_recovered() -> None:
    delegation = Account.sign_authorization({"chainId": 1, "address": TO, "nonce": 0}, "0x" + "77" * 32)
    kind = {
        "type": 4,
        "maxFeePerGas": 10**9,
        "maxPriorityFeePerGas": 1,
        "chainId": 1,
        "authorizationList": [delegation],
    }
    assert sender_of(signed(kind)) == Account.from_key(KEY).address.lower()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x02",
        b"\xc0",
        b"\x02\xc0",
        b"\x7f" * 40,
        signed(KINDS["dynamic fee"])[:-1],
        b"\x02\xc4\x01\x02\x03\x04",
        b"\xc9" + b"\x01" * 9,
    ],
    ids=range(8),
)
def test_unreadable_bytes_raise_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        sender_of(raw)
