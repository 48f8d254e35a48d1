"""The lanes of this node, and the workers that step them.

A signer belongs to worker `hash(signer) % N`; a worker steps one lane at a time, so a signer is strictly serial and
signers of different workers run side by side. A step that fails is judged here, and nowhere else:

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fencepost.application.allocate import MOST_AT_ONCE
from fencepost.application.lane import HandlerElsewhere, Lane, StateMoved, Untrusted
from fencepost.application.ports import Observer
from fencepost.application.step import step
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term
from fencepost.errors import Fenced, RpcError, SigningError, UnknownSigner
from fencepost.runtime.looping import IsDatabaseFailure, is_broken_connection

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
MOST_PAUSE_S = 15.0
MOST_FAILURES_UNRECONCILED = 3
MOST_MOVES_IN_A_ROW = 5

# In a crowd a lane signs this many before it sends: the chain is not left idle until everybody has signed everything.
LEAST_AT_ONCE = 32

# A fork that no lane here has looked into is another node's by then.
FORK_KEPT_S = 120.0


def fair_share(lanes: int) -> int:
    """How many nonces each gives at once: they are signed in one go, and the others wait for that."""
    return max(LEAST_AT_ONCE, MOST_AT_ONCE // lanes)


@dataclass(slots=True)
class _Slot:
    lane: Lane
    worker: int
    failures: int = 0
    moves: int = 0
    timer: asyncio.TimerHandle | None = None
    waits_for_trust: bool = False
    leaves: bool = False  # no further step: the lease goes back when the one under way has ended
    idle_since_s: float | None = None
    queued_at_s: float = 0.0


@dataclass(slots=True)
class Lanes:
    workers: int
    make_lane: Callable[[Term], Lane]
    observer: Observer
    on_lost: Callable[
        [Signer], None
    ]  # the lane is gone, but its work is not: somebody should acquire it again
    on_given_up: Callable[[Lane], None]  # the lease is still ours: release it
    on_retired: Callable[[Lane], None]  # its last step has ended, as was asked for: release it
    is_database_failure: IsDatabaseFailure = is_broken_connection
    _slots: dict[Signer, _Slot] = field(default_factory=dict)
    _ready: list[asyncio.Queue[Signer]] = field(default_factory=list)
    _at_work: dict[Signer, Lane] = field(default_factory=dict)  # the others rest
    _watchful: dict[Signer, Lane] = field(default_factory=dict)
    _heads: int = 0  # how often one has moved
    _queued: set[Signer] = field(default_factory=set)
    _stepping: set[Signer] = field(default_factory=set)
    _forks: dict[Signer, list[tuple[int, float]]] = field(
        default_factory=dict
    )  # block, when: not looked into
    now_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
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
        lane.forked_at = min((block for block, _ in self._young_forks(term.signer)), default=None)
        self._slots[term.signer] = _Slot(lane, self._worker_of(term.signer))
        self.wake(term.signer)

    def forked(self, signer: Signer, block: int) -> None:
        """What ended for it in this block or above may be undone.

        Its lane looks into that; should the lane be lost over it, the next one here does, until one has.
        """
        deeper = [fork for fork in self._young_forks(signer) if fork[0] < block]  # the others are in this one
        self._forks[signer] = [*deeper, (block, self.now_s())]
        if (slot := self._slots.get(signer)) is not None:
            at = slot.lane.forked_at
            slot.lane.forked_at = block if at is None else min(block, at)
            self.wake(signer)

    def _young_forks(self, signer: Signer) -> list[tuple[int, float]]:
        oldest_s = self.now_s() - FORK_KEPT_S
        return [fork for fork in self._forks.get(signer, ()) if fork[1] > oldest_s]

    def wake(self, signer: Signer) -> None:
        slot = self._slots.get(signer)
        if slot is None:
            return
        self._at_work[signer] = slot.lane
        self._watchful.pop(signer, None)  # its step sees the newest view
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        if signer not in self._queued:
            self._queued.add(signer)
            slot.queued_at_s = time.monotonic()
            self._ready[slot.worker].put_nowait(signer)

    def _worker_of(self, signer: Signer) -> int:
        return zlib.crc32(str(signer).encode()) % self.workers

    def drop(self, signer: Signer) -> None:
        self._at_work.pop(signer, None)
        self._watchful.pop(signer, None)
        slot = self._slots.pop(signer, None)
        if slot is None:
            return
        slot.lane.await_nothing()
        if slot.timer is not None:
            slot.timer.cancel()

    def _let_go(self, slot: _Slot) -> None:
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

    async def _write_and_retire(self, slot: _Slot) -> None:
        try:
            await slot.lane.write_held()
        except Exception as error:  # noqa: BLE001 - a loop's edge: the next owner finds out by itself what isn't written
            _log.warning("%s leaves with something unwritten: %s", slot.lane.signer, error)
        if self._slots.get(slot.lane.signer) is slot:
            self._retire_now(slot)

    def _retire_now(self, slot: _Slot) -> None:
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

    async def _work(self, ready: asyncio.Queue[Signer]) -> None:
        while True:
            signer = await ready.get()
            self._queued.discard(signer)
            slot = self._slots.get(signer)
            if slot is None:
                continue
            if slot.leaves:
                await self._write_and_retire(slot)
                continue
            self.observer.note("waited", seconds=time.monotonic() - slot.queued_at_s)
            self._stepping.add(signer)
            heads = self._heads
            try:
                again_s = await self._step(slot)
            finally:
                self._stepping.discard(signer)
            if self._slots.get(signer) is not slot:
                continue
            await self._after_step(slot, again_s, is_behind=heads != self._heads)

    async def _after_step(self, slot: _Slot, again_s: float | None, *, is_behind: bool) -> None:
        """`is_behind`: a block came while it was stepped, and the step may have missed it."""
        if slot.leaves:
            await self._write_and_retire(slot)
            return
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

    def _wake_later(self, slot: _Slot, seconds: float) -> None:
        signer = slot.lane.signer
        if seconds <= 0:
            self.wake(signer)
        elif signer not in self._queued:
            slot.timer = asyncio.get_running_loop().call_later(seconds, self.wake, signer)

    async def _step(self, slot: _Slot) -> float | None:
        """When to step again: the one place where a step's failure is judged."""
        lane = slot.lane
        try:
            again_s = await step(lane, fair_share(len(self._queued) + len(self._stepping)))
        except Untrusted:
            slot.waits_for_trust = True
            return None  # the renewal wakes it
        except HandlerElsewhere:
            self._let_go(slot)
            self.on_given_up(lane)
            return None
        except Fenced:
            self._let_go(slot)
            self.on_lost(lane.signer)
            return None
        except StateMoved as error:
            slot.moves += 1
            _log.warning("%s", error)
            if slot.moves > MOST_MOVES_IN_A_ROW:
                self._lose(slot, error)
                return None
            lane.reconciled = False
            return 0.0
        except (RpcError, SigningError, UnknownSigner) as error:
            return self._pause(slot, error)
        except Exception as error:  # noqa: BLE001 - a loop's edge: the lane is dropped, the cause is logged
            self._lose(slot, error)
            return None
        slot.failures = slot.moves = 0
        if lane.reconciled and not lane.is_unsure and self._slots.get(lane.signer) is slot:
            self._forks.pop(lane.signer, None)
        return again_s

    def _lose(self, slot: _Slot, error: Exception) -> None:
        lane = slot.lane
        if self.is_database_failure(error):
            _log.warning(
                "%s: the database does not answer (%s); the lane is read anew",
                lane.signer,
                type(error).__name__,
            )
        else:
            _log.error("a step of %s failed; the lane is read anew", lane.signer, exc_info=error)
        self.observer.note("lane_lost", signer=lane.signer, token=lane.term.token, error=type(error).__name__)
        self._let_go(slot)
        self.on_lost(lane.signer)

    def _pause(self, slot: _Slot, error: Exception) -> float | None:
        slot.failures += 1
        lane = slot.lane
        _log.warning("%s waits: %s", lane.signer, error)
        if not lane.reconciled and slot.failures >= MOST_FAILURES_UNRECONCILED:
            self._let_go(slot)
            self.on_given_up(lane)
            return None
        return min(MOST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(slot.failures, 8)))
