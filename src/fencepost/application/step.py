"""One round of a lane: everything that can be done now, then when to come back."""

from __future__ import annotations

from fencepost.application.allocate import MOST_AT_ONCE, allocate, room
from fencepost.application.broadcast import FIRST_BACK_OFF_S, broadcast, is_sendable, is_waiting_to_be_sent
from fencepost.application.escalate import escalate
from fencepost.application.intervene import intervene
from fencepost.application.lane import Lane, StateMoved
from fencepost.application.reconcile import reconcile, reopen_undone
from fencepost.application.sequence import look_again, next_look_in_s
from fencepost.application.track import look_at_once, track
from fencepost.errors import Fenced, FencepostError

# A round ends after this many batches, so that lanes that share a worker take turns.
MOST_BATCHES = 32


async def step(lane: Lane, at_most: int = MOST_AT_ONCE) -> float | None:
    """Seconds until the lane wants to be stepped again, or None when only a wake-up can give it work.

    `at_most` nonces are given, and their bytes sent, before the next ones are.
    """
    try:
        again_s = await _round(lane, at_most)
    except (Fenced, StateMoved):
        raise
    except FencepostError:
        await lane.write_due()  # a silent node must not keep back what others have said
        raise
    await lane.write_due()
    return come_back_in_s(lane) if again_s is None else again_s


async def _round(lane: Lane, at_most: int) -> float | None:
    """0 if there is more to do at once."""
    if not lane.reconciled:
        await reconcile(lane)
    if lane.commands_may_wait:
        await intervene(lane)
        if not lane.reconciled:  # a person let it go on: what the chain says is read before anything goes out
            await reconcile(lane)
    if lane.ahead_looked_s is not None:
        await look_again(lane)
    if lane.must_look_back:
        await reopen_undone(lane)
    await track(lane)
    if lane.in_flight:
        await escalate(lane)
        await _send(lane)
    return await _work_off_queue(lane, at_most)


async def _work_off_queue(lane: Lane, at_most: int) -> float | None:
    """As far as there is room, or until a block has something to tell."""
    for _ in range(MOST_BATCHES):
        if lane.queue.arrived or lane.queue_may_have_more:
            await _refill(lane, at_most)
        if not lane.queue or not await allocate(lane, at_most):
            return None
        await _send(lane)
        if lane.seen:  # it is written together with what is held of the same
            break
    return 0.0


async def _send(lane: Lane) -> None:
    if await broadcast(lane) and lane.policy.fetch_receipt_upon_entry:
        await look_at_once(lane)


async def _refill(lane: Lane, at_most: int) -> None:
    """What arrived is taken as it is, unless the ledger must be asked anyway: what is read then begins with it."""
    if not lane.queue_may_have_more:
        take_arrivals(lane)
        return
    lane.queue.take_arrivals()
    if len(lane.queue) < min(room(lane), at_most):
        lane.queue_may_have_more = False
        loaded = await lane.ledger.load_queue(lane.signer, limit=lane.policy.read_ahead)
        lane.queue.load(loaded)
        lane.queue_may_have_more = lane.queue_may_have_more or len(loaded) >= lane.policy.read_ahead


def take_arrivals(lane: Lane) -> None:
    """An arrival may be known already, because a load saw it before it was told.

    Should it even have ended since, its version tells, and the lane is read again.
    """
    for tx in lane.queue.take_arrivals():
        if lane.queue.is_news(tx) or not lane.holds(tx.tx_id):
            lane.queue.add(tx)


def come_back_in_s(lane: Lane) -> float | None:
    now_s = lane.clock.now_s()
    times = _times_of_unmined(lane, now_s) if lane.in_flight else []
    if lane.must_look_up:
        times.append(now_s + 0.5)
    if lane.commands_may_wait:
        times.append(now_s)
    if (write_by_s := lane.write_by_s) is not None:
        times.append(write_by_s)
    if lane.ahead_looked_s is not None:
        times.append(now_s + next_look_in_s(lane))
    if lane.queue and lane.hold_allocation_until_s > 0:
        times.append(lane.hold_allocation_until_s)
    return max(0.0, min(times) - now_s) if times else None


def _times_of_unmined(lane: Lane, now_s: float) -> list[float]:
    """When they are sent again, or looked for without a hint."""
    unmined = lane.unmined
    times: list[float] = []
    if unmined and lane.receipt_checked_at_s is not None:
        times.append(lane.receipt_checked_at_s + lane.policy.stale_receipt_timeout_s)
    if lane.is_protected:
        return times
    for tx in unmined:
        if tx.resubmit_due_s is not None:
            if is_sendable(tx):
                times.append(tx.resubmit_due_s)
        elif is_waiting_to_be_sent(tx):  # more refusals than one round answers
            times.append(now_s + FIRST_BACK_OFF_S)
    return times
