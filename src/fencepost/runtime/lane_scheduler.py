"""Schedule the rounds of this node's lanes.

A lane that is woken waits for the end of the event loop's iteration. Then the woken lanes are put into sets, and each set has
one round (`application/lane_round.py`):

- Plain lanes of one chain, which are nearly all lanes under load, share a set: their round makes only calls that all of them
  need. A common set takes `set_size` transactions.
- Every other lane is a set of its own, because its round may wait for an estimate, a key service, a handler or an operator
  command. So is a lane that left a common set.

At most `workers` lanes are in common sets, and at most `workers` lanes have a round of their own. The two bounds are separate:
however many lanes wait for something slow, plain lanes go on, and a slow lane takes no more than its own place. A signer is
strictly serial: a lane that is woken during its round is queued again when the round has ended.

The failure of a round is handled here, and only here:

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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fencepost.application.allocate import MAX_NONCES_PER_COMMIT
from fencepost.application.lane import HandlerOnOtherNode, Lane, LeaseUntrusted, StateMoved
from fencepost.application.lane_round import Outcome, allows_common_rounds, is_plain, run_round, weight
from fencepost.application.lane_set import NeedsOwnRound
from fencepost.application.ports import Observer, UnreadableRow
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term
from fencepost.errors import Fenced, RpcError, SigningError, UnknownSigner
from fencepost.runtime.lane_slot import LaneSlot
from fencepost.runtime.lane_timers import LaneTimers
from fencepost.runtime.pending_forks import PendingForks
from fencepost.runtime.repeated_failures import RepeatedFailures
from fencepost.tasks.service_loop import IsDatabaseFailure, is_broken_connection

_log = logging.getLogger(__name__)

# With many busy lanes, a lane signs this many before it sends: the chain must not idle until every lane has signed.
MIN_NONCES_PER_ROUND = 32

# Transactions per common set. The minimum fits into one request to an endpoint: several small sets run concurrently. With
# so many waiting lanes that they have to wait anyway, larger sets cost less.
MIN_SET_SIZE, MAX_SET_SIZE = 100, 256

# A lane that was never reconciled is given up after it has failed for this long, doubling each time it was in vain.
FIRST_GIVE_UP_S = 1.0


def fair_share(lanes: int) -> int:
    """Return how many nonces a lane allocates in one round: they are signed together while the other lanes wait."""
    return max(MIN_NONCES_PER_ROUND, MAX_NONCES_PER_COMMIT // lanes)


def set_size(lanes: int) -> int:
    """Return how many transactions a common set takes with this many waiting lanes: a quarter, within bounds."""
    return max(MIN_SET_SIZE, min(MAX_SET_SIZE, lanes // 4))


@dataclass(slots=True)
class LaneScheduler:
    """Hold the lanes of the acquired signers, and run a round of each lane when it is woken."""

    workers: int
    make_lane: Callable[[Term], Lane]
    observer: Observer
    on_lost: Callable[[Signer], None]  # the lane was dropped with work left: acquire the signer again
    on_failing: Callable[[Signer, float], None]  # the same, but not before this many seconds
    on_given_up: Callable[[Lane], None]  # the lane was dropped, its lease is still valid: release it
    on_retired: Callable[[Lane], None]  # the last round of a retiring lane has ended: release its lease
    is_served_elsewhere: Callable[[Signer], bool] = lambda _signer: True  # another node may serve the signer
    is_database_failure: IsDatabaseFailure = is_broken_connection
    _slots: dict[Signer, LaneSlot] = field(default_factory=dict)
    _active: dict[Signer, Lane] = field(default_factory=dict)  # lanes with work; the others are idle
    _awaiting_blocks: dict[Signer, Lane] = field(default_factory=dict)
    _heads: int = 0  # how often a head has moved
    _queued: set[Signer] = field(default_factory=set)
    _in_round: set[Signer] = field(default_factory=set)
    _woken: deque[Signer] = field(default_factory=deque)  # to be put into sets
    _alone: deque[Signer] = field(default_factory=deque)  # each waits for a round of its own
    _common_count: int = 0  # lanes in common sets
    _lone_count: int = 0  # lanes with a round of their own
    _is_start_scheduled: bool = False
    _rounds: asyncio.TaskGroup | None = None  # while the scheduler runs
    _timers: LaneTimers = field(init=False)
    forks: PendingForks = field(default_factory=PendingForks)
    failures: RepeatedFailures = field(default_factory=RepeatedFailures)

    def __post_init__(self) -> None:
        """Create the timers."""
        self._timers = LaneTimers(lambda slot: self.wake(slot.lane.signer))

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
        """Record that a head moved: a lane in a round is woken again if it waits for blocks."""
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
        self._slots[term.signer] = LaneSlot(lane)
        self.wake(term.signer)

    def forked(self, signer: Signer, block: int) -> None:
        """Record that a fork may have undone what ended in this block or above; the lane, or the next one here, checks it."""
        self.forks.add(signer, block)
        if (slot := self._slots.get(signer)) is not None:
            slot.lane.on_fork(block)
            self.wake(signer)

    def wake(self, signer: Signer) -> None:
        """Queue a round of the signer's lane, unless one is queued already."""
        slot = self._slots.get(signer)
        if slot is None:
            return
        self._active[signer] = slot.lane
        self._awaiting_blocks.pop(signer, None)  # its round sees the newest view
        slot.timer_due_s = None
        if signer not in self._queued:
            self._queued.add(signer)
            slot.queued_at_s = time.monotonic()
            if signer not in self._in_round:
                self._enqueue(slot)

    def _enqueue(self, slot: LaneSlot) -> None:
        is_alone = slot.needs_own_round or slot.is_retiring or not allows_common_rounds(slot.lane.settings)
        (self._alone if is_alone else self._woken).append(slot.lane.signer)
        if self._rounds is not None and not self._is_start_scheduled:
            self._is_start_scheduled = True
            asyncio.get_running_loop().call_soon(self._start_rounds)

    def _start_rounds(self) -> None:
        """Start the rounds of waiting lanes. Called after an iteration of the event loop with wake-ups, and after a round."""
        self._is_start_scheduled = False
        while self._woken and self._common_count < self.workers and self._rounds is not None:
            for slots in self._next_common_sets():
                self._begin(slots)
                self._common_count += len(slots)
                self._rounds.create_task(self._run_common(slots), name="lane_round")
        while self._alone and self._lone_count < self.workers and self._rounds is not None:
            signer = self._alone.popleft()
            if (slot := self._slots.get(signer)) is None:
                self._queued.discard(signer)
                continue
            self._begin([slot])
            self._lone_count += 1
            self._rounds.create_task(self._run_alone(slot), name="lane_round")

    def _next_common_sets(self) -> list[list[LaneSlot]]:
        """Return the next plain lanes, one set per chain; queue the others for rounds of their own."""
        plain: dict[int, list[LaneSlot]] = {}
        items, share, most = 0, self._share(), set_size(len(self._woken))
        while self._woken and items < most:
            signer = self._woken.popleft()
            slot = self._slots.get(signer)
            if slot is None:
                self._queued.discard(signer)
            elif is_plain(slot.lane) and not (slot.needs_own_round or slot.is_retiring):
                plain.setdefault(signer.chain_id, []).append(slot)
                items += weight(slot.lane, share)
            else:
                self._alone.append(signer)
        return list(plain.values())

    def drop(self, signer: Signer) -> None:
        """Remove the lane of a signer. A round that is running ends by itself, and its writes may still be rejected."""
        self._active.pop(signer, None)
        self._awaiting_blocks.pop(signer, None)
        slot = self._slots.pop(signer, None)
        if slot is None:
            return
        slot.lane.stop_awaiting_blocks()
        slot.timer_due_s = None

    def _drop_slot(self, slot: LaneSlot) -> None:
        """Drop the lane of this term only: a newer term may have replaced it during its last round."""
        if self._slots.get(slot.lane.signer) is slot:
            self.drop(slot.lane.signer)

    def is_busy(self, signer: Signer) -> bool:
        """Return whether the lane is in a round or queued for one."""
        return signer in self._in_round or signer in self._queued

    @property
    def waiting(self) -> int:
        """Return how many lanes wait for a round."""
        return len(self._queued)

    def retire(self, signer: Signer) -> None:
        """Start no new round, and call `on_retired` when no round is running, which may be at once."""
        slot = self._slots.get(signer)
        if slot is None or slot.is_retiring:
            return
        slot.is_retiring = True
        if slot.lane.write_by_s is not None:
            self.wake(signer)  # its last turn flushes the deferred writes
        elif signer not in self._in_round:
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
        """Return the lanes whose rounds have all failed for so long, the last one because of the endpoints."""
        found = []
        for signer, slot in self._slots.items():
            since_s = slot.lane.failing_since_s
            after_s = self.failures.hand_over_after_s(signer, longer_than_s)
            if slot.lacks_chain and since_s is not None and now_s - since_s >= after_s:
                found.append(slot.lane)
        return found

    async def run(self) -> None:
        """Run rounds until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._rounds = group
            self._start_rounds()
            try:
                await asyncio.get_running_loop().create_future()  # until it is cancelled
            finally:
                self._rounds = None

    async def _run_alone(self, slot: LaneSlot) -> None:
        """Run a round of a lone lane, or the last turn of a retiring one."""
        try:
            if slot.is_retiring:
                try:
                    await self._write_and_retire(slot)
                finally:
                    self._end([slot.lane.signer])
            else:
                slot.needs_own_round = False
                await self._run_set([slot])
        finally:
            self._lone_count -= 1
        self._start_rounds()

    async def _run_common(self, slots: Sequence[LaneSlot]) -> None:
        try:
            await self._run_set(slots)
        finally:
            self._common_count -= len(slots)
        self._start_rounds()

    async def _run_set(self, slots: Sequence[LaneSlot]) -> None:
        """Run a round of these lanes, and decide for each when the next one is due."""
        heads = self._heads
        signers = [slot.lane.signer for slot in slots]
        outcomes: dict[Signer, Outcome] = {}
        try:
            outcomes = await run_round([slot.lane for slot in slots], self._share())
        except Exception as error:  # noqa: BLE001 - a loop's edge: it is handled as the failure of each lane
            outcomes = dict.fromkeys(signers, error)
        finally:
            self._end(signers)
        is_behind = heads != self._heads
        for slot, signer in zip(slots, signers, strict=True):
            again_s = self._after_round(slot, outcomes[signer])
            if self._slots.get(signer) is not slot:
                continue
            if slot.is_retiring:
                self.wake(signer)  # its last turn retires it
            else:
                self._rest(slot, again_s, is_behind=is_behind)

    def _after_round(self, slot: LaneSlot, outcome: Outcome) -> float | None:
        """Return the seconds until the next round, or None."""
        if isinstance(outcome, NeedsOwnRound):
            slot.needs_own_round = True
            return 0.0
        if isinstance(outcome, Exception):
            return self._after_failure(slot, outcome)
        self._after_success(slot)
        return outcome

    def _begin(self, slots: Sequence[LaneSlot]) -> None:
        signers = [slot.lane.signer for slot in slots]
        self._queued.difference_update(signers)
        self._in_round.update(signers)
        now_s = time.monotonic()
        self.observer.note("waited", seconds=[now_s - slot.queued_at_s for slot in slots])

    def _end(self, signers: Sequence[Signer]) -> None:
        self._in_round.difference_update(signers)
        for signer in [signer for signer in signers if signer in self._queued]:  # woken during the round
            if (slot := self._slots.get(signer)) is not None:
                self._enqueue(slot)
            else:
                self._queued.discard(signer)

    def _rest(self, slot: LaneSlot, again_s: float | None, *, is_behind: bool) -> None:
        """Set the timer of a lane after its round, or wake it at once.

        `is_behind` says that a block arrived during the round, and the round may not have seen it.
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

    def _share(self) -> int:
        return fair_share(len(self._queued) + len(self._in_round))

    def _after_success(self, slot: LaneSlot) -> None:
        lane = slot.lane
        slot.reset_failures()
        self.failures.forget(lane.signer)
        lane.on_success()
        if lane.reconciled and not lane.finality_unknown and self._slots.get(lane.signer) is slot:
            self.forks.discard(lane.signer)

    def _after_failure(self, slot: LaneSlot, error: Exception) -> float | None:
        """Handle the failure of a round as the module's table says; return the seconds until the next one, or None."""
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
            _log.error("a round of %s failed; the lane is acquired again", lane.signer, exc_info=error)
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
