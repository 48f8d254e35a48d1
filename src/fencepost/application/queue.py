"""The requests without a nonce that a lane holds in memory: the oldest ones, in the order of their arrival.

It may hold hundreds, and is touched for every transaction: what happens at its head, which is nearly everything, costs
the same however long it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from uuid import UUID

from fencepost.domain.managed import ManagedTx

_NEVER_S = float("inf")


class Queue(deque[ManagedTx]):
    """A deque, so that asking how long it is, or what stands first, is no call of a function of ours."""

    __slots__ = ("_first_deadline_s", "_newest_seq", "arrived")

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[ManagedTx] = []  # stored just now, and not looked at yet
        self._newest_seq = 0  # of all that were ever held
        self._first_deadline_s = _NEVER_S  # none of them is too late before

    def load(self, txs: Sequence[ManagedTx]) -> None:
        """As the ledger has it, in place of what was held."""
        self._hold(txs)
        self._newest_seq = max(self._newest_seq, txs[-1].seq if txs else 0)
        self._find_first_deadline()
        if self.arrived:
            seen = {tx.tx_id for tx in txs}
            self.arrived = [tx for tx in self.arrived if tx.tx_id not in seen]

    def _hold(self, txs: Sequence[ManagedTx]) -> None:
        self.clear()
        self.extend(txs)

    def arrive(self, txs: Sequence[ManagedTx]) -> None:
        """They were stored just now, and nothing waited before them. Safe while a load is under way."""
        self.arrived += txs

    def holds_all(self, seqs: Collection[int], *besides: Iterable[ManagedTx]) -> bool:
        """Here, looked at or not, or in what is given besides."""
        left = set(seqs)
        for tx in chain(reversed(self.arrived), reversed(self), *besides):
            left.discard(tx.seq)
            if not left:
                return True
        return False

    def take_arrivals(self) -> list[ManagedTx]:
        """For `add`; or to be forgotten, when a load begins that will see them."""
        taken, self.arrived = self.arrived, []
        return taken

    def is_news(self, tx: ManagedTx) -> bool:
        """It came after all that were ever held here."""
        return tx.seq > self._newest_seq

    def add(self, tx: ManagedTx) -> None:
        """By arrival: two that were stored side by side may come in either order."""
        if self and self[-1].seq > tx.seq:
            self._hold(sorted((*self, tx), key=attrgetter("seq")))
        else:
            self.append(tx)
        self._newest_seq = max(self._newest_seq, tx.seq)
        if tx.valid_until_s is not None:
            self._first_deadline_s = min(self._first_deadline_s, tx.valid_until_s)

    def update(self, tx: ManagedTx) -> None:
        """It still waits, but is another value; one that isn't held is left to the next load."""
        for index, queued in enumerate(self):
            if queued.tx_id == tx.tx_id:
                self[index] = tx
                return

    def leave(self, gone: Iterable[ManagedTx]) -> None:
        """They wait no more. From the head on that is quick; the rest is gone through once for all of them."""
        left: set[UUID] = set()
        for tx in gone:
            if self and self[0] is tx:
                self.popleft()
            else:
                left.add(tx.tx_id)
        if left:
            self._hold([tx for tx in self if tx.tx_id not in left])

    def too_late(self, now_s: float) -> list[ManagedTx]:
        """Those whose time has passed; looked for only when the first of them may be due."""
        if now_s < self._first_deadline_s:
            return []
        self._find_first_deadline()
        return [tx for tx in self if tx.valid_until_s is not None and tx.valid_until_s <= now_s]

    def _find_first_deadline(self) -> None:
        deadlines = (tx.valid_until_s for tx in self if tx.valid_until_s is not None)
        self._first_deadline_s = min(deadlines, default=_NEVER_S)
