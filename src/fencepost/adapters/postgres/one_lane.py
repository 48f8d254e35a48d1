"""What one lane decided, as `commit_lane` takes it: value by value, without arrays of columns.

Most commits, where there is no crowd, are of one lane and about a few transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.adapters.postgres.journal_sheets import Sheets
from fencepost.adapters.postgres.lane_rows import attempt_row, change_row, lane_row
from fencepost.adapters.postgres.queries import repeated
from fencepost.application.ports import LaneWrite

# With more, there is less and less to gain; and each number of rows is a statement of its own, which is prepared once a
# connection.
MOST_CHANGES = 4


def is_little(writes: Sequence[LaneWrite]) -> bool:
    """One lane's, and none of the things that lanes seldom do."""
    if len(writes) > 1:
        return False
    (write,) = writes
    return len(write.changes) <= MOST_CHANGES and not write.fillers and not write.done_commands


def one_lane_statement(write: LaneWrite, *, now_s: float, node: str) -> tuple[str, list[Any]]:
    """The statement that carries it out, and its arguments."""
    changes: list[Any] = []
    new_attempts: list[Any] = []
    attempts = 0
    sheets = Sheets()
    for entry in write.entries:
        sheets.of_signer(1, entry)
    for change in write.changes:
        tx = change.after
        tx_id = str(tx.tx_id)
        changes += change_row(tx_id, change, now_s)
        sheets.of_tx(1, tx_id, change.entries, tx.state)
        for attempt in tx.attempts[len(change.before.attempts) :]:
            new_attempts += attempt_row(tx_id, tx.held_nonce(), attempt)
            attempts += 1
    told = sheets.rows()
    arguments = [*lane_row(write), *changes, *new_attempts]
    for _position, _lane, *sheet in told:
        arguments += sheet
    arguments.append(node)
    return repeated("commit_lane", (len(write.changes), attempts, len(told))), arguments
