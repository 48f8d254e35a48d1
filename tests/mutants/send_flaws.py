"""Flaws of nonces and sends: what goes out, when, and what an answer is taken for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fencepost.application import allocate, broadcast, escalate, holes, intervene, reconcile, sequence, track
from fencepost.application import attempts as attempts_module
from fencepost.application.lane import Lane, StateMoved
from fencepost.application.ports import Cursor, TxChange
from fencepost.domain import fees as pricing
from fencepost.domain import managed
from fencepost.domain.decide import Action
from fencepost.domain.managed import Attempt, ManagedTx
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.lab.sim.ledger import FakeDatabase, FakeLedger
from mutants.database_flaws import claims_without_key
from mutants.planting import Change


def send_before_commit() -> list[Change]:
    honest = attempts_module.sign

    async def sign(lane: Lane, wanted: Any, **kwargs: Any) -> list[Attempt]:
        signed = await honest(lane, wanted, **kwargs)
        await lane.chain.send([attempt.signed for attempt in signed])
        return signed

    return [(attempts_module, "sign", sign)]


def bump_not_stored() -> list[Change]:
    async def replace_attempt(lane: Lane, tx: ManagedTx) -> None:
        attempt = await attempts_module.next_attempt(lane, tx, purpose=tx.latest.purpose)
        await lane.chain.send([attempt.signed])
        wait = partial(managed.postponed, due_s=lane.clock.now_s() + lane.policy.resubmit_interval_s)
        await lane.commit([lane.change(tx, wait)], op="bump")

    return [(broadcast, "replace_attempt", replace_attempt), (escalate, "replace_attempt", replace_attempt)]


def _database(lane: Lane) -> FakeDatabase:
    inner: FakeLedger = lane.ledger.inner  # type: ignore[attr-defined]  # the simulated port has it
    return inner.database


def _requeue(lane: Lane, tx: ManagedTx, *, release: bool) -> None:
    """Back into the queue, past the rules that forbid it."""
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


def release_on_unknown() -> list[Change]:
    async def then(lane: Lane, tx: ManagedTx) -> None:
        _requeue(lane, tx, release=True)

    return _follow_up(SendCategory.UNKNOWN, then)


def time_out_is_failure() -> list[Change]:
    async def then(lane: Lane, tx: ManagedTx) -> None:
        await lane.commit([lane.change(tx, partial(managed.lost, error="time-out"))], op="fail")

    return _follow_up(SendCategory.UNKNOWN, then)


def unknown_hash_new_nonce() -> list[Change]:
    async def judge(lane: Lane, missing: Sequence[ManagedTx]) -> None:
        for tx in missing:
            known = await lane.chain.knows([attempt.signed.hash for attempt in tx.attempts])
            if tx.state is State.SUBMITTED and not any(known):
                _requeue(lane, tx, release=False)

    return [(track, "_judge_missing", judge)]


def node_says_the_nonce() -> list[Change]:
    honest = sequence.checked_cursor

    async def checked(lane: Lane) -> Cursor | None:
        cursor = await honest(lane)
        if cursor is None:
            return None
        return cursor.changed(next_nonce=await lane.chain.nonce(lane.signer.address, "latest"))

    return [(allocate, "checked_cursor", checked), (FakeLedger, "_claims", claims_without_key)]


def failed_at_once() -> list[Change]:
    async def fill(lane: Lane, tx: ManagedTx, *, ending: State, error: str) -> None:
        del ending
        await lane.commit([lane.change(tx, partial(managed.lost, error=error))], op="fail")

    return [(broadcast, "fill", fill), (escalate, "fill", fill)]


def never_again() -> list[Change]:
    async def nothing(_lane: Lane) -> None:
        return

    return [(broadcast, "_due_s", lambda *_: None), (reconcile, "_settle", nothing)]


def no_claim() -> list[Change]:
    honest = managed.claimed

    def claimed(tx: ManagedTx, *, due_s: float, resubmit: bool) -> managed.Step:
        done = honest(tx, due_s=due_s, resubmit=resubmit)
        return managed.Step(tx, done.entries[:0])

    return [(managed, "claimed", claimed)]


def same_price_again() -> list[Change]:
    honest = pricing.replacement

    def replacement(last: Any, **kwargs: Any) -> Any:
        dearer = honest(last, **kwargs)
        return dearer if dearer is None else dearer.changed(fee_cap_wei=last.fee_cap_wei)

    return [(pricing, "replacement", replacement)]


def persist_skipped() -> list[Change]:
    """Nonces live in the lane's memory; the ledger hears of them with the answer to the send."""
    honest = Lane.commit

    async def commit(lane: Lane, changes: Sequence[TxChange] = (), **kwargs: Any) -> list[ManagedTx]:
        if kwargs.get("op") != "allocate":
            return await honest(lane, changes, **kwargs)
        lane.cursor = kwargs["cursor"]
        for change in changes:
            lane._remember(change.after)
        return [change.after for change in changes]

    return [(Lane, "commit", commit)]


