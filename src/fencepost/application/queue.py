"""Hold the oldest requests without a nonce of a lane in memory, in the order of their arrival.

A queue may hold hundreds, and every transaction changes it: operations at its head, which are nearly all, cost the same
however long it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from uuid import UUID

from fencepost.domain.transaction_state import ManagedTx

_NEVER_S = float("inf")


class Queue(deque[ManagedTx]):
    """Extend a deque, so that its length and its first element cost no Python call."""

    __slots__ = ("_first_deadline_s", "_newest_seq", "arrived", "may_be_longer")

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[ManagedTx] = []  # stored just now, and not looked at yet
        self.may_be_longer = True  # the ledger may hold requests that are not loaded
        self._newest_seq = 0  # of all that were ever held
        self._first_deadline_s = _NEVER_S  # none of them is too late before

    def load(self, txs: Sequence[ManagedTx]) -> None:
        """Replace the content with what the ledger has."""
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
        """Add requests that were stored just now, with nothing waiting before them. Safe during a load."""
        self.arrived += txs

    def holds_all(self, seqs: Collection[int], *others: Iterable[ManagedTx]) -> bool:
        """Return whether each of these requests is in the queue, in the arrivals or in `besides`."""
        left = set(seqs)
        for tx in chain(reversed(self.arrived), reversed(self), *others):
            left.discard(tx.seq)
            if not left:
                return True
        return False

    def take_arrivals(self) -> list[ManagedTx]:
        """Return and clear the arrivals: for `add`, or to drop them before a load that reads them."""
        arrivals, self.arrived = self.arrived, []
        return arrivals

    def is_new(self, tx: ManagedTx) -> bool:
        """Return whether the request arrived after all that were ever held here."""
        return tx.seq > self._newest_seq

    def add(self, tx: ManagedTx) -> None:
        """Add a request in the order of arrival: two that were stored concurrently may come in either order."""
        if self and self[-1].seq > tx.seq:
            self._hold(sorted((*self, tx), key=attrgetter("seq")))
        else:
            self.append(tx)
        self._newest_seq = max(self._newest_seq, tx.seq)
        if tx.valid_until_s is not None:
            self._first_deadline_s = min(self._first_deadline_s, tx.valid_until_s)

    def update(self, tx: ManagedTx) -> None:
        """Replace a request that still waits by its new version; one that is not held is left to the next load."""
        for index, queued in enumerate(self):
            if queued.tx_id == tx.tx_id:
                self[index] = tx
                return

    def leave(self, txs: Iterable[ManagedTx]) -> None:
        """Remove requests. Removal at the head is quick; for the others the queue is scanned once."""
        left: set[UUID] = set()
        for tx in txs:
            if self and self[0] is tx:
                self.popleft()
            else:
                left.add(tx.tx_id)
        if left:
            self._hold([tx for tx in self if tx.tx_id not in left])

    def expired(self, now_s: float) -> list[ManagedTx]:
        """Return the requests whose deadline has passed; the queue is scanned only when the first may be due."""
        if now_s < self._first_deadline_s:
            return []
        self._find_first_deadline()
        return [tx for tx in self if tx.valid_until_s is not None and tx.valid_until_s <= now_s]

    def _find_first_deadline(self) -> None:
        deadlines = (tx.valid_until_s for tx in self if tx.valid_until_s is not None)
        self._first_deadline_s = min(deadlines, default=_NEVER_S)
