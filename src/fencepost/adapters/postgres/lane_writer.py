"""Build the statement and arguments that commit the writes of lanes: `commit_lanes`.

Most commits write to few tables: the parts of the statement for which a commit has no rows are left out. Under low load most
commits concern one lane and a few rows; they are passed value by value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fencepost.adapters.postgres.columns import AttemptRow, ChangeRow, CommandRow, lane_row
from fencepost.adapters.postgres.journal_batches import JournalBatches
from fencepost.adapters.postgres.queries import compose
from fencepost.adapters.postgres.sources import (
    CHANGE,
    COMMIT_SOURCES,
    DONE_COMMAND,
    FILLER,
    LANE,
    NEW_ATTEMPT,
    NEW_BATCH,
    Source,
)
from fencepost.application.ports import LaneWrite

# A write of one lane with at most this many rows per source is passed value by value. Each number of rows is a separate
# statement, prepared once per connection, and more rows save less and less.
MAX_ROWS_BY_VALUE = 4
MAX_STATEMENTS = 1024
_IN_ARRAYS = -1  # instead of a number of rows

_ALWAYS = ("held", "checked", "judged")
# The parts that a source with rows needs.
_WRITTEN_BY = {
    CHANGE: "txs",
    FILLER: "fillers",
    NEW_ATTEMPT: "new_attempts",
    NEW_BATCH: "journaled",
    DONE_COMMAND: "commands",
}

Rows = dict[Source, list[Any]]


def lane_statement(writes: Sequence[LaneWrite], *, now_s: float, node: str) -> tuple[str, list[Any]]:
    """Return the statement that commits these writes, and its arguments; its rows have the columns `lane` and `applied`.

    A lane whose term is over is missing from the rows.
    """
    rows = _rows(writes, now_s=now_s, node=node)
    is_by_value = len(writes) == 1 and max(map(len, rows.values())) <= MAX_ROWS_BY_VALUE
    counts = tuple([len(found) if is_by_value or not found else _IN_ARRAYS for found in rows.values()])
    inserts = any(write.cursor_after is not None and write.cursor_before is None for write in writes)
    updates = any(write.cursor_after is not None and write.cursor_before is not None for write in writes)
    arguments: list[Any] = []
    for source, found in rows.items():
        if found:
            arguments += source.values(found) if is_by_value else source.arrays(found)
    return _statement(counts, inserts_cursor=inserts, updates_cursor=updates), arguments


def _rows(writes: Sequence[LaneWrite], *, now_s: float, node: str) -> Rows:
    """Return the rows of each source, in the order of `COMMIT_SOURCES`."""
    rows: Rows = {source: [] for source in COMMIT_SOURCES}
    lanes, changes, fillers, new_attempts = rows[LANE], rows[CHANGE], rows[FILLER], rows[NEW_ATTEMPT]
    batches = JournalBatches(node)
    for lane, write in enumerate(writes, start=1):
        lanes.append(lane_row(lane, write))
        for entry in write.entries:
            batches.of_signer(lane, entry)
        if write.done_commands:
            rows[DONE_COMMAND] += [CommandRow(lane, done) for done in write.done_commands]
        count = len(write.changes)
        for position, change in enumerate((*write.changes, *write.fillers)):
            before, tx = change.before, change.after
            tx_id = str(tx.tx_id)
            row = ChangeRow(lane, tx_id, before, tx, now_s)
            (changes if position < count else fillers).append(row)
            batches.of_tx(lane, tx_id, change.entries, tx.state)
            if len(tx.attempts) > len(before.attempts):
                nonce, added = tx.held_nonce(), tx.attempts[len(before.attempts) :]
                new_attempts += [AttemptRow(lane, tx_id, nonce, attempt) for attempt in added]
    rows[NEW_BATCH] = batches.rows()
    return rows


@lru_cache(maxsize=MAX_STATEMENTS)
def _statement(counts: tuple[int, ...], *, inserts_cursor: bool, updates_cursor: bool) -> str:
    """Compose the statement for this number of rows of each source."""
    parts = [*_ALWAYS]
    if inserts_cursor:
        parts.append("new_cursors")
    if updates_cursor:
        parts.append("cursors")
    sources = []
    first = 1
    for source, count in zip(COMMIT_SOURCES, counts, strict=True):
        if count == 0:
            if source is CHANGE:  # `checked` reads it
                sources.append(source.without_rows())
            continue
        if source is not LANE:
            parts.append(_WRITTEN_BY[source])
        if count == _IN_ARRAYS:
            sources.append(source.from_arrays(first))
            first += len(source.arguments)
        else:
            sources.append(source.from_values(first, count))
            first += count * len(source.arguments)
    return compose("commit_lanes", sources, parts)
