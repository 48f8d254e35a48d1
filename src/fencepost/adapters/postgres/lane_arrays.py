"""What lanes decided, as the arrays that `commit_lanes` takes.

Most commits do one kind of thing. What a commit has no rows for is left out of its statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fencepost.adapters.postgres.arrays import JOINED, LISTED, WORDS, columns
from fencepost.adapters.postgres.journal_sheets import Sheets
from fencepost.adapters.postgres.queries import lean
from fencepost.adapters.postgres.rows import encode_confirmations, encode_receipt, encode_sends
from fencepost.application.intents import canonical, digest
from fencepost.application.ports import LaneWrite, TxChange
from fencepost.domain.managed import Attempt, ManagedTx

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
    """The statement that carries these out, and its arguments."""
    lanes: list[tuple[Any, ...]] = []
    changes: list[tuple[Any, ...]] = []
    new_attempts: list[tuple[Any, ...]] = []
    sheets = Sheets()
    commands: list[tuple[Any, ...]] = []
    fillers: list[tuple[Any, ...]] = []
    for lane, write in enumerate(writes, start=1):
        lanes.append(_lane_row(lane, write))
        for entry in write.entries:
            sheets.of_signer(lane, entry)
        commands += [(lane, command, outcome) for command, outcome in write.done_commands]
        named = [(str(change.after.tx_id), change) for change in (*write.changes, *write.fillers)]
        count = len(write.changes)
        changes += [_change_row(lane, tx_id, change, now_s) for tx_id, change in named[:count]]
        fillers += [_filler_row(lane, tx_id, change) for tx_id, change in named[count:]]
        for tx_id, change in named:
            tx = change.after
            sheets.of_tx(lane, tx_id, change.entries, tx.state)
            added = tx.attempts[len(change.before.attempts) :]
            new_attempts += [_attempt_row(lane, tx_id, tx.held_nonce(), attempt) for attempt in added]
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
        "cursors": any(write.cursor_after is not None for write in writes),
        "txs": changes,
        "new_attempts": new_attempts,
        "journaled": told,
        "commands": commands,
        "fillers": fillers,
    }
    statement = lean("commit_lanes", frozenset(part for part, rows in needed.items() if not rows))
    return statement.sql, statement.arguments(arguments)


def _lane_row(lane: int, write: LaneWrite) -> tuple[Any, ...]:
    signer, before, after = write.term.signer, write.cursor_before, write.cursor_after
    expected = (before.next_nonce, before.state) if before is not None else (None, None)
    if after is None:
        nothing = (None,) * 4
        return (lane, signer.chain_id, signer.address, write.term.token, False, *expected, *nothing)
    return (
        lane,
        signer.chain_id,
        signer.address,
        write.term.token,
        True,
        *expected,
        after.next_nonce,
        after.start_nonce,
        after.state,
        after.reason,
    )


def _change_row(lane: int, tx_id: str, change: TxChange, now_s: float) -> tuple[Any, ...]:
    before, tx = change.before, change.after
    mined = tx.mined
    sends = _sends(before, tx)
    return (
        lane,
        tx_id,
        before.version,
        tx.state,
        tx.sub_state,
        tx.nonce,
        tx.ending,
        tx.error[:2000] if tx.error else None,
        tx.submit_count,
        tx.journal_count,
        None if tx.last_submit_s is None else now_s - tx.last_submit_s,
        None if tx.resubmit_due_s is None else tx.resubmit_due_s - now_s,
        tx.hash,
        mined.block.number if mined else None,
        mined.block.hash if mined else None,
        mined is not before.mined,
        encode_receipt(mined.raw) if mined is not None and mined is not before.mined else None,
        tx.confirmations is not before.confirmations,
        encode_confirmations(tx.confirmations) if tx.confirmations is not before.confirmations else None,
        sends is not None,
        sends,
    )


def _sends(before: ManagedTx, tx: ManagedTx) -> str | None:
    if tx.attempts is before.attempts or not any(attempt.sent_count for attempt in tx.attempts):
        return None
    return encode_sends(tx.attempts)


def _filler_row(lane: int, tx_id: str, change: TxChange) -> tuple[Any, ...]:
    tx, payload = change.after, canonical(change.after.intent)
    return (
        lane,
        tx_id,
        payload.decode(),
        digest(payload),
        change.before.version,
        tx.state,
        tx.nonce,
        tx.hash,
        tx.journal_count,
    )


def _attempt_row(lane: int, tx_id: str, nonce: int, attempt: Attempt) -> tuple[Any, ...]:
    return (
        lane,
        tx_id,
        attempt.number,
        nonce,
        attempt.purpose,
        int(attempt.type),
        attempt.gas,
        attempt.fees.fee_cap_wei,
        attempt.fees.tip_wei,
        attempt.signed.raw,
        attempt.signed.hash,
    )
