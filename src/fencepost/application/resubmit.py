"""Resubmit or bump transactions without a receipt, or do what the stuck hook decides.

The lowest nonce goes first, because nothing above it can be mined before it. Before a send, a fenced write of the next
due time claims it, so that neither a crash nor a second node turns it into a storm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast, get_args
from uuid import UUID

from fencepost.application import signing
from fencepost.application.broadcast import fill, is_rejected_repeatedly, is_sendable, replace_attempt, send
from fencepost.application.hooks import StuckDecision
from fencepost.application.lane import Lane
from fencepost.application.signing import MAX_ATTEMPTS, AtFeeCap, may_reprice, next_attempt
from fencepost.domain import transaction_state
from fencepost.domain.send_result import POSSIBLY_SENT, SendCategory
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import Fees
from fencepost.domain.transaction_state import ManagedTx, Purpose

MAX_TXS_PER_BATCH = 100

# A stuck hook that has not answered after this time has failed. Its lane does nothing else meanwhile.
STUCK_HOOK_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class HookFailure:
    """Report that a stuck hook raised, timed out or returned an invalid decision."""

    error: str


async def resubmit(lane: Lane) -> int:
    """Resubmit the transactions that are due, and return how many were sent again."""
    if lane.is_protected:
        return 0
    now_s = lane.now_s()
    _make_next_delegated_due(lane, now_s)
    due = [
        tx
        for tx in lane.unmined
        if tx.resubmit_due_s is not None and tx.resubmit_due_s <= now_s and is_sendable(tx)
    ][:MAX_TXS_PER_BATCH]
    if not due:
        return 0
    lane.require_trust()
    decisions = await _ask_stuck_hook(lane, [tx for tx in due if _is_at_limit(lane, tx)])
    lowest = next(iter(lane.unmined)).nonce
    again = [
        lane.in_flight.get(tx.held_nonce(), tx)
        for tx in due
        if await _prepare_resend(lane, tx, decisions.get(tx.tx_id), is_lowest=tx.nonce == lowest)
    ]
    if not again:
        return 0
    interval_s = lane.settings.resubmit_interval_s
    claims = [
        lane.change(tx, partial(transaction_state.claim_send, due_s=now_s + interval_s, resubmit=True))
        for tx in again
    ]
    claimed = await lane.commit(claims, op="claim_resubmit")
    await send(lane, claimed)
    return len(claimed)


def _make_next_delegated_due(lane: Lane, now_s: float) -> None:
    """Make the lowest transaction of a delegated account due when the one before it is in a block.

    Endpoints accept one at a time from such an account (EIP-7702). Each is tried at once when it becomes the lowest; if an
    endpoint has not seen the block yet, its back-off is short.
    """
    sending = lane.sending
    if sending.window_limit is None:
        return
    lowest = next(iter(lane.unmined), None)
    if lowest is None or not lowest.attempts or lowest.tx_id == sending.delegated_next:
        return
    sending.delegated_next = lowest.tx_id
    if lowest.latest.last_result is SendCategory.DELEGATED_LIMIT and is_sendable(lowest):
        lane.in_flight[lowest.held_nonce()] = lowest.changed(resubmit_due_s=now_s)


async def outbid_market(lane: Lane, tx: ManagedTx) -> bool:
    """Raise the price of the lowest transaction, and in the same round of all behind it that pay less."""
    if not await replace_attempt(lane, tx):
        return False
    target = lane.in_flight[tx.held_nonce()].latest.fees
    behind = [
        other
        for other in lane.unmined
        if other.held_nonce() > tx.held_nonce() and _is_outbid(lane, other, target)
    ][:MAX_TXS_PER_BATCH]
    changes = []
    for other in behind:
        lane.require_trust()
        try:
            attempt = await next_attempt(lane, other, purpose=other.latest.purpose, at_least=target)
        except AtFeeCap:
            continue  # its own limit is lower: that is recorded when it is the lowest
        changes.append(
            lane.change(other, partial(transaction_state.add_attempt, attempt=attempt, event="Bump"))
        )
    if changes:
        await lane.commit(changes, op="bump")
    return True


def _is_outbid(lane: Lane, tx: ManagedTx, target: Fees) -> bool:
    """Return whether endpoints hold it at a price that was too low for the one below it."""
    if not is_sendable(tx) or tx.latest.last_result not in POSSIBLY_SENT or not may_reprice(lane, tx):
        return False
    return tx.latest.fees.fee_cap_wei < target.fee_cap_wei and len(tx.attempts) < MAX_ATTEMPTS


def _is_at_limit(lane: Lane, tx: ManagedTx) -> bool:
    """Return whether the stuck hook decides about it. Fillers are always resubmitted, without the hook."""
    if tx.ending is not None or tx.latest.purpose is Purpose.FILLER:
        return False
    limit = lane.settings.resubmit_max_attempts
    return limit > 0 and tx.submit_count > limit and tx.latest.last_result in POSSIBLY_SENT


def _should_bump(lane: Lane, tx: ManagedTx) -> bool:
    """Return whether to bump: only what an endpoint holds and no block includes; rejections are handled at the send."""
    if not may_reprice(lane, tx) or len(tx.attempts) >= MAX_ATTEMPTS:
        return False
    if is_rejected_repeatedly(lane, tx):
        return False
    return (
        tx.latest.sent_count > lane.settings.bump_after_resubmits and tx.latest.last_result in POSSIBLY_SENT
    )


async def is_worth_a_bump(lane: Lane, tx: ManagedTx) -> bool:
    """Return whether a bump may help. Where bumps are off, only fillers get here: they follow the quoted price."""
    if lane.settings.bump_enabled:
        return True
    quoted, paid = await signing.quote(lane, tx.latest.purpose), tx.latest.fees
    return quoted.fee_cap_wei > paid.fee_cap_wei or quoted.tip_wei > paid.tip_wei


async def _ask_stuck_hook(lane: Lane, txs: Sequence[ManagedTx]) -> dict[UUID, StuckDecision | HookFailure]:
    """Call the hook for all concurrently, so that a hook that hangs costs one time-out. A failure is a decision, too."""
    sending = lane.sending
    if not txs:
        return {}
    sending.hook_calls = {tx_id: call for tx_id, call in sending.hook_calls.items() if not call.done()}
    calls = {
        tx.tx_id: asyncio.create_task(_call_stuck_hook(lane, tx))
        for tx in txs
        if tx.tx_id
        not in sending.hook_calls  # a hook that ignores its cancellation is not called a second time
    }
    sending.hook_calls |= calls
    try:
        if calls:
            await asyncio.wait(calls.values(), timeout=STUCK_HOOK_TIMEOUT_S)
    finally:
        for call in calls.values():
            call.cancel()  # not awaited: a hook may ignore it
    decisions: dict[UUID, StuckDecision | HookFailure] = {}
    for tx in txs:
        call = sending.hook_calls[tx.tx_id]
        answer = call.result() if call.done() else TimeoutError()
        failure = _failure_of(answer)
        if failure is not None:
            lane.ports.observer.note(
                "stuck_hook_failed", signer=lane.signer, tx=tx.tx_id, error=failure.error
            )
        decisions[tx.tx_id] = failure or cast("StuckDecision", answer)
    lane.require_trust()  # it may have taken long
    return decisions


async def _call_stuck_hook(lane: Lane, tx: ManagedTx) -> object:
    """Return the hook's answer, or what it raised: nothing that a hook raises may end the lane or the node."""
    try:
        return await lane.ports.stuck_hook(tx)
    except BaseException as error:  # noqa: BLE001 - also SystemExit, which would end the node
        return error


