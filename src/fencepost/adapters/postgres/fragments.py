"""Write the lists of columns in the statements: `{{name}}` in `sql/*.sql` stands for a fragment of this module."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.adapters.postgres.columns import (
    ATTEMPT_COLUMNS,
    COMMAND_COLUMNS,
    CURSOR_COLUMNS,
    FILLER_COLUMNS,
    JOURNAL_COLUMNS,
    LOADED_COLUMNS,
    QUEUE_COLUMNS,
    REQUEST_COLUMNS,
    TX_COLUMNS,
    Column,
)
from fencepost.adapters.postgres.sources import NEW_REQUEST

_NEW_LINE = ",\n         "


def _written(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column.value is not None]


def _names(columns: Sequence[Column]) -> str:
    return ", ".join([column.name for column in _written(columns)])


def _values(columns: Sequence[Column], source: str) -> str:
    """Return what an INSERT gets for `_names`; `source` is the alias of the rows."""
    return _NEW_LINE.join(
        [column.stored.format(f"{source}.{column.source_name}") for column in _written(columns)]
    )


def _assignments(columns: Sequence[Column], source: str, table: str = "") -> str:
    """Return the assignments of an UPDATE; `table` is the alias of the changed row."""
    return _NEW_LINE.join([f"{column.name} = {_new(column, source, table)}" for column in _written(columns)])


def _new(column: Column, source: str, table: str) -> str:
    stored = column.stored.format(f"{source}.{column.source_name}")
    if column.is_set is None:
        return stored
    return f"CASE WHEN {source}.sets_{column.name} THEN {stored} ELSE {table}.{column.name} END"


def _loaded(columns: Sequence[Column], table: str) -> str:
    """Return the select list of a load; `table` is the alias of the rows."""
    return ",\n       ".join(
        [
            f"{column.loaded.format(f'{table}.{column.name}')} AS {column.source_name}"
            for column in columns
            if column.loaded is not None
        ]
    )


FRAGMENTS = {
    "set_tx_columns": _assignments(TX_COLUMNS, "c", "t"),
    "tx_columns": _loaded(LOADED_COLUMNS, "t"),
    "queue_columns": _loaded(QUEUE_COLUMNS, "t"),
    "filler_names": _names(FILLER_COLUMNS),
    "filler_values": _values(FILLER_COLUMNS, "f"),
    "attempt_names": _names(ATTEMPT_COLUMNS),
    "attempt_values": _values(ATTEMPT_COLUMNS, "a"),
    "attempt_columns": _loaded(ATTEMPT_COLUMNS, "a"),
    "cursor_names": _names(CURSOR_COLUMNS),
    "cursor_values": _values(CURSOR_COLUMNS, "g"),
    "set_cursor_columns": _assignments(CURSOR_COLUMNS, "g"),
    "cursor_columns": _loaded(CURSOR_COLUMNS, "c"),
    "batch_names": _names(JOURNAL_COLUMNS),
    "batch_values": _values(JOURNAL_COLUMNS, "e"),
    "set_command_columns": _assignments(COMMAND_COLUMNS, "o"),
    "command_columns": _loaded(COMMAND_COLUMNS, "c"),
    "request_names": _names(REQUEST_COLUMNS),
    "request_values": _values(REQUEST_COLUMNS, "a"),
    "new_request": NEW_REQUEST.from_arrays(first=3),  # after the node and the limit
}
