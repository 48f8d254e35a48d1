"""Turn rows into the arguments of a statement, and into the common table expression that reads them.

A statement reads many rows from arrays, one per column (`column_arrays.py`), and a few rows value by value, which costs
PostgreSQL less per statement but makes a separate statement for each number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fencepost.adapters.postgres.column_arrays import JOINED, LISTED, SCALAR, Encoding, column
from fencepost.adapters.postgres.columns import (
    ATTEMPT_COLUMNS,
    CHANGE_KEYS,
    COMMAND_COLUMNS,
    CURSOR_COLUMNS,
    FILLER_COLUMNS,
    JOURNAL_COLUMNS,
    LANE_KEYS,
    REQUEST_COLUMNS,
    TX_COLUMNS,
    Column,
)

_ARRAYS = {
    JOINED: r"unnest(string_to_array(${number}, E'\x1f', ''))",
    LISTED: "unnest(${number}::{type}[])",
    SCALAR: "${number}::{type}",
}
_LITERAL = "unnest(${number}::text::{type}[])"
# Types whose values are passed as text.
_AS_TEXT = {"numeric"}


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    type: str
    encoding: Encoding
    value: Callable[[Any], Any]


def _arguments(columns: Sequence[Column]) -> Iterator[Argument]:
    for each in columns:
        if each.is_set is not None:
            yield Argument(f"sets_{each.name}", "bool", "words", each.is_set)
        if each.value is not None:
            yield Argument(each.source_name, each.type, each.encoding, each.value)


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Rows that a statement takes as arguments: `name` is the common table expression that it reads."""

    name: str
    arguments: tuple[Argument, ...]

    def from_arrays(self, first: int) -> str:
        """Return the expression that reads the rows from arrays; its parameters are numbered from `first`."""
        selected = [
            f"{_ARRAYS.get(each.encoding, _LITERAL).format(number=number, type=each.type)} AS {each.name}"
            for number, each in enumerate(self.arguments, start=first)
        ]
        return f"{self.name} AS (\n  SELECT " + ",\n         ".join(selected) + "\n)"

    def from_values(self, first: int, count: int) -> str:
        """Return the expression that reads this number of rows value by value."""
        width = len(self.arguments)
        rows = [
            ", ".join(
                [_typed(first + row * width + place, each) for place, each in enumerate(self.arguments)]
            )
            for row in range(count)
        ]
        names = ", ".join([each.name for each in self.arguments])
        values = "),\n         (".join(rows)
        rows_read = f"(\n    VALUES ({values})\n  ) AS given ({names})"
        return f"{self.name} AS (\n  SELECT * FROM {rows_read}\n)"  # noqa: S608 - names and parameters only

    def without_rows(self) -> str:
        """Return the expression for no rows; it has no parameters."""
        selected = ", ".join([f"NULL::{each.type} AS {each.name}" for each in self.arguments])
        return f"{self.name} AS (\n  SELECT {selected} WHERE false\n)"

    def arrays(self, rows: Sequence[Any]) -> list[Any]:
        """Return the arguments of `from_arrays`."""
        return [column(list(map(each.value, rows)), each.encoding) for each in self.arguments]

    def values(self, rows: Sequence[Any]) -> list[Any]:
        """Return the arguments of `from_values`."""
        return [each.value(row) for row in rows for each in self.arguments]


def _typed(number: int, argument: Argument) -> str:
    return f"${number}::text::{argument.type}" if argument.type in _AS_TEXT else f"${number}::{argument.type}"


def numbered_arrays(sources: Sequence[Source]) -> list[str]:
    """Return the expressions that read all these sources from arrays, with consecutive parameters."""
    texts = []
    first = 1
    for source in sources:
        texts.append(source.from_arrays(first))
        first += len(source.arguments)
    return texts


def _source(name: str, *columns: Column) -> Source:
    return Source(name, tuple(_arguments(columns)))


_LANE, _TX_ID = CHANGE_KEYS[:2]
_POSITION = Column("position", "bigint", lambda row: row.position)
_COMMAND_ID = Column("id", "bigint", lambda row: row.done.id)

LANE = _source("lane", *LANE_KEYS, *CURSOR_COLUMNS)
CHANGE = _source("change", *CHANGE_KEYS, *TX_COLUMNS)
FILLER = _source("filler", *CHANGE_KEYS, *FILLER_COLUMNS)
NEW_ATTEMPT = _source("new_attempt", _LANE, *ATTEMPT_COLUMNS)
NEW_BATCH = _source("new_batch", _LANE, _POSITION, *JOURNAL_COLUMNS)
DONE_COMMAND = _source("done_command", _LANE, _COMMAND_ID, *COMMAND_COLUMNS)
NEW_REQUEST = _source("new_request", *REQUEST_COLUMNS)

COMMIT_SOURCES = (LANE, CHANGE, FILLER, NEW_ATTEMPT, NEW_BATCH, DONE_COMMAND)
