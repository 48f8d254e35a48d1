"""Group journal entries into rows of `journal_batch`: consecutive transactions with the same events share a row.

A lane often records the same events for many transactions at once, and one row costs PostgreSQL a fraction of many. The
order of entries is the order of the batches and of the events in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from fencepost.domain.states import State
from fencepost.domain.transaction_state import JournalEntry

MAX_LINES = 32  # entries per batch: several batches fit into a page; the id sequence leaves room for 256
_ID_PREFIX_CHARS = 11


class JournalBatch(NamedTuple):
    """A row of `journal_batch`, with its lane and its position in the commit; arrays are array literals."""

    position: int
    lane: int
    id_prefix: str | None
    tx_ids: str
    events: str
    states: str
    details: str | None
    node: str


# The events of each transaction of a batch, in order, with the state after each.
Words = list[tuple[str, State | None]]


class JournalBatches:
    """Collects the entries of a commit and groups them."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._rows: list[JournalBatch] = []
        self._lane = 0
        self._id_prefix: str | None = None
        self._words: Words = []
        self._written = ("{}", "{}")  # encoded events and states; most batches of a commit share them
        self._tx_ids: list[str] = []
        self._details: list[Any] = []

    def of_signer(self, lane: int, entry: JournalEntry) -> None:
        self._begin(lane, None, [(entry.event, None)])
        self._tx_ids.append("NULL")
        self._details.append(entry.detail)

    def of_tx(self, lane: int, tx_id: str, entries: Sequence[JournalEntry], state: State) -> None:
        """Add the entries of a transaction; `state` is the state of entries that have none."""
        if not 0 < len(entries) <= MAX_LINES:
            for start in range(0, len(entries), MAX_LINES):
                self.of_tx(lane, tx_id, entries[start : start + MAX_LINES], state)
            return
        words: Words = [(entry.event, entry.state or state) for entry in entries]
        id_prefix = tx_id[:_ID_PREFIX_CHARS]
        if (
            lane != self._lane
            or id_prefix != self._id_prefix
            or words != self._words
            or len(self._details) + len(words) > MAX_LINES
        ):
            self._begin(lane, id_prefix, words)
        self._tx_ids.append(tx_id)
        self._details += [entry.detail for entry in entries]

    def rows(self) -> list[JournalBatch]:
        self._end()
        return self._rows

    def _begin(self, lane: int, id_prefix: str | None, words: Words) -> None:
        self._end()
        self._lane, self._id_prefix = lane, id_prefix
        if words != self._words:
            events, states = zip(*words, strict=True)
            self._words, self._written = words, (_words(events), _words(states))

    def _end(self) -> None:
        """Close the current batch and add its row."""
        if not self._tx_ids:
            return
        details = None
        if any(self._details):
            details = msgspec.json.encode([detail or None for detail in self._details]).decode()
        columns = _words(self._tx_ids), *self._written, details
        self._rows.append(JournalBatch(len(self._rows), self._lane, self._id_prefix, *columns, self._node))
        self._tx_ids = []
        self._details = []


def _words(values: Sequence[str | None]) -> str:
    """Encode an array literal. No value needs quotes or a length limit, because none comes from a caller."""
    return "{" + ",".join([value or "NULL" for value in values]) + "}"
