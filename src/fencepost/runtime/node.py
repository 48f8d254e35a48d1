"""One node: it finds signers that have work, holds their leases, and keeps their lanes going.

A node is a process with an identity of its own (`incarnation`): a restart is another one, whatever its name. It runs
five loops and N lane workers in one task group; each loop has a `…_once` that tests can call by hand.

- seek: signers with work whose lease is free are acquired, unless they are left to a better owner for a moment. A
  wake-up makes it prompt, polling makes it certain, and the end of another node's lease is waited for to the point.
- renew: all leases in one statement, on the monotonic clock; what did not stand is dropped at once.
- heads: a view a chain; blocks that hold our hashes wake the lanes that wait for them.
- idle: leases that nobody needs go back.
- let go: leases go back when their last step has ended, and the others are told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.application.heads import ChainWatch, HeadChange
from fencepost.application.intake import Sample
from fencepost.application.lane import Lane
from fencepost.application.ports import Clock, Ledger, Observer
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.errors import FencepostError
from fencepost.runtime.following import Following, HeadFeed
from fencepost.runtime.lanes import Lanes
from fencepost.runtime.letting_go import LettingGo
from fencepost.runtime.routing import ALONE, Router

_log = logging.getLogger(__name__)

MOST_ACQUIRED_AT_ONCE = 200
GIVEN_UP_PAUSE_S = 3.0
STOP_STEP_WITHIN_S = 2.0

# A signer that another node turned out to hold is not tried again on a mere hint; its release is told, its end is seen.
HELD_ELSEWHERE_S = 10.0
MOST_HELD_ELSEWHERE = 20_000

EXPIRY_MARGIN_S = 0.005


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the loops turn."""

    seek_s: float = 1.0
    renew_s: float = 2.5
    idle_release_s: float = 30.0
    skew_allowance_s: float = 0.0
    handover_budget_s: float = 1.0


async def _never() -> float | None:
    return None


