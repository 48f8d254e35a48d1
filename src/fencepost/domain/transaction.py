"""What is signed: an intent bound to a nonce and a price, and the bytes that come of it."""

from __future__ import annotations

from enum import IntEnum

from fencepost.domain.ids import Address, TxHash
from fencepost.domain.value import Value


class TxType(IntEnum):
    LEGACY = 0
    ACCESS_LIST = 1  # EIP-2930
    DYNAMIC_FEE = 2  # EIP-1559


class Fees(Value, frozen=True):
    """The price a gas. Types 0 and 1 have one price: it stands in `fee_cap_wei`, and `tip_wei` equals it."""

    fee_cap_wei: int
    tip_wei: int


class AccessEntry(Value, frozen=True):
    address: Address
    storage_keys: tuple[bytes, ...] = ()


class Call(Value, frozen=True):
    """What an intent wants the chain to do; `to` None deploys `data`."""

    to: Address | None
    value_wei: int = 0
    data: bytes = b""
    access_list: tuple[AccessEntry, ...] = ()


class UnsignedTx(Value, frozen=True):
    chain_id: int
    nonce: int
    call: Call
    gas: int
    fees: Fees
    type: TxType = TxType.DYNAMIC_FEE


class SignedTx(Value, frozen=True):
    raw: bytes
    hash: TxHash
