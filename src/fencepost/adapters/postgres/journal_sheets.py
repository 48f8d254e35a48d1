"""What commits say to the journal, as rows of `journal_sheet`: what is told of neighbours in the same words is one row.

A lane tells the same of many transactions at once, and what is written as one row costs the server a fraction of what
rows of their own would. The order in which things were told is the order of the sheets and of the lines on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fencepost.domain.managed import Entry
from fencepost.domain.states import State

MOST_LINES = 32  # so that several sheets fit into a page of the server; their ids leave room for more
_MOMENT_CHARS = 11

Row = tuple[int, int, str | None, str, str, str, str | None]

# What happened to each transaction of a sheet, in order: the event, and the state after it.
Words = list[tuple[str, State | None]]


class Sheets:
    """Takes what is told, line after line, and gives rows: position, lane, moment, tx_ids, events, states, details."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._lane = 0
        self._moment: str | None = None
        self._words: Words = []
        self._written = ("{}", "{}")  # events and states of these words; most sheets of a commit share them
        self._tx_ids: list[str] = []
        self._details: list[Any] = []

    def of_signer(self, lane: int, entry: Entry) -> None:
        self._begin(lane, None, [(entry.event, None)])
        self._tx_ids.append("NULL")
        self._details.append(entry.detail)

    def of_tx(self, lane: int, tx_id: str, entries: Sequence[Entry], state: State) -> None:
        """`state` is that of entries which name none."""
        if not 0 < len(entries) <= MOST_LINES:
            for start in range(0, len(entries), MOST_LINES):
                self.of_tx(lane, tx_id, entries[start : start + MOST_LINES], state)
            return
        words: Words = [(entry.event, entry.state or state) for entry in entries]
        moment = tx_id[:_MOMENT_CHARS]
        if (
            lane != self._lane
            or moment != self._moment
            or words != self._words
            or len(self._details) + len(words) > MOST_LINES
        ):
            self._begin(lane, moment, words)
        self._tx_ids.append(tx_id)
        self._details += [entry.detail for entry in entries]

    def rows(self) -> list[Row]:
        self._end()
        return self._rows

    def _begin(self, lane: int, moment: str | None, words: Words) -> None:
        self._end()
        self._lane, self._moment = lane, moment
        if words != self._words:
            events, states = zip(*words, strict=True)
            self._words, self._written = words, (_words(events), _words(states))

    def _end(self) -> None:
        """The sheet so far is whole."""
        if not self._tx_ids:
            return
        details = None
        if any(self._details):
            details = msgspec.json.encode([detail or None for detail in self._details]).decode()
        told = _words(self._tx_ids), *self._written, details
        self._rows.append((len(self._rows), self._lane, self._moment, *told))
        self._tx_ids = []
        self._details = []


def _words(values: Sequence[str | None]) -> str:
    """The text of an array. No word needs quotes, or a bound in the database: none comes from outside."""
    return "{" + ",".join([value or "NULL" for value in values]) + "}"
