"""Fake signatures: the raw bytes are the transaction's fields as text, and the hash is their digest.

Like real signatures they are deterministic and differ when any field differs. Elliptic curves would take most of a
simulation's time, and no rule depends on them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address, TxHash
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType, UnsignedTx
from fencepost.errors import SigningRefused, UnknownSigner


class SimKeys(KeyPort):
    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)
        self.refused: set[int] = set()  # numbers of requests that are never signed

    def addresses(self) -> Sequence[Address]:
        return self._addresses

    def signs_locally(self, address: Address) -> bool:
        return address in self._addresses

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if address not in self._addresses:
            raise UnknownSigner(f"no key is held here for {address}")
        await asyncio.sleep(0)
        if any(tx.call.value_wei in self.refused and tx.call.to != address for tx in txs):
            raise SigningRefused("as planned: this payload is refused")
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
    """Return sender, transaction and hash of fake bytes. Raises `ValueError` for other bytes."""
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
