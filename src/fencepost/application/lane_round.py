"""Run one round of a set of lanes: do everything that can be done now.

A round is the same phases for one lane and for a hundred. The phases are functions over a `LaneSet`: what the lanes need in
common is one call for all of them. What only one lane needs is special, and is done `apart`: a lone lane does it at once,
and in a larger set the lane leaves for a round of its own. So no lane waits for another, and the failure of one affects no
other (`lane_set.py`). The scheduler puts plain lanes into common sets (`is_plain`) and gives every other lane a set of its own.

| phase | what it does | special, always apart | a crash after it leaves |
|---|---|---|---|
| `settle_doubts` | nothing in common | PROTECT, reconcile, operator commands, chain ahead of the cursor, undone and superseded transactions | what their commits say; the next lease holder reconciles anyway |
| `collect_receipts` | fetch receipts, write the ends | confirmations, missing receipts, foreign transactions, nonce gaps | ends that are written; ends that wait for the next nonces are read from the chain again |
| `resubmit_due` | nothing in common | pool checks, resubmission, bumps, the stuck hook | a claim of the send; bytes that may have been sent, and are due again after the interval |
| `send` | send stored bytes | handlers, rejections, receipts right after a send | bytes that may have been sent; their result is deferred, and the next lease holder sends the same bytes again |
| `allocate` | sign, then write nonces, bytes and ends in one commit for each lane | loading the queue, estimates, funds, spending policy, remote keys, refused signatures | before the commit nothing; after it bytes that the next lease holder sends |
| `write_due` | write deferred results that are due | marks of a stall that has ended | nothing that the ledger does not hold |

Each write belongs to one lane, under its own token, all or nothing. No phase has an effect on the chain before the commit
that allows it, so a crash inside a phase leaves what the phase before it left, or what its own commits left.
"""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.application.allocate import (
    MAX_NONCES_PER_COMMIT,
    allocate,
    next_needs_no_rpc,
    window_capacity,
)
from fencepost.application.broadcast import FIRST_BACK_OFF_S, broadcast, is_sendable, is_waiting_to_be_sent
from fencepost.application.lane import Lane, LaneSettings, StateMoved, protect_if_replaced
from fencepost.application.lane_set import LaneSet
from fencepost.application.nonce_sync import is_checked, next_recheck_in_s, recheck_chain_nonce
from fencepost.application.operator_commands import run_commands
from fencepost.application.pool_watch import check_pool, current_pool_check, is_pool_check_due
from fencepost.application.reconcile import raise_alarm, reconcile, reopen_undone
from fencepost.application.resubmit import resubmit
from fencepost.application.stall import clear_stall, record_stall
from fencepost.application.supersession import settle_superseded, superseded_due_s
from fencepost.application.track import collect_receipts, fetch_receipts_after_send
from fencepost.domain.ids import Signer
from fencepost.domain.states import CursorState, SubState
from fencepost.errors import ChainReplaced, Fenced, FencepostError, RpcError, SigningError, UnknownSigner

# A round of a lone lane ends after this many batches of nonces, so that other lanes get their turn.
MAX_BATCHES = 32

# Looked up once: in Python 3.11 access to an enumeration member is a function call.
_ACTIVE, _SUPERSEDED = CursorState.ACTIVE, SubState.SUPERSEDED

# The seconds until the next round of a lane, None if only a notification can bring it work, or why its round failed.
Outcome = float | None | Exception


async def run_round(lanes: Sequence[Lane], at_most: int = MAX_NONCES_PER_COMMIT) -> dict[Signer, Outcome]:
    """Run a round of lanes that share their ports; return the outcome of each.

    Each lane assigns `at_most` nonces and sends their bytes before it assigns the next ones.
    """
    current = LaneSet(lanes)
    await settle_doubts(current)
    await collect_receipts(current)
    await resubmit_due(current)
    await send(current)
    unfinished = await work_off_queues(current, at_most)
    await write_due(current)
    outcomes: dict[Signer, Outcome] = {}
    for lane in lanes:
        if (error := current.failures.get(lane.signer)) is None:
            outcomes[lane.signer] = 0.0 if lane.signer in unfinished else _next_round_in_s(lane)
        else:
            outcomes[lane.signer] = await _after_failure(lane, error) if current.is_lone else error
    return outcomes


# ---- the phases that are not in the module of their use case


async def settle_doubts(lanes: LaneSet) -> None:
    """Settle what must be settled before a lane sends anything."""
    for lane in lanes:
        if lanes.is_lone or _has_doubts(lane):
            await lanes.apart(lane, _settle_doubts)