@dataclass(slots=True)
class Node:
    name: str
    incarnation: UUID
    ledger: Ledger
    clock: Clock
    observer: Observer
    watches: Mapping[int, ChainWatch]  # by chain id
    heads: Mapping[int, HeadFeed]  # by chain id
    addresses: frozenset[Address]  # whose keys this node holds
    pace: Pace
    make_lane: Callable[[Term], Lane]
    workers: int
    router: Router = field(default_factory=lambda: Router(ALONE))
    soonest_expiry: Callable[[], Awaitable[float | None]] = _never  # seconds, of leases of others
    lanes: Lanes = field(init=False)
    letting_go: LettingGo = field(init=False)
    following: Following = field(init=False)
    _wanted: set[Signer] = field(default_factory=set)  # to be acquired soon, besides what the ledger names
    _undone: set[Signer] = field(default_factory=set)  # a fork undid something: wanted until they were here
    _not_before_s: dict[Signer, float] = field(default_factory=dict)  # given up here for a while
    _held_elsewhere_s: dict[Signer, float] = field(default_factory=dict)  # until when hints are not for us
    _seek: asyncio.Event = field(default_factory=asyncio.Event)
    _seeking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _is_excluded: bool = False

    def __post_init__(self) -> None:
        self.lanes = Lanes(
            workers=self.workers,
            make_lane=self.make_lane,
            observer=self.observer,
            on_lost=self._on_lost,
            on_given_up=self._on_given_up,
            on_retired=lambda lane: self.letting_go.add(lane.term),
        )
        self.following = Following(
            self.watches, self.heads, self.lanes, self.ledger, on_undone=self._on_undone
        )
        self.letting_go = LettingGo(self.ledger, self.clock, self.observer)

    async def run(self) -> None:
        """Until cancelled; then what is under way is finished and the leases are given back."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.lanes.run(), name="lanes")
                group.create_task(self._loop(self.seek_once, self.pace.seek_s, wake=self._seek), name="seek")
                group.create_task(
                    self._loop(self.letting_go.once, self.pace.seek_s, wake=self.letting_go.wake),
                    name="let-go",
                )
                group.create_task(self._loop(self.renew_once, self.pace.renew_s), name="renew")
                group.create_task(
                    self._loop(self.idle_once, max(0.05, self.pace.idle_release_s / 4)), name="idle"
                )
                for chain_id in self.watches:
                    group.create_task(self.following.run(chain_id), name=f"heads-{chain_id}")
                group.create_task(self._until_stopped(), name="stop")
        except* _Stopped:
            pass

    async def stop(self) -> None:
        """Finish the step, release the leases, so that another node goes on at once."""
        self._stop.set()
        self._seek.set()

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        with suppress(TimeoutError):  # a database that hangs keeps its leases until they run out
            async with asyncio.timeout(STOP_STEP_WITHIN_S):
                async with self._seeking:
                    pass  # whatever was being acquired has its lane now, and goes back with the others
                await self._let_all_go()
        for term in self.lanes.terms():  # their steps take too long: what they still write is refused
            self.lanes.drop(term.signer)
            self.letting_go.add(term)
        with suppress(
            Exception
        ):  # the leases run out by themselves; a stop must not hang on a broken database
            async with asyncio.timeout(STOP_STEP_WITHIN_S):
                await self.letting_go.once()
        raise _Stopped

    async def _let_all_go(self) -> None:
        """Each as soon as its step has ended, not all when the last one has."""
        for term in self.lanes.terms():
            self.letting_go.wish(term.signer)
            self.lanes.retire(term.signer)
        while len(self.lanes):
            self.letting_go.wake.clear()
            with suppress(OSError):  # it stays with the lease's own end
                await self.letting_go.once()
            if len(self.lanes):
                await self.letting_go.wake.wait()

    async def _loop(
        self, once: Callable[[], object], every_s: float, *, wake: asyncio.Event | None = None
    ) -> None:
        while not self._stop.is_set():
            try:
                turn = once()
                if asyncio.iscoroutine(turn):
                    await turn
            except FencepostError as error:
                _log.warning("%s", error)
            except Exception:  # noqa: BLE001 - a loop's edge: the cause is logged, the next turn tries again
                _log.exception("a loop of node %s failed; it goes on", self.name)
            await self._rest(every_s, wake)

    async def _rest(self, seconds: float, wake: asyncio.Event | None) -> None:
        if wake is None:
            await self.clock.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()
        if not self._stop.is_set():
            wake.clear()

    # ---- hints

    def hint(self, signer: Signer) -> bool:
        """Something may have happened for this signer: a request, a command. Whether this node works for it."""
        lane = self.lanes.get(signer)
        if lane is not None:
            lane.queue_may_have_more = True
            lane.commands_may_wait = True
            self.lanes.wake(signer)
            return True
        if self._serves(signer) and self._held_elsewhere_s.get(signer, 0.0) <= self.clock.now_s():
            self._wanted.add(signer)
            self._seek.set()
        return False

    def freed(self, signer: Signer) -> None:
        """Another node let go of it: there may be work."""
        self._held_elsewhere_s.pop(signer, None)
        if signer not in self.lanes and self._serves(signer):
            self._wanted.add(signer)
            self._seek.set()

    def told(self, sample: Sample) -> None:
        """What the database holds. A lane that should know more than it does missed a hint."""
        for lane in self.lanes:
            if not lane.reconciled or self.lanes.is_busy(lane.signer):
                continue
            missed_request = not lane.queue and sample.queued(lane.signer) > 0
            if missed_request or lane.signer in sample.asked:
                self.hint(lane.signer)

    def _serves(self, signer: Signer) -> bool:
        return signer.address in self.addresses and signer.chain_id in self.watches

    # ---- what happens around

    def rebalance(self) -> None:
        """The list of nodes has changed: hand over what others should have, look for what should be ours."""
        now_s = self.clock.now_s()
        for term in self.lanes.terms():
            if self.router.better_owner(term.signer, now_s) is not None:
                self._hand_over(term.signer)
        self._seek.set()

    def _hand_over(self, signer: Signer) -> None:
        self.letting_go.wish(signer)
        self.lanes.retire(signer)
        asyncio.get_running_loop().call_later(self.pace.handover_budget_s, self._force_overdue)

    def _force_overdue(self) -> None:
        """A step that hangs must not keep the next owner waiting: what it still writes is refused."""
        for signer in self.letting_go.overdue(self.pace.handover_budget_s):
            lane = self.lanes.get(signer)
            if lane is not None:
                self.lanes.drop(signer)
                self.letting_go.add(lane.term)

    def exclude(self, excluded: bool) -> None:  # noqa: FBT001 - a state that is told, not an option
        """Another process has this node's name: work for nobody until that is mended."""
        self._is_excluded = excluded
        if excluded:
            for term in self.lanes.terms():
                self._hand_over(term.signer)
        else:
            self._seek.set()

    def history_changed(self, before: object, after: object) -> None:
        """The database is not the one it was: commits may be lost. Whatever was remembered is worth nothing."""
        self.observer.note("history_changed", before=str(before), after=str(after))
        for term in self.lanes.terms():
            self.lanes.drop(term.signer)
            self._on_lost(term.signer)

    def _on_undone(self, signer: Signer) -> None:
        """What has ended for it may be undone, and nobody holds it."""
        if signer not in self.lanes and signer.address in self.addresses:
            # Whoever holds it sees the fork, too; but should that node die over it, the ledger won't name the signer:
            # what has ended is no work.
            self._undone.add(signer)
            self._seek.set()

    def _on_lost(self, signer: Signer) -> None:
        self._wanted.add(signer)
        self._not_before_s[signer] = self.clock.now_s() + self.pace.renew_s / 4
        asyncio.get_running_loop().call_later(self.pace.renew_s / 4, self._seek.set)

    def _on_given_up(self, lane: Lane) -> None:
        self._not_before_s[lane.signer] = self.clock.now_s() + GIVEN_UP_PAUSE_S
        self.letting_go.add(lane.term)

    # ---- the loops' turns

    async def seek_once(self) -> int:
        """How many signers were acquired."""
        async with self._seeking:
            return 0 if self._stop.is_set() or self._is_excluded else await self._sought()

    async def _sought(self) -> int:
        now_s = self.clock.now_s()
        undone = {signer for signer in self._undone if self._held_elsewhere_s.get(signer, 0.0) <= now_s}
        wanted, self._wanted = self._wanted | undone, set()
        try:
            found = await self.ledger.signers_with_work(list(self.watches), limit=MOST_ACQUIRED_AT_ONCE)
            able = self._mine_first(self._able([*found, *wanted], now_s), now_s)
            self._wanted |= {signer for signer in wanted if self._not_before_s.get(signer, 0.0) > now_s}
            taken = await self._acquire(able) if able else 0
        except Exception:
            self._wanted |= wanted  # a hint comes once
            raise
        await self._be_there_at_the_next_expiry()
        return taken

    async def _acquire(self, able: Sequence[Signer]) -> int:
        terms = await self.ledger.acquire(able)
        missed = set(able) - {term.signer for term in terms}
        self.observer.note("acquire", taken=len(terms), missed=len(missed))
        for term in terms:
            self._not_before_s.pop(term.signer, None)
            self._undone.discard(term.signer)
            self.router.taken(term.signer)
            self.observer.note("acquired", signer=term.signer, token=term.token)
            self.lanes.open(term)
        if len(self._held_elsewhere_s) + len(missed) > MOST_HELD_ELSEWHERE:
            self._held_elsewhere_s.clear()
        for signer in missed:
            self.router.taken(signer)
            self._held_elsewhere_s[signer] = self.clock.now_s() + HELD_ELSEWHERE_S
        return len(terms)

    def _mine_first(self, signers: Sequence[Signer], now_s: float) -> list[Signer]:
        """Those that need not be left to a better owner; for the others we come back when the grace is over."""
        waits_s = {signer: self.router.wait_s(signer, now_s) for signer in signers}
        soonest_s = min((wait_s for wait_s in waits_s.values() if wait_s > 0), default=None)
        if soonest_s is not None:
            asyncio.get_running_loop().call_later(soonest_s + EXPIRY_MARGIN_S, self._seek.set)
        return [signer for signer, wait_s in waits_s.items() if wait_s <= 0]

    async def _be_there_at_the_next_expiry(self) -> None:
        """When a node dies its signers are free at a known moment: be there then, not at the next poll."""
        left_s = await self.soonest_expiry()
        if left_s is not None and left_s + self.pace.skew_allowance_s < self.pace.seek_s:
            at_s = max(0.0, left_s) + self.pace.skew_allowance_s + EXPIRY_MARGIN_S
            asyncio.get_running_loop().call_later(at_s, self._seek.set)

    def _able(self, signers: Iterable[Signer], now_s: float) -> list[Signer]:
        chosen = {
            signer
            for signer in signers
            if signer.address in self.addresses
            and signer not in self.lanes
            and self._not_before_s.get(signer, 0.0) <= now_s
        }
        return sorted(chosen)[:MOST_ACQUIRED_AT_ONCE]

    async def renew_once(self) -> int:
        """How many leases stand."""
        terms = self.lanes.terms()
        if not terms:
            return 0
        try:
            standing = {term.signer: term for term in await self.ledger.renew(terms)}
        except Exception:
            self.observer.note("renew", error=len(terms))
            raise
        self.observer.note("renew", renewed=len(standing), fenced=len(terms) - len(standing))
        for term in terms:
            renewed = standing.get(term.signer)
            if renewed is not None:
                self.lanes.renewed(renewed)
            elif (lane := self.lanes.get(term.signer)) is not None and lane.term.token == term.token:
                self.observer.note("fenced", signer=term.signer, token=term.token, op="renew")
                self.lanes.drop(term.signer)
                self._on_lost(term.signer)
        return len(standing)

    async def heads_once(self, chain_id: int) -> HeadChange:
        return await self.following.once(chain_id)

    async def idle_once(self) -> int:
        """How many idle leases went back."""
        lanes = self.lanes.idle(longer_than_s=self.pace.idle_release_s, now_s=self.clock.now_s())
        if not lanes:
            return 0
        for lane in lanes:
            self.lanes.drop(lane.signer)
        await self.ledger.release([lane.term for lane in lanes])
        return len(lanes)


class _Stopped(Exception):
    pass
