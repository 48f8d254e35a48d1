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
_MOMENT_CHARS = 12

Row = tuple[int, int, str | None, str, str, str, str | None]


class Sheets:
    """Takes what is told, line after line, and gives rows: position, lane, moment, tx_ids, events, states, details."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._heading: tuple[Any, ...] = ()
        self._tx_ids: list[str] = []
        self._details: list[Any] = []

    def of_signer(self, lane: int, entry: Entry) -> None:
        self._begin((lane, None, [(entry.event, None)]))
        self._tx_ids.append("NULL")
        self._details.append(entry.detail)

    def of_tx(self, lane: int, tx_id: str, entries: Sequence[Entry], state: State) -> None:
        """`state` is that of entries which name none."""
        if not 0 < len(entries) <= MOST_LINES:
            for start in range(0, len(entries), MOST_LINES):
                self.of_tx(lane, tx_id, entries[start : start + MOST_LINES], state)
            return
        words = [(entry.event, entry.state or state) for entry in entries]
        heading = (lane, tx_id[:_MOMENT_CHARS], words)
        if heading != self._heading or len(self._details) + len(words) > MOST_LINES:
            self._begin(heading)
        self._tx_ids.append(tx_id)
        self._details += [entry.detail for entry in entries]

    def rows(self) -> list[Row]:
        self._begin(())
        return self._rows

    def _begin(self, heading: tuple[Any, ...]) -> None:
        """The sheet so far is whole."""
        if self._tx_ids:
            lane, moment, words = self._heading
            events, states = zip(*words, strict=True)
            details = None
            if any(self._details):
                details = msgspec.json.encode([detail or None for detail in self._details]).decode()
            told = _words(self._tx_ids), _words(events), _words(states), details
            self._rows.append((len(self._rows), lane, moment, *told))
        self._heading = heading
        self._tx_ids = []
        self._details = []


def _words(values: Sequence[str | None]) -> str:
    """The text of an array. No word needs quotes, or a bound in the database: none comes from outside."""
    return "{" + ",".join([value or "NULL" for value in values]) + "}"
