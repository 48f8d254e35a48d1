"""The in-memory chain with the look-ups that the simulator's faults and checks need."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.application.ports import Header
from fencepost.domain.ids import Address, TxHash
from fencepost.testing import InMemoryChain


class SimChain(InMemoryChain):
    """The one true chain of a simulated world."""

    def pooled_by_nonce(self) -> list[TxHash]:
        """Return the pool, lowest nonces first."""
        return [tx.hash for tx in sorted(self._pool.values(), key=lambda tx: (tx.nonce, tx.hash))]

    def latest_nonce(self, address: Address) -> int:
        """Return the next nonce of an account in the newest block."""
        return self._blocks[-1].nonces.get(address, 0)

    def mineable(self, address: Address) -> list[TxHash]:
        """Return the pooled transactions of an account that have no gap below them."""
        nonces = range(self.latest_nonce(address), self._pending_nonce(address))
        return [tx.hash for tx in self._pool.values() if tx.sender == address and tx.nonce in nonces]

    def mined_in_newest(self, depth: int) -> list[tuple[TxHash, Address, int]]:
        """Return hash, sender and nonce of the transactions in the last `depth` blocks, in order."""
        return [(tx.hash, tx.sender, tx.nonce) for mined in self._blocks[-depth:] for tx in mined.txs]

    def mined_by(self, hashes: Collection[TxHash]) -> list[tuple[Address, int]]:
        """Return sender and nonce of those of these transactions that are in a block."""
        return [(tx.sender, tx.nonce) for mined in self._blocks for tx in mined.txs if tx.hash in hashes]

    def canonical(self) -> list[tuple[Header, list[tuple[TxHash, Address, int]]]]:
        """Return all blocks: header, and hash, sender and nonce of each transaction."""
        return [(m.header, [(tx.hash, tx.sender, tx.nonce) for tx in m.txs]) for m in self._blocks]
