"""Define what is signed: a call with its nonce and fees, and the signed bytes."""

from __future__ import annotations

from enum import IntEnum

from fencepost.domain.ids import Address, TxHash
from fencepost.domain.struct import Struct


class TxType(IntEnum):
    LEGACY = 0
    ACCESS_LIST = 1  # EIP-2930
    DYNAMIC_FEE = 2  # EIP-1559


class Fees(Struct, frozen=True):
    """The fees per gas. Types 0 and 1 have one price: `fee_cap_wei` and `tip_wei` both hold it."""

    fee_cap_wei: int
    tip_wei: int


class AccessEntry(Struct, frozen=True):
    address: Address
    storage_keys: tuple[bytes, ...] = ()


class Call(Struct, frozen=True):
    """What a transaction does on the chain. If `to` is None, it deploys `data` as a contract."""

    to: Address | None
    value_wei: int = 0
    data: bytes = b""
    access_list: tuple[AccessEntry, ...] = ()


class UnsignedTx(Struct, frozen=True):
    chain_id: int
    nonce: int
    call: Call
    gas: int
    fees: Fees
    type: TxType = TxType.DYNAMIC_FEE


class SignedTx(Struct, frozen=True):
    raw: bytes
    hash: TxHash
