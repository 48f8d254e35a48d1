"""The requests without a nonce that a lane holds in memory: the oldest ones, in the order of their arrival.

It may hold hundreds, and is touched for every transaction: what happens at its head, which is nearly everything, costs
the same however long it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from uuid import UUID

from fencepost.domain.managed import ManagedTx

_NEVER_S = float("inf")


class Queue:
    def __init__(self) -> None:
        self._txs: deque[ManagedTx] = deque()
        self._first_deadline_s = _NEVER_S  # none of them is too late before

    def __len__(self) -> int:
        return len(self._txs)

    def __iter__(self) -> Iterator[ManagedTx]:
        return iter(self._txs)

    def __getitem__(self, index: int) -> ManagedTx:
        return self._txs[index]

    def load(self, txs: Sequence[ManagedTx]) -> None:
        """As the ledger has it, in place of what was held."""
        self._txs = deque(txs)
        self._find_first_deadline()

    def update(self, tx: ManagedTx) -> None:
        """It still waits, but is another value; one that isn't held is left to the next load."""
        for index, queued in enumerate(self._txs):
            if queued.tx_id == tx.tx_id:
                self._txs[index] = tx
                return

    def leave(self, gone: set[UUID]) -> None:
        """They wait no more. From the head on that is quick; the rest is gone through once for all of them."""
        left = set(gone)
        while left and self._txs and self._txs[0].tx_id in left:
            left.discard(self._txs.popleft().tx_id)
        if left:
            self._txs = deque(tx for tx in self._txs if tx.tx_id not in left)

    def too_late(self, now_s: float) -> list[ManagedTx]:
        """Those whose time has passed; looked for only when the first of them may be due."""
        if now_s < self._first_deadline_s:
            return []
        self._find_first_deadline()
        return [tx for tx in self._txs if tx.valid_until_s is not None and tx.valid_until_s <= now_s]

    def _find_first_deadline(self) -> None:
        deadlines = (tx.valid_until_s for tx in self._txs if tx.valid_until_s is not None)
        self._first_deadline_s = min(deadlines, default=_NEVER_S)
