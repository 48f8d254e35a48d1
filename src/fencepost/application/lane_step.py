"""Step a lane: do everything that can be done now, and return when the next step is due."""

from __future__ import annotations

from fencepost.application.allocate import MAX_NONCES_PER_COMMIT, allocate, window_capacity
from fencepost.application.broadcast import FIRST_BACK_OFF_S, broadcast, is_sendable, is_waiting_to_be_sent
from fencepost.application.lane import Lane, StateMoved, protect_if_replaced
from fencepost.application.nonce_sync import next_recheck_in_s, recheck_chain_nonce
from fencepost.application.operator_commands import run_commands
from fencepost.application.pool_watch import check_pool, current_pool_check
from fencepost.application.reconcile import raise_alarm, reconcile, reopen_undone
from fencepost.application.resubmit import resubmit
from fencepost.application.stall import clear_stall, record_stall
from fencepost.application.supersession import settle_superseded, superseded_due_s
from fencepost.application.track import fetch_receipts_after_send, track
from fencepost.errors import ChainReplaced, Fenced, FencepostError, RpcError, SigningError, UnknownSigner

# A step ends after this many batches, so that lanes that share a worker take turns.
MAX_BATCHES = 32


async def lane_step(lane: Lane, at_most: int = MAX_NONCES_PER_COMMIT) -> float | None:
    """Step the lane; return the seconds until its next step, or None if only a notification can bring it work.

    It assigns `at_most` nonces and sends their bytes before it assigns the next ones.
    """
    try:
        again_s = await _round(lane, at_most)
    except (Fenced, StateMoved):
        raise
    except ChainReplaced as error:
        await protect_if_replaced(lane, error)
        raise
    except FencepostError as error:
        await lane.flush_due()  # an endpoint's silence must not delay results that are known
        if isinstance(error, RpcError | SigningError | UnknownSigner):
            await record_stall(lane, error)
        raise
    await clear_stall(lane)
    await lane.flush_due()
    return next_step_in_s(lane) if again_s is None else again_s


async def _round(lane: Lane, at_most: int) -> float | None:
    """Do one round of work; return 0 if there is more to do immediately."""
    if lane.suspicion.alarm is not None:
        await raise_alarm(lane, lane.suspicion.alarm)
    if not lane.reconciled:
        await reconcile(lane)
    if lane.commands.are_due(lane.now_s()):
        await run_commands(lane)
        if not lane.reconciled:  # an operator ended PROTECT: compare with the chain before anything is sent
            await reconcile(lane)
    if lane.suspicion.ahead.checked_at_s is not None:
        await recheck_chain_nonce(lane)
    if lane.must_check_finished:
        await reopen_undone(lane)
    await settle_superseded(lane)
    await track(lane)
    if lane.in_flight:
        await check_pool(lane)
        await resubmit(lane)
        await _send(lane)
    return await _work_off_queue(lane, at_most)


async def _work_off_queue(lane: Lane, at_most: int) -> float | None:
    """Allocate and send while the window has room, or until receipts are ready; return 0 if there is more to do."""
    if lane.unreadable:  # the signer is in PROTECT, and its queue can't be read in order
        return None
    for _ in range(MAX_BATCHES):
        if lane.queue.arrived or lane.queue.may_be_longer:
            await _refill(lane, at_most)
        if not lane.queue or not await allocate(lane, at_most):
            return None
        await _send(lane)
        if lane.blocks.receipt_ready_hashes:  # their results are written together with the deferred writes
            break
    return 0.0


async def _send(lane: Lane) -> None:
    if await broadcast(lane) and lane.settings.fetch_receipt_upon_entry:
        await fetch_receipts_after_send(lane)


async def _refill(lane: Lane, at_most: int) -> None:
    """Add arrived requests to the queue, or load the queue from the ledger, which includes them."""
    if not lane.queue.may_be_longer:
        take_arrivals(lane)
        return
    lane.queue.take_arrivals()
    if len(lane.queue) < min(window_capacity(lane), at_most):
        lane.queue.may_be_longer = False
        loaded = await lane.ports.ledger.load_queue(lane.signer, limit=lane.settings.read_ahead)
        lane.queue.load(loaded)
        lane.queue.may_be_longer = lane.queue.may_be_longer or len(loaded) >= lane.settings.read_ahead


def take_arrivals(lane: Lane) -> None:
    """Add arrived requests to the queue, except those that a load has already added.

    If one has even ended since, the next commit fails on its version, and the lane is loaded again.
    """
    for tx in lane.queue.take_arrivals():
        if lane.queue.is_new(tx) or not lane.holds(tx.tx_id):
            lane.queue.add(tx)


def next_step_in_s(lane: Lane) -> float | None:
    now_s = lane.now_s()
    times = _times_of_unmined(lane, now_s) if lane.in_flight else []
    if lane.blocks.must_fetch_receipts:
        times.append(now_s + 0.5)
    if lane.commands.may_wait:
        times.append(max(now_s, lane.commands.not_before_s))
    if lane.blocks.reason_tries and lane.blocks.reasons_due_s is not None:
        times.append(lane.blocks.reasons_due_s)
    if (write_by_s := lane.write_by_s) is not None:
        times.append(write_by_s)
    if lane.suspicion.ahead.checked_at_s is not None:
        times.append(now_s + next_recheck_in_s(lane))
    if (recheck_s := superseded_due_s(lane)) is not None:
        times.append(recheck_s)
    if lane.queue and lane.sending.allocation_paused_until_s > 0:
        times.append(lane.sending.allocation_paused_until_s)
    return max(0.0, min(times) - now_s) if times else None


def _times_of_unmined(lane: Lane, now_s: float) -> list[float]:
    """Return when unmined transactions are due for a send or for a receipt check."""
    unmined = lane.unmined
    times: list[float] = []
    if unmined and lane.blocks.receipt_checked_at_s is not None:
        times.append(lane.blocks.receipt_checked_at_s + lane.settings.stale_receipt_timeout_s)
    if lane.is_protected:
        return times
    if (current := current_pool_check(lane)) is not None:
        times.append(current[1].due_s)
    for tx in unmined:
        if tx.resubmit_due_s is not None:
            if is_sendable(tx):
                times.append(tx.resubmit_due_s)
        elif is_waiting_to_be_sent(tx):  # more rejections than one round handles
            times.append(now_s + FIRST_BACK_OFF_S)
    return times
