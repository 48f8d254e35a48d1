"""Schedule the lanes of this node on its workers.

A signer belongs to worker `hash(signer) % N`. A worker steps one lane at a time, and lanes of different workers run
concurrently. Lanes whose next step is plain, which is nearly all of them under load, are stepped in batches instead: the
lanes that are woken in the same iteration of the event loop take their step together (`application/batch_step.py`). At
most as many lanes and batches run at a time as there are workers. A signer is strictly serial: a lane that is woken
during its step is queued again when the step has ended.

The failure of a step is handled here, and only here:

| failure | consequence |
|---|---|
| FENCED | the term is over: the lane and its queue are dropped, nothing more is written |
| a row was changed by another writer | the lane is loaded again |
| an endpoint cannot be reached | the lane is retried after a growing pause, and after some time its transactions say why (`application/stall.py`); if it was never reconciled and another node may serve the signer, its lease is released, later each time |
| anything else, above all database errors | the outcome is unknown: the lane is dropped and acquired anew. A failure that is not the database's has a growing pause; after several of the same kind the signer's next lane starts with PROTECT and the error (`runtime/repeated_failures.py`) |
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fencepost.application.allocate import MAX_NONCES_PER_COMMIT
from fencepost.application.batch_step import (
    NeedsOwnStep,
    allows_batch_step,
    batch_step,
    is_batchable,
    next_batch_step_in_s,
    weight,
)
from fencepost.application.lane import HandlerOnOtherNode, Lane, LeaseUntrusted, StateMoved
from fencepost.application.lane_step import lane_step
from fencepost.application.ports import Observer, UnreadableRow
from fencepost.application.stall import is_stalled
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term
from fencepost.errors import ChainReplaced, Fenced, RpcError, SigningError, UnknownSigner
from fencepost.runtime.lane_slot import LaneSlot
from fencepost.runtime.lane_timers import LaneTimers
from fencepost.runtime.pending_forks import PendingForks
from fencepost.runtime.repeated_failures import RepeatedFailures
from fencepost.tasks.service_loop import IsDatabaseFailure, is_broken_connection

_log = logging.getLogger(__name__)

# With many busy lanes, a lane signs this many before it sends: the chain must not idle until every lane has signed.
MIN_NONCES_PER_STEP = 32

# Transactions per batch. The minimum fits into one request to an endpoint: several short batches run concurrently. With
# so many waiting lanes that they have to wait anyway, larger batches cost less.
MIN_BATCH_SIZE, MAX_BATCH_SIZE = 100, 256

# A lane that was never reconciled is given up after it has failed for this long, doubling each time it was in vain.
FIRST_GIVE_UP_S = 1.0


def fair_share(lanes: int) -> int:
    """Return how many nonces a lane allocates in one step: they are signed together while the other lanes wait."""
    return max(MIN_NONCES_PER_STEP, MAX_NONCES_PER_COMMIT // lanes)


def batch_size(lanes: int) -> int:
    """Return how many transactions a batch step takes with this many waiting lanes: a quarter, within bounds."""
    return max(MIN_BATCH_SIZE, min(MAX_BATCH_SIZE, lanes // 4))


@dataclass(slots=True)
class LaneScheduler:
    """Hold the lanes of the acquired signers, and step each lane when it is woken."""

    workers: int
    make_lane: Callable[[Term], Lane]
    observer: Observer
    on_lost: Callable[[Signer], None]  # the lane was dropped with work left: acquire the signer again
    on_failing: Callable[[Signer, float], None]  # the same, but not before this many seconds
    on_given_up: Callable[[Lane], None]  # the lane was dropped, its lease is still valid: release it
    on_retired: Callable[[Lane], None]  # the last step of a retiring lane has ended: release its lease
    is_served_elsewhere: Callable[[Signer], bool] = lambda _signer: True  # another node may serve the signer
    is_database_failure: IsDatabaseFailure = is_broken_connection
    _slots: dict[Signer, LaneSlot] = field(default_factory=dict)
    _ready: list[asyncio.Queue[Signer]] = field(default_factory=list)
    _active: dict[Signer, Lane] = field(default_factory=dict)  # lanes with work; the others are idle
    _awaiting_blocks: dict[Signer, Lane] = field(default_factory=dict)
    _heads: int = 0  # how often a head has moved
    _queued: set[Signer] = field(default_factory=set)
    _stepping: set[Signer] = field(default_factory=set)
    _batch_queue: deque[Signer] = field(default_factory=deque)  # woken, to be stepped in a batch if plain
    _batch_tasks: asyncio.TaskGroup | None = None  # while the scheduler runs
    _timers: LaneTimers = field(init=False)
    forks: PendingForks = field(default_factory=PendingForks)
    failures: RepeatedFailures = field(default_factory=RepeatedFailures)

    def __post_init__(self) -> None:
        """Create the timers and one queue per worker."""
        self._timers = LaneTimers(lambda slot: self.wake(slot.lane.signer))
        self._ready = [asyncio.Queue() for _ in range(self.workers)]

    def __contains__(self, signer: Signer) -> bool:
        return signer in self._slots

    def __iter__(self) -> Iterator[Lane]:
        return iter([slot.lane for slot in self._slots.values()])

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, signer: Signer) -> Lane | None:
        """Return the lane of a signer, or None if this node has none."""
        slot = self._slots.get(signer)
        return slot.lane if slot else None

    def terms(self) -> list[Term]:
        """Return the terms of all lanes."""
        return [slot.lane.term for slot in self._slots.values()]

    def terms_due(self, now_s: float, *, every_s: float) -> list[Term]:
        """Return the terms to renew now, given the renewal interval: active lanes each time, idle ones every other time."""
        due = []
        for signer, slot in self._slots.items():
            term = slot.lane.term
            if signer in self._active or now_s - term.renewed_at_s >= (term.duration_s - every_s) / 2:
                due.append(term)
        return due

    def lanes_awaiting_blocks(self) -> list[Lane]:
        """Return the lanes for which every new block matters. Other lanes wait for a block with one of their hashes."""
        return list(self._awaiting_blocks.values())

    def head_moved(self) -> None:
        """Record that a head moved: a lane that is being stepped is woken again if it waits for blocks."""
        self._heads += 1

    def open(self, term: Term) -> None:
        """Create the lane of a new term, and wake it."""
        lane = self.make_lane(term)
        if (block := self.forks.lowest(term.signer)) is not None:
            lane.on_fork(block)
        if (reason := self.failures.alarm(term.signer)) is not None:
            lane.on_alarm(reason)
        if (since_s := self.failures.failing_since_s(term.signer, lane.now_s())) is not None:
            lane.on_failing(since_s)
        self._slots[term.signer] = LaneSlot(lane, self._worker_of(term.signer))
        self.wake(term.signer)

    def forked(self, signer: Signer, block: int) -> None:
        """Record that a fork may have undone what ended in this block or above; the lane, or the next one here, checks it."""
        self.forks.add(signer, block)
        if (slot := self._slots.get(signer)) is not None:
            slot.lane.on_fork(block)
            self.wake(signer)

    def wake(self, signer: Signer) -> None:
        """Queue a step of the signer's lane, unless one is queued already."""
        slot = self._slots.get(signer)
        if slot is None:
            return
        self._active[signer] = slot.lane
        self._awaiting_blocks.pop(signer, None)  # its step sees the newest view
        slot.timer_due_s = None
        if signer not in self._queued:
            self._queued.add(signer)
            slot.queued_at_s = time.monotonic()
            if signer not in self._stepping:
                self._enqueue(slot)

    def _enqueue(self, slot: LaneSlot) -> None:
        must_step_alone = (
            slot.must_step_alone or slot.is_retiring or not allows_batch_step(slot.lane.settings)
        )
        if self._batch_tasks is None or must_step_alone:
            self._ready[slot.worker].put_nowait(slot.lane.signer)
            return
        if not self._batch_queue:
            asyncio.get_running_loop().call_soon(self._start_batches)
        self._batch_queue.append(slot.lane.signer)

    def _start_batches(self) -> None:
        """Start batch steps for the woken lanes that are plain, one batch per chain; queue the others for their workers.

        Called after an iteration of the event loop, a step or a batch step.
        """
        while self._batch_queue and len(self._stepping) < self.workers and self._batch_tasks is not None:
            plain: dict[int, list[LaneSlot]] = {}
            items, share, most = 0, self._share(), batch_size(len(self._batch_queue))
            while self._batch_queue and items < most:
                signer = self._batch_queue.popleft()
                slot = self._slots.get(signer)
                if slot is None:
                    self._queued.discard(signer)
                elif is_batchable(slot.lane) and not (slot.must_step_alone or slot.is_retiring):
                    plain.setdefault(signer.chain_id, []).append(slot)
                    items += weight(slot.lane, share)
                else:
                    self._ready[slot.worker].put_nowait(signer)
            for slots in plain.values():
                self._begin(slots)
                self._batch_tasks.create_task(self._step_batch(slots), name="batch_step")

    def _worker_of(self, signer: Signer) -> int:
        return zlib.crc32(str(signer).encode()) % self.workers

    def drop(self, signer: Signer) -> None:
        """Remove the lane of a signer. A step that is running ends by itself, and its writes may still be rejected."""
        self._active.pop(signer, None)
        self._awaiting_blocks.pop(signer, None)
        slot = self._slots.pop(signer, None)
        if slot is None:
            return
        slot.lane.stop_awaiting_blocks()
        slot.timer_due_s = None

    def _drop_slot(self, slot: LaneSlot) -> None:
        """Drop the lane of this term only: a newer term may have replaced it during its last step."""
        if self._slots.get(slot.lane.signer) is slot:
            self.drop(slot.lane.signer)

    def is_busy(self, signer: Signer) -> bool:
        """Return whether the lane is being stepped or queued for a step."""
        return signer in self._stepping or signer in self._queued

    @property
    def waiting(self) -> int:
        """Return how many lanes wait for a step."""
        return len(self._queued)

    def retire(self, signer: Signer) -> None:
        """Start no new step, and call `on_retired` when no step is running, which may be at once."""
        slot = self._slots.get(signer)
        if slot is None or slot.is_retiring:
            return
        slot.is_retiring = True
        if slot.lane.write_by_s is not None:
            self.wake(signer)  # its worker flushes the deferred writes
        elif signer not in self._stepping:
            self._retire_now(slot)

    async def _write_and_retire(self, slot: LaneSlot) -> None:
        try:
            await slot.lane.flush_deferred()
        except Exception as error:  # noqa: BLE001 - a loop's edge: the next lease holder reads from the chain what is not written
            _log.warning(
                "%s: the deferred writes were not stored before the lease was released: %s",
                slot.lane.signer,
                error,
            )
        if self._slots.get(slot.lane.signer) is slot:
            self._retire_now(slot)

    def _retire_now(self, slot: LaneSlot) -> None:
        self.drop(slot.lane.signer)
        self.on_retired(slot.lane)

    def renewed(self, term: Term) -> None:
        """Replace the term of a lane with its renewal, and wake the lane if it waited for that."""
        slot = self._slots.get(term.signer)
        if slot is None or slot.lane.term.token != term.token:
            return
        slot.lane.on_renewed(term)
        if slot.waits_for_trust:
            slot.waits_for_trust = False
            self.wake(term.signer)

    def idle(self, *, longer_than_s: float, now_s: float) -> list[Lane]:
        """Return the lanes that have had no work for `longer_than_s`."""
        found = []
        for signer, slot in self._slots.items():
            if not slot.lane.reconciled or not slot.lane.is_idle or self.is_busy(signer):
                slot.idle_since_s = None
            elif slot.idle_since_s is None:
                slot.idle_since_s = now_s
            elif now_s - slot.idle_since_s >= longer_than_s:
                found.append(slot.lane)
        return found

    def without_chain(self, *, longer_than_s: float, now_s: float) -> list[Lane]:
        """Return the lanes whose steps have all failed for so long, the last one because of the endpoints."""
        found = []
        for signer, slot in self._slots.items():
            since_s = slot.lane.failing_since_s
            after_s = self.failures.hand_over_after_s(signer, longer_than_s)
            if slot.lacks_chain and since_s is not None and now_s - since_s >= after_s:
                found.append(slot.lane)
        return found

    async def run(self) -> None:
        """Run the workers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for index in range(self.workers):
                group.create_task(self._work(self._ready[index]), name=f"lane-worker-{index}")
            self._batch_tasks = group
            try:
                await asyncio.get_running_loop().create_future()  # until it is cancelled
            finally:
                self._batch_tasks = None

    async def _work(self, ready: asyncio.Queue[Signer]) -> None:
        while True:
            signer = await ready.get()
            slot = self._slots.get(signer)
            if slot is None or slot.is_retiring:
                self._queued.discard(signer)
                if slot is not None:
                    await self._write_and_retire(slot)
                continue
            self._begin([slot])
            slot.must_step_alone = False
            heads = self._heads
            try:
                again_s = await self._step(slot)
            finally:
                self._end([signer])
            await self._after_step(slot, again_s, is_behind=heads != self._heads)
            self._start_batches()

    async def _after_step(self, slot: LaneSlot, again_s: float | None, *, is_behind: bool) -> None:
        if self._slots.get(slot.lane.signer) is not slot:
            return
        if slot.is_retiring:
            await self._write_and_retire(slot)
        else:
            self._rest(slot, again_s, is_behind=is_behind)

    async def _step_batch(self, slots: Sequence[LaneSlot]) -> None:
        heads = self._heads
        signers = [slot.lane.signer for slot in slots]
        try:
            failures = await batch_step([slot.lane for slot in slots], self._share())
        except Exception as error:  # noqa: BLE001 - a loop's edge: it is handled as the failure of each lane
            failures = dict.fromkeys(signers, error)
        finally:
            self._end(signers)
        is_behind = heads != self._heads
        for slot, signer in zip(slots, signers, strict=True):
            again_s = self._after_batch_step(slot, failures.get(signer))
            if self._slots.get(signer) is not slot:
                continue
            if slot.is_retiring:
                self.wake(signer)  # its worker retires it
            else:
                self._rest(slot, again_s, is_behind=is_behind)
        self._start_batches()

    def _after_batch_step(self, slot: LaneSlot, error: Exception | None) -> float | None:
        """Return the seconds until the next step, or None."""
        if error is None:
            return self._after_success(slot, next_batch_step_in_s(slot.lane))
        if isinstance(error, NeedsOwnStep):
            slot.must_step_alone = True
            return 0.0
        slot.must_step_alone = isinstance(error, ChainReplaced)  # its own step protects the signer
        return self._after_failure(slot, error)

    def _begin(self, slots: Sequence[LaneSlot]) -> None:
        signers = [slot.lane.signer for slot in slots]
        self._queued.difference_update(signers)
        self._stepping.update(signers)
        now_s = time.monotonic()
        self.observer.note("waited", seconds=[now_s - slot.queued_at_s for slot in slots])

    def _end(self, signers: Sequence[Signer]) -> None:
        self._stepping.difference_update(signers)
        for signer in [signer for signer in signers if signer in self._queued]:  # woken during the step
            if (slot := self._slots.get(signer)) is not None:
                self._enqueue(slot)
            else:
                self._queued.discard(signer)

    def _rest(self, slot: LaneSlot, again_s: float | None, *, is_behind: bool) -> None:
        """Set the timer of a lane after its step, or wake it at once.

        `is_behind` says that a block arrived during the step, and the step may not have seen it.
        """
        if again_s is not None:
            self._wake_later(slot, again_s)
        lane = slot.lane
        if not lane.wants_blocks:
            self._awaiting_blocks.pop(lane.signer, None)
        elif is_behind:
            self.wake(lane.signer)
        else:
            self._awaiting_blocks[lane.signer] = lane
        if lane.reconciled and lane.is_idle and lane.signer not in self._queued:
            self._active.pop(lane.signer, None)

    def _wake_later(self, slot: LaneSlot, seconds: float) -> None:
        signer = slot.lane.signer
        if seconds <= 0:
            self.wake(signer)
        elif signer not in self._queued:
            self._timers.set(slot, seconds)

    async def _step(self, slot: LaneSlot) -> float | None:
        """Step a lane, and return the seconds until the next step, or None."""
        try:
            again_s = await lane_step(slot.lane, self._share())
        except Exception as error:  # noqa: BLE001 - a loop's edge: it is handled, and the cause is logged
            return self._after_failure(slot, error)
        return self._after_success(slot, again_s)

    def _share(self) -> int:
        return fair_share(len(self._queued) + len(self._stepping))

    def _after_success(self, slot: LaneSlot, again_s: float | None) -> float | None:
        lane = slot.lane
        slot.reset_failures()
        self.failures.forget(lane.signer)
        lane.on_success()
        if lane.reconciled and not lane.finality_unknown and self._slots.get(lane.signer) is slot:
            self.forks.discard(lane.signer)
        return again_s

    def _after_failure(self, slot: LaneSlot, error: Exception) -> float | None:
        """Handle the failure of a step as the module's table says; return the seconds until the next step, or None."""
        lane = slot.lane
        match error:
            case LeaseUntrusted():
                slot.waits_for_trust = True  # the renewal wakes it
            case HandlerOnOtherNode():
                self._drop_slot(slot)
                self.on_given_up(lane)
            case Fenced():
                self._drop_slot(slot)
                self.on_lost(lane.signer)
            case StateMoved() | UnreadableRow():
                _log.warning("%s", error)
                if slot.may_reload():
                    lane.on_state_moved()
                    return 0.0
                self._lose(slot, error)
            case RpcError() | SigningError() | UnknownSigner():
                return self._pause(slot, error)
            case _:
                self._lose(slot, error)
        return None

    def _lose(self, slot: LaneSlot, error: Exception) -> None:
        lane, kind = slot.lane, type(error).__name__
        if self.is_database_failure(error):
            _log.warning(
                "%s: the database does not answer (%s); the lane is acquired again", lane.signer, kind
            )
        else:
            _log.error("a step of %s failed; the lane is acquired again", lane.signer, exc_info=error)
        self.observer.note("lane_lost", signer=lane.signer, token=lane.term.token, error=kind)
        self._drop_slot(slot)
        if self.is_database_failure(error):
            self.on_lost(lane.signer)
        else:
            self.on_failing(lane.signer, self.failures.add(lane.signer, error))

    def _pause(self, slot: LaneSlot, error: Exception) -> float | None:
        _log.warning("the lane of %s paused and will be retried: %s", slot.lane.signer, error)
        lane = slot.lane
        lane.on_failing(self.failures.pause(lane.signer, lane.now_s()))
        slot.lacks_chain = isinstance(error, RpcError)
        slot.must_step_alone |= is_stalled(lane)  # only its own step records that
        pause_s = slot.pause_s()
        if slot.never_started and self._may_give_up(slot):
            self.failures.handed_over(lane.signer)
            self._drop_slot(slot)
            self.on_given_up(lane)
            return None
        return pause_s

    def _may_give_up(self, slot: LaneSlot) -> bool:
        """Return whether another node may do better. It is tried less often each time, so that signers do not circulate."""
        lane = slot.lane
        since_s = lane.failing_since_s
        after_s = self.failures.hand_over_after_s(lane.signer, FIRST_GIVE_UP_S)
        return (
            since_s is not None
            and lane.now_s() - since_s >= after_s
            and self.is_served_elsewhere(lane.signer)
        )
