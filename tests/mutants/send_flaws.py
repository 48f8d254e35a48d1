"""Flaws of nonces and sends: what is sent, when, and how an answer is understood."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fencepost.application import (
    allocate,
    attribution,
    broadcast,
    gap_filling,
    lane_round,
    nonce_sync,
    operator_commands,
    reconcile,
    resubmit,
    signing,
    track,
)
from fencepost.application.lane import Lane, StateMoved
from fencepost.application.lane_set import LaneSet
from fencepost.application.ports import Cursor, LaneWrite, TxChange
from fencepost.domain import fees, transaction_state
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.send_policy import Action
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction_state import Attempt, JournalEntry, ManagedTx
from fencepost.testing import InMemoryDatabase, InMemoryLedger
from mutants.database_flaws import claims_without_key
from mutants.planting import Change


def send_before_commit() -> list[Change]:
    honest, honest_each = signing.sign, signing.sign_each

    async def sign(batch: signing.Batch) -> list[Attempt]:
        signed = await honest(batch)
        await batch.lane.ports.chain.send([attempt.signed for attempt in signed])
        return signed

    async def sign_each(batches: Sequence[signing.Batch]) -> list[list[Attempt] | Exception]:
        results = await honest_each(batches)
        for batch, result in zip(batches, results, strict=True):
            if not isinstance(result, Exception):
                await batch.lane.ports.chain.send([attempt.signed for attempt in result])
        return results

    return [(signing, "sign", sign), (signing, "sign_each", sign_each)]


def bump_not_stored() -> list[Change]:
    async def replace_attempt(lane: Lane, tx: ManagedTx) -> bool:
        attempt = await signing.next_attempt(lane, tx, purpose=tx.latest.purpose)
        await lane.ports.chain.send([attempt.signed])
        wait = partial(transaction_state.postpone, due_s=lane.now_s() + lane.settings.resubmit_interval_s)
        await lane.commit([lane.change(tx, wait)], op="bump")
        return True

    return [(broadcast, "replace_attempt", replace_attempt), (resubmit, "replace_attempt", replace_attempt)]


def _database(lane: Lane) -> InMemoryDatabase:
    inner: InMemoryLedger = lane.ports.ledger.inner  # type: ignore[attr-defined]  # the simulated port has it
    return inner.database


def _requeue(lane: Lane, tx: ManagedTx, *, release: bool) -> None:
    """Return a transaction to the queue, against the rules."""
    data = _database(lane)
    row = data.txs[tx.tx_id]
    data.txs[tx.tx_id] = row.changed(
        state=State.QUEUED, nonce=None, attempts=(), version=row.version + 1, resubmit_due_s=None
    )
    data.nonces.pop((tx.signer, tx.held_nonce()), None)
    cursor = data.cursors[tx.signer]
    if release and cursor.next_nonce == tx.held_nonce() + 1:
        data.cursors[tx.signer] = cursor.changed(next_nonce=tx.held_nonce())
    raise StateMoved("as planted")


def _follow_up(on: SendCategory, then: Any) -> list[Change]:
    honest = broadcast._follow_up

    async def follow_up(lane: Lane, tx: ManagedTx, action: Action, result: SendResult) -> None:
        if result.category is on and tx.mined is None and not tx.is_terminal:
            await then(lane, tx)
        else:
            await honest(lane, tx, action, result)

    return [(broadcast, "_follow_up", follow_up)]


def fresh_nonce_when_too_low() -> list[Change]:
    async def then(lane: Lane, tx: ManagedTx) -> None:
        _requeue(lane, tx, release=False)

    return _follow_up(SendCategory.NONCE_TOO_LOW, then)


def _failed(lane: Lane, tx: ManagedTx, error: str) -> TxChange:
    view = lane.ports.chain_view.view
    head = BlockRef(view.head, view.hashes[view.head])
    return lane.change(
        tx,
        partial(transaction_state.supersede, error=error),
        partial(transaction_state.fail_superseded, seen_at=head),
    )


def release_on_unknown() -> list[Change]:
    async def then(lane: Lane, tx: ManagedTx) -> None:
        _requeue(lane, tx, release=True)

    return _follow_up(SendCategory.UNKNOWN, then)


def time_out_is_failure() -> list[Change]:
    async def then(lane: Lane, tx: ManagedTx) -> None:
        await lane.commit([_failed(lane, tx, "time-out")], op="fail")

    return _follow_up(SendCategory.UNKNOWN, then)


def unknown_hash_new_nonce() -> list[Change]:
    async def find_violations(lane: Lane, missing: Sequence[ManagedTx]) -> None:
        for tx in missing:
            known = await lane.ports.chain.knows([attempt.signed.hash for attempt in tx.attempts])
            if tx.state is State.SUBMITTED and not any(known):
                _requeue(lane, tx, release=False)

    return [(track, "_handle_missing", find_violations)]


def node_says_the_nonce() -> list[Change]:
    honest = nonce_sync.checked_cursor

    async def checked(lane: Lane) -> Cursor | None:
        cursor = await honest(lane)
        if cursor is None:
            return None
        return cursor.changed(next_nonce=await lane.ports.chain.nonce(lane.signer.address, "latest"))

    return [(allocate, "checked_cursor", checked), (InMemoryLedger, "_claims", claims_without_key)]


def failed_at_once() -> list[Change]:
    async def fill(lane: Lane, tx: ManagedTx, *, ending: State, error: str) -> None:
        del ending
        await lane.commit([_failed(lane, tx, error)], op="fail")

    return [(broadcast, "fill", fill), (resubmit, "fill", fill)]


def never_again() -> list[Change]:
    async def nothing(_lane: Lane) -> None:
        return

    return [
        (broadcast, "_due_s", lambda *_: None),
        (reconcile, "_settle", nothing),
        (lane_round, "check_pool", nothing),
    ]


def no_claim() -> list[Change]:
    honest = transaction_state.claim_send

    def claim_send(tx: ManagedTx, *, due_s: float, resubmit: bool) -> transaction_state.Transition:
        done = honest(tx, due_s=due_s, resubmit=resubmit)
        return transaction_state.Transition(tx, done.entries[:0])

    return [(transaction_state, "claim_send", claim_send)]


def same_price_again() -> list[Change]:
    honest = fees.replacement

    def replacement(last: Any, **kwargs: Any) -> Any:
        dearer = honest(last, **kwargs)
        return dearer if dearer is None else dearer.changed(fee_cap_wei=last.fee_cap_wei)

    return [(fees, "replacement", replacement)]


def persist_skipped() -> list[Change]:
    """Keep nonces in the lane's memory; write them only with the answer to the send."""
    honest = LaneSet.commit

    async def commit(lanes: LaneSet, writes: Sequence[tuple[Lane, LaneWrite]], *, op: str) -> None:
        if op != "allocate":
            await honest(lanes, writes, op=op)
            return
        for lane, write in writes:
            lane.cursor = write.cursor_after
            for change in write.changes:
                lane._remember(change.after)

    return [(LaneSet, "commit", commit)]