def _failure_of(answer: object) -> HookFailure | None:
    if isinstance(answer, TimeoutError):
        return HookFailure(f"no answer within {STUCK_HOOK_TIMEOUT_S:g} s")
    if isinstance(answer, BaseException):
        return HookFailure(f"{type(answer).__name__}: {answer}"[:500])
    if answer not in get_args(StuckDecision):
        return HookFailure(f"{answer!r} is none of {', '.join(get_args(StuckDecision))}"[:500])
    return None


async def _prepare_resend(
    lane: Lane, tx: ManagedTx, decision: StuckDecision | HookFailure | None, *, is_lowest: bool
) -> bool:
    """Act on a due transaction, and return whether its bytes are to be sent again.

    Otherwise `broadcast` sends new bytes, or the transaction waits an interval.
    """
    tx = lane.in_flight.get(tx.held_nonce(), tx)
    if tx.resubmit_due_s is None:
        return False  # repriced with the one below it
    if decision is not None:
        return await _carry_out_decision(lane, tx, decision)
    if tx.ending is not None and tx.latest.purpose is not Purpose.FILLER:  # the limits may have been raised
        return not await fill(lane, tx, ending=tx.ending, error=tx.error or "")
    if is_lowest and _should_bump(lane, tx) and await is_worth_a_bump(lane, tx):
        return not await outbid_market(lane, tx)
    return True


async def _carry_out_decision(lane: Lane, tx: ManagedTx, decision: StuckDecision | HookFailure) -> bool:
    """Carry the decision out. Return whether the same bytes are sent again; else the transaction waits an interval."""
    reason = f"no receipt after {tx.submit_count} sends"
    if isinstance(decision, HookFailure):
        reason += f"; the stuck hook failed: {decision.error}"
        decision = "mark"
    match decision:
        case "resubmit":
            return True
        case "filler":
            return not await fill(
                lane, tx, ending=State.FAILED, error=reason
            )  # one filler, which is then resubmitted
        case "mark" if tx.sub_state is not SubState.STUCK:
            lane.ports.observer.note("stuck", signer=lane.signer, tx=tx.tx_id, reason=reason)
            change = lane.change(tx, partial(transaction_state.mark_stuck, reason=reason), _wait(lane))
            await lane.commit([change], op="stuck")
        case "mark" | "wait":
            await lane.commit([lane.change(tx, _wait(lane))], op="wait")
    return False


def _wait(lane: Lane) -> partial[transaction_state.Transition]:
    return partial(transaction_state.postpone, due_s=lane.now_s() + lane.settings.resubmit_interval_s)
