"""What a lane decided, as rows: of itself, of its transactions, their new bytes, and of fillers.

In the order in which `commit_lane` and `commit_lanes` name their columns.
"""

from __future__ import annotations

from typing import Any

from fencepost.adapters.postgres.rows import encode_confirmations, encode_receipt, encode_sends
from fencepost.application.intents import canonical, digest
from fencepost.application.ports import LaneWrite, TxChange
from fencepost.domain.managed import Attempt, ManagedTx

_NO_CURSOR = (None,) * 7


def lane_row(write: LaneWrite) -> tuple[Any, ...]:
    signer, before, after = write.term.signer, write.cursor_before, write.cursor_after
    if after is None:  # nobody asks what the cursor was, where it stays as it is
        return (*signer, write.term.token, *_NO_CURSOR)
    expected = (before.next_nonce, before.state) if before is not None else (None, None)
    return (
        signer.chain_id,
        signer.address,
        write.term.token,
        *expected,
        after.next_nonce,
        after.start_nonce,
        after.is_doubted,
        after.state,
        after.reason,
    )


def change_row(tx_id: str, change: TxChange, now_s: float) -> tuple[Any, ...]:
    before, tx = change.before, change.after
    mined = tx.mined
    sends = _sends(before, tx)
    return (
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
    if tx.attempts is not before.attempts:
        for attempt in tx.attempts:
            if attempt.sent_count:
                return encode_sends(tx.attempts)
    return None


def filler_row(tx_id: str, change: TxChange) -> tuple[Any, ...]:
    tx, payload = change.after, canonical(change.after.intent)
    return (
        tx_id,
        payload.decode(),
        digest(payload),
        change.before.version,
        tx.state,
        tx.nonce,
        tx.hash,
        tx.journal_count,
    )


def attempt_row(tx_id: str, nonce: int, attempt: Attempt) -> tuple[Any, ...]:
    return (
        tx_id,
        attempt.number,
        nonce,
        attempt.purpose,
        int(attempt.type),
        attempt.gas,
        str(attempt.fees.fee_cap_wei),
        str(attempt.fees.tip_wei),
        attempt.signed.raw,
        attempt.signed.hash,
    )