def nonce_skipped() -> list[Change]:
    honest = LaneSet.commit

    async def commit(lanes: LaneSet, writes: Sequence[tuple[Lane, LaneWrite]], *, op: str) -> None:
        if op == "allocate":
            writes = [(lane, _past_one_more(write)) for lane, write in writes]
        await honest(lanes, writes, op=op)

    return [(LaneSet, "commit", commit)]


def _past_one_more(write: LaneWrite) -> LaneWrite:
    after = write.cursor_after
    if after is None or len(write.changes) <= 1:
        return write
    return write.changed(cursor_after=after.changed(next_nonce=after.next_nonce + 1))


async def _adopt_unseen(lane: Lane, upto: int, *, skips_foreign: bool) -> None:
    """Adopt the chain's nonce without finding out which transactions consumed it."""
    del skips_foreign
    assert lane.cursor is not None
    entry = JournalEntry("AdoptChainNonce", {"from": lane.cursor.next_nonce, "to": upto})
    await lane.commit(cursor=lane.cursor.changed(next_nonce=upto), entries=[entry], op="adopt")


async def _no_past(_lane: Lane, _lowest: int, _latest: int) -> attribution.PastSearch:
    return attribution.PastSearch(None)


def adopted_without_attribution() -> list[Change]:
    return [
        (nonce_sync, "attribute_ahead", _adopt_unseen),
        (operator_commands, "attribute_ahead", _adopt_unseen),
        (nonce_sync, "search_past", _no_past),
    ]


def adopted_at_first_sight() -> list[Change]:
    return [(nonce_sync, "ADOPT_AFTER_S", 0.0), (nonce_sync, "attribute_ahead", _adopt_unseen)]


def attached_and_trusted() -> list[Change]:
    """End the doubt as soon as one lost transaction is found."""

    def trusted(lane: Lane, _changes: Sequence[TxChange]) -> None:
        lane.blocks.must_fetch_receipts = True

    return [(attribution, "_mark_doubted", lambda cursor: cursor), (attribution, "_note_attached", trusted)]


def history_trusted() -> list[Change]:
    """Ignore that the database lost commits."""
    return [(reconcile, "restore_doubt", lambda _lane, _state: None)]


def doubt_without_fillers() -> list[Change]:
    """End the doubt when the chain's nonce equals the cursor."""

    async def fill_doubt(lane: Lane, cursor: Cursor) -> None:
        await lane.commit(cursor=cursor.changed(is_doubted=False), op="trust")

    return [(nonce_sync, "_fill_window", fill_doubt)]


def one_filler() -> list[Change]:
    """Fill one gap only, although transactions above a second gap stay hidden."""
    honest = gap_filling.fillers

    async def fillers(lane: Lane, nonces: Sequence[int]) -> list[TxChange]:
        return await honest(lane, nonces[:1])

    return [(nonce_sync, "fillers", fillers)]


def fillers_not_waited_for() -> list[Change]:
    """Do not wait until the fillers are mined."""
    return [(nonce_sync, "_fillers_wait", lambda _lane: False)]


def cancelled_at_once() -> list[Change]:
    """Report a cancellation as done, whatever is in flight."""

    async def cancel(lane: Lane, tx: ManagedTx, reason: str, _author: str) -> tuple[TxChange | None, str]:
        return _failed(lane, tx, reason), "cancelled"

    return [(operator_commands, "_cancel_with_nonce", cancel)]


def handlers_nonce_left() -> list[Change]:
    """Wait for a handler whose process is gone."""
    honest = broadcast.fill

    async def fill(lane: Lane, tx: ManagedTx, *, ending: State, error: str) -> None:
        if error != "the process that had its handler has ended":
            await honest(lane, tx, ending=ending, error=error)

    return [(broadcast, "fill", fill)]


def alarm_after_all_else() -> list[Change]:
    """Handle the first answers of a batch before the alarm in its last one."""
    honest = broadcast._follow_up

    async def follow_up(lane: Lane, tx: ManagedTx, action: Action, result: SendResult) -> None:
        if lane.is_protected and action in (Action.OUTBID, Action.REQUOTE):
            await broadcast.replace_attempt(lane, tx)
        else:
            await honest(lane, tx, action, result)

    return [(broadcast, "_follow_up", follow_up)]
