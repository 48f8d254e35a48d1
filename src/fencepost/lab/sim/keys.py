"""Signatures that cost nothing: bytes that say in plain text who sends what, and their digest as the hash.

Like real ones they are deterministic, and they differ as soon as anything differs. A run signs and decodes thousands of
transactions; with real curves that would be most of its time, and nothing here depends on them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType, UnsignedTx
from fencepost.errors import UnknownSigner


class SimKeys(KeyPort):
    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)

    def addresses(self) -> Sequence[Address]:
        return self._addresses

    def signs_at_once(self, address: Address) -> bool:
        return address in self._addresses

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if address not in self._addresses:
            raise UnknownSigner(f"no key is held here for {address}")
        await asyncio.sleep(0)
        return [encode(address, tx) for tx in txs]


def encode(sender: Address, tx: UnsignedTx) -> SignedTx:
    fields = (
        sender,
        tx.chain_id,
        tx.nonce,
        tx.call.to,
        tx.call.value_wei,
        tx.gas,
        tx.fees.fee_cap_wei,
        tx.fees.tip_wei,
    )
    raw = " ".join(map(str, fields)).encode()
    return SignedTx(raw=raw, hash=TxHash("0x" + hashlib.sha256(raw).hexdigest()))


def decode(raw: bytes) -> tuple[Address, UnsignedTx, TxHash]:
    """Raises ValueError."""
    sender, chain_id, nonce, to, value_wei, gas, fee_cap_wei, tip_wei = raw.decode().split(" ")
    tx = UnsignedTx(
        chain_id=int(chain_id),
        nonce=int(nonce),
        call=Call(to=Address(to), value_wei=int(value_wei)),
        gas=int(gas),
        fees=Fees(fee_cap_wei=int(fee_cap_wei), tip_wei=int(tip_wei)),
        type=TxType.DYNAMIC_FEE,
    )
    return Address(sender), tx, TxHash("0x" + hashlib.sha256(raw).hexdigest())