def nonce_skipped() -> list[Change]:
    honest = Lane.commit

    async def commit(lane: Lane, changes: Sequence[TxChange] = (), **kwargs: Any) -> list[ManagedTx]:
        if kwargs.get("op") == "allocate" and len(changes) > 1:
            kwargs["cursor"] = kwargs["cursor"].changed(next_nonce=kwargs["cursor"].next_nonce + 1)
        return await honest(lane, changes, **kwargs)

    return [(Lane, "commit", commit)]


def adopted_at_first_sight() -> list[Change]:
    return [(sequence, "ADOPT_AFTER_S", 0.0)]


def history_trusted() -> list[Change]:
    """Whether the database lost commits is nobody's business."""
    return [(reconcile, "recall_doubt", lambda _lane, _state: None)]


def doubt_without_fillers() -> list[Change]:
    """When the chain stands where our cursor does, all is well."""

    async def fill_doubt(lane: Lane, cursor: Cursor) -> None:
        await lane.commit(cursor=cursor.changed(is_doubted=False), op="trust")

    return [(sequence, "_fill_doubt", fill_doubt)]


def one_filler() -> list[Change]:
    """What is hidden above one gap comes to light when it is closed; what is hidden above two does not."""
    honest = holes.fillers

    async def fillers(lane: Lane, nonces: Sequence[int]) -> list[TxChange]:
        return await honest(lane, nonces[:1])

    return [(sequence, "fillers", fillers)]


def fillers_not_waited_for() -> list[Change]:
    """They will be mined, what else."""
    return [(sequence, "_fillers_wait", lambda _lane: False)]


def cancelled_at_once() -> list[Change]:
    """Whoever cancels is told that it is done, whatever is on its way."""

    async def cancel(lane: Lane, tx: ManagedTx, reason: str, _asked_by: str) -> tuple[TxChange | None, str]:
        return lane.change(tx, partial(managed.lost, error=reason)), "cancelled"

    return [(intervene, "_cancel_with_nonce", cancel)]


def handlers_nonce_left() -> list[Change]:
    """A function whose process is gone will surely come back."""
    honest = broadcast.fill

    async def fill(lane: Lane, tx: ManagedTx, *, ending: State, error: str) -> None:
        if error != "its handler is gone":
            await honest(lane, tx, ending=ending, error=error)

    return [(broadcast, "fill", fill)]


def alarm_after_all_else() -> list[Change]:
    """What the first answers ask for is done before the alarm that the last one is."""
    honest = broadcast._follow_up

    async def follow_up(lane: Lane, tx: ManagedTx, action: Action, result: SendResult) -> None:
        if lane.is_protected and action in (Action.OUTBID, Action.REQUOTE):
            await broadcast.replace_attempt(lane, tx)
        else:
            await honest(lane, tx, action, result)

    return [(broadcast, "_follow_up", follow_up)]