def _has_doubts(lane: Lane) -> bool:
    suspicion = lane.suspicion
    return (
        suspicion.alarm is not None
        or not lane.reconciled
        or lane.commands.may_wait
        or suspicion.ahead.checked_at_s is not None
        or lane.finality_unknown
    )


async def _settle_doubts(lane: Lane) -> None:
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


async def resubmit_due(lanes: LaneSet) -> None:
    """Send again what no block has included in time."""
    for lane in lanes:
        if lane.in_flight and (lanes.is_lone or _has_resubmissions(lane, lane.now_s())):
            await lanes.apart(lane, _resubmit)


def _has_resubmissions(lane: Lane, now_s: float) -> bool:
    """Return whether a transaction is due for another send or needs bytes."""
    if is_pool_check_due(lane, now_s) or lane.sending.window_limit is not None:
        return True
    for tx in lane.in_flight.values():
        if not tx.attempts or (tx.resubmit_due_s is not None and tx.resubmit_due_s <= now_s):
            return True
    return False


async def _resubmit(lane: Lane) -> None:
    await check_pool(lane)
    await resubmit(lane)


async def send(lanes: LaneSet) -> None:
    """Send the bytes that wait; on a chain that mines at once, fetch their receipts."""
    sent = await broadcast(lanes)
    for lane in lanes:
        if lane.settings.fetch_receipt_upon_entry and lane.signer in sent:
            await lanes.apart(lane, fetch_receipts_after_send)


async def work_off_queues(lanes: LaneSet, at_most: int) -> set[Signer]:
    """Allocate and send while the windows have room; return the signers that could continue at once.

    A larger set does so once: its lanes continue together in the next round, when the sets that wait had theirs.
    """
    moved: set[Signer] = set()
    for _ in range(MAX_BATCHES if lanes.is_lone else 1):
        if not (moved := await allocate(lanes, at_most)):
            return moved
        await send(lanes)
        if any(
            lane.blocks.receipt_ready_hashes for lane in lanes
        ):  # written together with the deferred writes
            break
    if lanes.is_lone:
        return moved
    return {
        lane.signer for lane in lanes if lane.queue and window_capacity(lane) > 0 and lane.signer in moved
    }


async def write_due(lanes: LaneSet) -> None:
    """Write the deferred writes that are due, after the marks of a stall that has ended."""
    for lane in lanes:
        if lane.suspicion.has_stall_marks:
            await lanes.apart(lane, clear_stall)
    await lanes.commit([(lane, lane.build_write()) for lane in lanes if lane.due_deferred()], op="held")


async def _after_failure(lane: Lane, error: Exception) -> Exception:
    """Record what the failure of a lone lane means for its transactions; return it, or what failed in doing so."""
    if isinstance(error, Fenced | StateMoved) or not isinstance(error, FencepostError):
        return error
    try:
        if isinstance(error, ChainReplaced):
            await protect_if_replaced(lane, error)
            return error
        await lane.flush_due()  # an endpoint's silence must not delay results that are known
        if isinstance(error, RpcError | SigningError | UnknownSigner):
            await record_stall(lane, error)
    except Exception as later:  # noqa: BLE001 - the scheduler handles it
        return later
    return error


# ---- what the scheduler asks


def allows_common_rounds(settings: LaneSettings) -> bool:
    """Return whether lanes with these settings may share rounds: not strict ones, nor those that fetch receipts after a send."""
    return not (settings.strict or settings.fetch_receipt_upon_entry)


def is_plain(lane: Lane) -> bool:
    """Return whether the next round of a lane has work, and nothing special is known that would make it leave a set."""
    cursor, now_s = lane.cursor, lane.now_s()
    if (
        cursor is None
        or cursor.state is not _ACTIVE
        or cursor.pause is not None
        or _has_doubts(lane)
        or lane.queue.may_be_longer
        or lane.blocks.must_fetch_receipts
        or lane.suspicion.doubts_history
        or lane.suspicion.has_stall_marks
        or lane.sending.allocation_paused_until_s
        or _has_resubmissions(lane, now_s)
        or lane.has_mined
        or not (allows_common_rounds(lane.settings) and is_checked(lane, now_s))
    ):
        return False
    return bool(lane.blocks.receipt_ready_hashes or next_needs_no_rpc(lane) or lane.due_deferred())


def weight(lane: Lane, at_most: int) -> int:
    """Return how many transactions of the lane a round handles: with too many, the other lanes would wait."""
    return max(
        1, len(lane.blocks.receipt_ready_hashes), min(len(lane.queue) + len(lane.queue.arrived), at_most)
    )


def _next_round_in_s(lane: Lane) -> float | None:
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
