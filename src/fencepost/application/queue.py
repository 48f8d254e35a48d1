"""The requests without a nonce that a lane holds in memory: the oldest ones, in the order of their arrival.

It may hold hundreds, and is touched for every transaction: what happens at its head, which is nearly everything, costs
the same however long it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from uuid import UUID

from fencepost.domain.managed import ManagedTx

_NEVER_S = float("inf")


class Queue:
    def __init__(self) -> None:
        self._txs: deque[ManagedTx] = deque()
        self._arrived: list[ManagedTx] = []  # stored just now, and not looked at yet
        self._newest_seq = 0  # of all that were ever held
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
        self._newest_seq = max(self._newest_seq, txs[-1].seq if txs else 0)
        self._find_first_deadline()
        if self._arrived:
            seen = {tx.tx_id for tx in txs}
            self._arrived = [tx for tx in self._arrived if tx.tx_id not in seen]

    @property
    def arrivals(self) -> int:
        return len(self._arrived)

    def arrive(self, txs: Sequence[ManagedTx]) -> None:
        """They were stored just now, and nothing waited before them. Safe while a load is under way."""
        self._arrived += txs

    def holds_all(self, seqs: Collection[int], *besides: Iterable[ManagedTx]) -> bool:
        """Here, looked at or not, or in what is given besides."""
        left = set(seqs)
        for tx in chain(reversed(self._arrived), reversed(self._txs), *besides):
            left.discard(tx.seq)
            if not left:
                return True
        return False

    def take_arrivals(self) -> list[ManagedTx]:
        """For `add`; or to be forgotten, when a load begins that will see them."""
        taken, self._arrived = self._arrived, []
        return taken

    def is_news(self, tx: ManagedTx) -> bool:
        """It came after all that were ever held here."""
        return tx.seq > self._newest_seq

    def add(self, tx: ManagedTx) -> None:
        """By arrival: two that were stored side by side may come in either order."""
        if self._txs and self._txs[-1].seq > tx.seq:
            self._txs = deque(sorted((*self._txs, tx), key=attrgetter("seq")))
        else:
            self._txs.append(tx)
        self._newest_seq = max(self._newest_seq, tx.seq)
        if tx.valid_until_s is not None:
            self._first_deadline_s = min(self._first_deadline_s, tx.valid_until_s)

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
