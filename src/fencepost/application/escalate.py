"""Too long without a receipt: the same bytes again, or a better price, or what the stuck hook decides.

The lowest nonce goes first, because nothing above it can be mined before it. A send is claimed by a fenced write of
the next due time before it happens, so that neither a crash nor a second node turns it into a storm.
"""

from __future__ import annotations

from functools import partial

from fencepost.application.broadcast import fill, is_sendable, replace_attempt, send
from fencepost.application.lane import Lane
from fencepost.domain import managed
from fencepost.domain.managed import ManagedTx
from fencepost.domain.send import POSSIBLY_SENT
from fencepost.domain.states import State, SubState

MOST_IN_A_BATCH = 100


async def escalate(lane: Lane) -> int:
    """How many transactions were sent again."""
    if lane.is_protected:
        return 0
    now_s = lane.clock.now_s()
    due = [
        tx
        for tx in lane.unmined
        if tx.resubmit_due_s is not None and tx.resubmit_due_s <= now_s and is_sendable(tx)
    ][:MOST_IN_A_BATCH]
    if not due:
        return 0
    lane.require_trust()
    again: list[ManagedTx] = []
    lowest = next(iter(lane.unmined)).nonce
    for tx in due:
        if _is_at_limit(lane, tx):
            if await _ask_stuck_hook(lane, tx):
                again.append(tx)
        elif tx.nonce == lowest and _shall_bump(lane, tx):
            await replace_attempt(lane, tx)  # new bytes: `broadcast` sends them
        else:
            again.append(tx)
    if not again:
        return 0
    interval_s = lane.policy.resubmit_interval_s
    claims = [
        lane.change(tx, partial(managed.claimed, due_s=now_s + interval_s, resubmit=True)) for tx in again
    ]
    claimed = await lane.commit(claims, op="claim_resubmit")
    await send(lane, claimed)
    return len(claimed)


def _is_at_limit(lane: Lane, tx: ManagedTx) -> bool:
    limit = lane.policy.resubmit_max_attempts
    return limit > 0 and tx.submit_count > limit and tx.latest.last_result in POSSIBLY_SENT


def _shall_bump(lane: Lane, tx: ManagedTx) -> bool:
    """Only what a node holds and nobody mines gets a better price; a refusal has its own answer."""
    if not lane.policy.bump_enabled or tx.sub_state is SubState.STUCK:
        return False
    return tx.latest.sent_count > lane.policy.bump_after_resubmits and tx.latest.last_result in POSSIBLY_SENT


async def _ask_stuck_hook(lane: Lane, tx: ManagedTx) -> bool:
    """Whether the same bytes go out once more."""
    reason = f"no receipt after {tx.submit_count} sends"
    match await lane.stuck_hook(tx):
        case "resubmit":
            return True
        case "filler":
            await fill(lane, tx, ending=State.FAILED, error=reason)
        case "mark":
            if tx.sub_state is not SubState.STUCK:
                lane.observer.note("stuck", signer=lane.signer, tx=tx.tx_id, reason=reason)
                await lane.commit(
                    [lane.change(tx, partial(managed.stuck, reason=reason), _wait(lane))], op="stuck"
                )
            else:
                await lane.commit([lane.change(tx, _wait(lane))], op="wait")
        case "wait":
            await lane.commit([lane.change(tx, _wait(lane))], op="wait")
    return False


def _wait(lane: Lane) -> partial[managed.Step]:
    return partial(managed.postponed, due_s=lane.clock.now_s() + lane.policy.resubmit_interval_s)
