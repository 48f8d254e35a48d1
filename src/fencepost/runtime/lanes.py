"""The lanes of this node, and the workers that step them.

A signer belongs to worker `hash(signer) % N`; a worker steps one lane at a time, and signers of different workers run
side by side. Those that have something plain to do, which is nearly all of a crowd, are swept instead: who is woken in
the same turn of the loop takes its step together with the others (`application/sweep.py`). As many are worked for at a
time as there are workers. A signer is strictly serial: one that is woken while it is stepped or swept stands in line
when that has ended.

A step that fails is judged here, and nowhere else:

- FENCED: the term is over; the lane and its queue are dropped, nothing more is written.
- a row moved: the lane is read again.
- a node can't be reached: later, with a growing pause; a lane that could not even be reconciled is given up, so that
  a node with a better connection may have it.
- anything else, the database's errors above all: the outcome is unknown, so the lane is dropped and acquired anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fencepost.application.allocate import room
from fencepost.application.lane import HandlerElsewhere, Lane, StateMoved, Untrusted
from fencepost.application.ports import Observer
from fencepost.application.step import come_back_in_s, step
from fencepost.application.sweep import StepAlone, is_plain, may_be_plain, sweep, weight
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term
from fencepost.errors import Fenced, RpcError, SigningError, UnknownSigner
from fencepost.runtime.alarms import Alarms
from fencepost.runtime.forks import Forks
from fencepost.runtime.looping import IsDatabaseFailure, is_broken_connection
from fencepost.runtime.shares import fair_share, sweep_size
from fencepost.runtime.slot import Slot

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Lanes:
    workers: int
    make_lane: Callable[[Term], Lane]
    observer: Observer
    on_lost: Callable[[Signer], None]  # the lane is gone, but its work is not: it should be acquired again
    on_given_up: Callable[[Lane], None]  # the lease is still ours: release it
    on_retired: Callable[[Lane], None]  # its last step has ended, as was asked for: release it
    is_database_failure: IsDatabaseFailure = is_broken_connection
    _slots: dict[Signer, Slot] = field(default_factory=dict)
    _ready: list[asyncio.Queue[Signer]] = field(default_factory=list)
    _at_work: dict[Signer, Lane] = field(default_factory=dict)  # the others rest
    _watchful: dict[Signer, Lane] = field(default_factory=dict)
    _heads: int = 0  # how often one has moved
    _queued: set[Signer] = field(default_factory=set)
    _stepping: set[Signer] = field(default_factory=set)
    _crowd: deque[Signer] = field(default_factory=deque)  # woken, and to be swept if they are plain
    _sweeps: asyncio.TaskGroup | None = None  # while it runs
    _alarms: Alarms = field(init=False)
    forks: Forks = field(default_factory=Forks)

    def __post_init__(self) -> None:
        self._alarms = Alarms(lambda slot: self.wake(slot.lane.signer))
        self._ready = [asyncio.Queue() for _ in range(self.workers)]

    def __contains__(self, signer: Signer) -> bool:
        return signer in self._slots

    def __iter__(self) -> Iterator[Lane]:
        return iter([slot.lane for slot in self._slots.values()])

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, signer: Signer) -> Lane | None:
        slot = self._slots.get(signer)
        return slot.lane if slot else None

    def terms(self) -> list[Term]:
        return [slot.lane.term for slot in self._slots.values()]

    def terms_due(self, now_s: float, *, every_s: float) -> list[Term]:
        """Those to be renewed in a turn that comes every so often: all at work, and resting ones every other time."""
        due = []
        for signer, slot in self._slots.items():
            term = slot.lane.term
            if signer in self._at_work or now_s - term.renewed_at_s >= (term.duration_s - every_s) / 2:
                due.append(term)
        return due

    def watchful(self) -> list[Lane]:
        """Lanes to which any block may tell something. The others at work wait for one with a hash of theirs."""
        return list(self._watchful.values())

    def head_moved(self) -> None:
        """Those that are being stepped look again afterwards, if they want to."""
        self._heads += 1

    def open(self, term: Term) -> None:
        lane = self.make_lane(term)
        lane.forked_at = self.forks.lowest(term.signer)
        self._slots[term.signer] = Slot(lane, self._worker_of(term.signer))
        self.wake(term.signer)

    def forked(self, signer: Signer, block: int) -> None:
        """What ended for it in this block or above may be undone: its lane, or the next one here, looks into that."""
        self.forks.add(signer, block)
        if (slot := self._slots.get(signer)) is not None:
            at = slot.lane.forked_at
            slot.lane.forked_at = block if at is None else min(block, at)
            self.wake(signer)

    def wake(self, signer: Signer) -> None:
        slot = self._slots.get(signer)
        if slot is None:
            return
        self._at_work[signer] = slot.lane
        self._watchful.pop(signer, None)  # its step sees the newest view
        slot.alarm_s = None
        if signer not in self._queued:
            self._queued.add(signer)
            slot.queued_at_s = time.monotonic()
            if signer not in self._stepping:
                self._line_up(slot)

    def _line_up(self, slot: Slot) -> None:
        if self._sweeps is None or slot.steps_alone or slot.leaves or not may_be_plain(slot.lane.policy):
            self._ready[slot.worker].put_nowait(slot.lane.signer)
            return
        if not self._crowd:
            asyncio.get_running_loop().call_soon(self._start_sweeps)
        self._crowd.append(slot.lane.signer)

    def _start_sweeps(self) -> None:
        """A turn of the loop, a step or a sweep is over. Of those who were woken the plain ones are swept, by chain."""
        while self._crowd and len(self._stepping) < self.workers and self._sweeps is not None:
            plain: dict[int, list[Slot]] = {}
            items, share, most = 0, self._share(), sweep_size(len(self._crowd))
            while self._crowd and items < most:
                signer = self._crowd.popleft()
                slot = self._slots.get(signer)
                if slot is None:
                    self._queued.discard(signer)
                elif is_plain(slot.lane) and not (slot.steps_alone or slot.leaves):
                    plain.setdefault(signer.chain_id, []).append(slot)
                    items += weight(slot.lane, share)
                else:
                    self._ready[slot.worker].put_nowait(signer)
            for slots in plain.values():
                self._begin(slots)
                self._sweeps.create_task(self._sweep(slots), name="sweep")

    def _worker_of(self, signer: Signer) -> int:
        return zlib.crc32(str(signer).encode()) % self.workers

    def drop(self, signer: Signer) -> None:
        self._at_work.pop(signer, None)
        self._watchful.pop(signer, None)
        slot = self._slots.pop(signer, None)
        if slot is None:
            return
        slot.lane.await_nothing()
        slot.alarm_s = None

    def _let_go(self, slot: Slot) -> None:
        """Of this term only: while its last step ran, a newer one may have come in its place."""
        if self._slots.get(slot.lane.signer) is slot:
            self.drop(slot.lane.signer)

    def is_busy(self, signer: Signer) -> bool:
        """It is being stepped, or about to be."""
        return signer in self._stepping or signer in self._queued

    @property
    def waiting(self) -> int:
        """How many lanes wait for their worker."""
        return len(self._queued)

    def retire(self, signer: Signer) -> None:
        """No new step; `on_retired` hears of it when none is under way any more, which may be now."""
        slot = self._slots.get(signer)
        if slot is None or slot.leaves:
            return
        slot.leaves = True
        if slot.lane.write_by_s is not None:
            self.wake(signer)  # its worker writes down what it knows
        elif signer not in self._stepping:
            self._retire_now(slot)

    async def _write_and_retire(self, slot: Slot) -> None:
        try:
            await slot.lane.write_held()
        except Exception as error:  # noqa: BLE001 - a loop's edge: the next owner finds out by itself what isn't written
            _log.warning("%s leaves with something unwritten: %s", slot.lane.signer, error)
        if self._slots.get(slot.lane.signer) is slot:
            self._retire_now(slot)

    def _retire_now(self, slot: Slot) -> None:
        self.drop(slot.lane.signer)
        self.on_retired(slot.lane)

    def renewed(self, term: Term) -> None:
        slot = self._slots.get(term.signer)
        if slot is None or slot.lane.term.token != term.token:
            return
        slot.lane.term = term
        if slot.waits_for_trust:
            slot.waits_for_trust = False
            self.wake(term.signer)

    def idle(self, *, longer_than_s: float, now_s: float) -> list[Lane]:
        """Lanes that have had nothing to do for a while, and are not at work now."""
        found = []
        for signer, slot in self._slots.items():
            if not slot.lane.reconciled or not slot.lane.is_idle or self.is_busy(signer):
                slot.idle_since_s = None
            elif slot.idle_since_s is None:
                slot.idle_since_s = now_s
            elif now_s - slot.idle_since_s >= longer_than_s:
                found.append(slot.lane)
        return found

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for index in range(self.workers):
                group.create_task(self._work(self._ready[index]), name=f"lane-worker-{index}")
            self._sweeps = group
            try:
                await asyncio.get_running_loop().create_future()  # until it is cancelled
            finally:
                self._sweeps = None

    async def _work(self, ready: asyncio.Queue[Signer]) -> None:
        while True:
            signer = await ready.get()
            slot = self._slots.get(signer)
            if slot is None or slot.leaves:
                self._queued.discard(signer)
                if slot is not None:
                    await self._write_and_retire(slot)
                continue
            self._begin([slot])
            slot.steps_alone = False
            heads = self._heads
            try:
                again_s = await self._step(slot)
            finally:
                self._end([signer])
            await self._after_step(slot, again_s, is_behind=heads != self._heads)
            self._start_sweeps()

    async def _after_step(self, slot: Slot, again_s: float | None, *, is_behind: bool) -> None:
        if self._slots.get(slot.lane.signer) is not slot:
            return
        if slot.leaves:
            await self._write_and_retire(slot)
        else:
            self._rest(slot, again_s, is_behind=is_behind)

    async def _sweep(self, slots: Sequence[Slot]) -> None:
        heads = self._heads
        signers = [slot.lane.signer for slot in slots]
        try:
            left = await sweep([slot.lane for slot in slots], self._share())
        except Exception as error:  # noqa: BLE001 - a loop's edge: all of them are judged by it
            left = dict.fromkeys(signers, error)
        finally:
            self._end(signers)
        is_behind = heads != self._heads
        for slot, signer in zip(slots, signers, strict=True):
            again_s = self._after_sweep(slot, left.get(signer))
            if self._slots.get(signer) is not slot:
                continue
            if slot.leaves:
                self.wake(signer)  # its worker retires it
            else:
                self._rest(slot, again_s, is_behind=is_behind)
        self._start_sweeps()

    def _after_sweep(self, slot: Slot, error: Exception | None) -> float | None:
        """When to step again."""
        if error is None:
            has_more = slot.lane.queue and room(slot.lane) > 0
            return self._went_well(slot, 0.0 if has_more else come_back_in_s(slot.lane))
        if isinstance(error, StepAlone):
            slot.steps_alone = True
            return 0.0
        return self._judge(slot, error)

    def _begin(self, slots: Sequence[Slot]) -> None:
        signers = [slot.lane.signer for slot in slots]
        self._queued.difference_update(signers)
        self._stepping.update(signers)
        now_s = time.monotonic()
        self.observer.note("waited", seconds=[now_s - slot.queued_at_s for slot in slots])

    def _end(self, signers: Sequence[Signer]) -> None:
        self._stepping.difference_update(signers)
        for signer in [signer for signer in signers if signer in self._queued]:  # woken meanwhile
            if (slot := self._slots.get(signer)) is not None:
                self._line_up(slot)
            else:
                self._queued.discard(signer)

    def _rest(self, slot: Slot, again_s: float | None, *, is_behind: bool) -> None:
        """`is_behind`: a block came while it was stepped, and the step may have missed it."""
        if again_s is not None:
            self._wake_later(slot, again_s)
        lane = slot.lane
        if not lane.wants_blocks:
            self._watchful.pop(lane.signer, None)
        elif is_behind:
            self.wake(lane.signer)
        else:
            self._watchful[lane.signer] = lane
        if lane.reconciled and lane.is_idle and lane.signer not in self._queued:
            self._at_work.pop(lane.signer, None)

    def _wake_later(self, slot: Slot, seconds: float) -> None:
        signer = slot.lane.signer
        if seconds <= 0:
            self.wake(signer)
        elif signer not in self._queued:
            self._alarms.set(slot, seconds)

    async def _step(self, slot: Slot) -> float | None:
        """When to step again."""
        try:
            again_s = await step(slot.lane, self._share())
        except Exception as error:  # noqa: BLE001 - a loop's edge: it is judged, and the cause is logged
            return self._judge(slot, error)
        return self._went_well(slot, again_s)

    def _share(self) -> int:
        return fair_share(len(self._queued) + len(self._stepping))

    def _went_well(self, slot: Slot, again_s: float | None) -> float | None:
        lane = slot.lane
        slot.went_well()
        if lane.reconciled and not lane.is_unsure and self._slots.get(lane.signer) is slot:
            self.forks.looked_into(lane.signer)
        return again_s

    def _judge(self, slot: Slot, error: Exception) -> float | None:
        """When to step again: the one place where a step's failure is judged."""
        lane = slot.lane
        match error:
            case Untrusted():
                slot.waits_for_trust = True  # the renewal wakes it
            case HandlerElsewhere():
                self._let_go(slot)
                self.on_given_up(lane)
            case Fenced():
                self._let_go(slot)
                self.on_lost(lane.signer)
            case StateMoved():
                _log.warning("%s", error)
                if slot.may_be_read_again():
                    lane.reconciled = False
                    return 0.0
                self._lose(slot, error)
            case RpcError() | SigningError() | UnknownSigner():
                return self._pause(slot, error)
            case _:
                self._lose(slot, error)
        return None

    def _lose(self, slot: Slot, error: Exception) -> None:
        lane, kind = slot.lane, type(error).__name__
        if self.is_database_failure(error):
            _log.warning("%s: the database does not answer (%s); the lane is read anew", lane.signer, kind)
        else:
            _log.error("a step of %s failed; the lane is read anew", lane.signer, exc_info=error)
        self.observer.note("lane_lost", signer=lane.signer, token=lane.term.token, error=kind)
        self._let_go(slot)
        self.on_lost(lane.signer)

    def _pause(self, slot: Slot, error: Exception) -> float | None:
        _log.warning("%s waits: %s", slot.lane.signer, error)
        pause_s = slot.pause_s()
        if pause_s is None:
            self._let_go(slot)
            self.on_given_up(slot.lane)
        return pause_s
