"""What lanes decided, as the arrays that `commit_lanes` takes; or as `commit_lane` does, where it is little.

Most commits do one kind of thing. What a commit has no rows for is left out of its statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.adapters.postgres.arrays import JOINED, LISTED, WORDS, columns
from fencepost.adapters.postgres.journal_sheets import Sheets
from fencepost.adapters.postgres.lane_rows import attempt_row, change_row, filler_row, lane_row
from fencepost.adapters.postgres.one_lane import is_little, one_lane_statement
from fencepost.adapters.postgres.queries import lean
from fencepost.application.ports import LaneWrite

_LANE = (WORDS,) * 10 + (LISTED,)
_CHANGE = (
    *(WORDS,) * 7,
    LISTED,
    *(WORDS,) * 4,
    *(JOINED, WORDS, JOINED),
    *(WORDS, JOINED) * 3,
)
_ATTEMPT = (*(WORDS,) * 9, LISTED, JOINED)
_SHEET = (*(WORDS,) * 3, *(JOINED,) * 4)
_COMMAND = (WORDS, WORDS, LISTED)
_FILLER = (WORDS, WORDS, JOINED, LISTED, WORDS, WORDS, WORDS, JOINED, WORDS)


def lane_statement(writes: Sequence[LaneWrite], *, now_s: float, node: str) -> tuple[str, list[Any]]:
    """The statement that carries these out, and its arguments: it answers with lane and `applied`.

    Lanes whose term is over are missing from the answer, or `applied` is NULL.
    """
    if is_little(writes):
        return one_lane_statement(writes[0], now_s=now_s, node=node)
    lanes: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    new_attempts: list[tuple[Any, ...]] = []
    sheets = Sheets()
    commands: list[tuple[Any, ...]] = []
    fillers: list[tuple[Any, ...]] = []
    for lane, write in enumerate(writes, start=1):
        lanes.append((lane, *lane_row(write)))
        for entry in write.entries:
            sheets.of_signer(lane, entry)
        if write.done_commands:
            commands += [(lane, command, outcome) for command, outcome in write.done_commands]
        count = len(write.changes)
        for place, change in enumerate((*write.changes, *write.fillers)):
            tx = change.after
            tx_id = str(tx.tx_id)
            if place < count:
                changes.append((lane, *change_row(tx_id, change, now_s)))
            else:
                fillers.append((lane, *filler_row(tx_id, change)))
            sheets.of_tx(lane, tx_id, change.entries, tx.state)
            if len(tx.attempts) > len(change.before.attempts):
                added = tx.attempts[len(change.before.attempts) :]
                new_attempts += [(lane, *attempt_row(tx_id, tx.held_nonce(), attempt)) for attempt in added]
    told = sheets.rows()
    arguments = [
        *columns(lanes, _LANE),
        *columns(changes, _CHANGE),
        *columns(new_attempts, _ATTEMPT),
        *columns(told, _SHEET),
        *columns(commands, _COMMAND),
        *columns(fillers, _FILLER),
        node,
    ]
    needed = {
        "new_cursors": any(
            write.cursor_after is not None and write.cursor_before is None for write in writes
        ),
        "cursors": any(
            write.cursor_after is not None and write.cursor_before is not None for write in writes
        ),
        "txs": changes,
        "new_attempts": new_attempts,
        "journaled": told,
        "commands": commands,
        "fillers": fillers,
    }
    statement = lean("commit_lanes", frozenset(part for part, rows in needed.items() if not rows))
    return statement.sql, statement.arguments(arguments)
