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
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.application.heads import ChainWatch, HeadChange
from fencepost.application.intake import Sample
from fencepost.application.lane import Lane
from fencepost.application.ports import Clock, Ledger, Observer
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.domain.managed import ManagedTx
from fencepost.runtime.following import Following, HeadFeed
from fencepost.runtime.lanes import Lanes
from fencepost.runtime.letting_go import LettingGo
from fencepost.runtime.looping import IsDatabaseFailure, Trouble, is_broken_connection
from fencepost.runtime.routing import ALONE, Router
from fencepost.runtime.seeking import Seeking

GIVEN_UP_PAUSE_S = 3.0
STOP_STEP_WITHIN_S = 2.0


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
    is_database_failure: IsDatabaseFailure = is_broken_connection
    lanes: Lanes = field(init=False)
    letting_go: LettingGo = field(init=False)
    following: Following = field(init=False)
    seeking: Seeking = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.lanes = Lanes(
            workers=self.workers,
            make_lane=self.make_lane,
            observer=self.observer,
            on_lost=self._on_lost,
            on_given_up=self._on_given_up,
            on_retired=lambda lane: self.letting_go.add(lane.term),
            is_database_failure=self.is_database_failure,
        )
        self.letting_go = LettingGo(self.ledger, self.clock, self.observer)
        self.seeking = Seeking(
            ledger=self.ledger,
            clock=self.clock,
            observer=self.observer,
            lanes=self.lanes,
            router=self.router,
            addresses=self.addresses,
            chain_ids=list(self.watches),
            look_every_s=self.pace.seek_s,
            expiries_every_s=self.pace.renew_s,
            skew_allowance_s=self.pace.skew_allowance_s,
            soonest_expiry=self.soonest_expiry,
            give_back=self.letting_go.add,
        )
        self.following = Following(
            self.watches,
            self.heads,
            self.lanes,
            self.ledger,
            self.clock,
            on_undone=self.seeking.undone,
            is_database_failure=self.is_database_failure,
        )

    async def run(self) -> None:
        """Until cancelled; then what is under way is finished and the leases are given back."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.lanes.run(), name="lanes")
                for name, turn, rest_s, wake in (
                    ("seek", self.seeking.turn, self.seeking.rest_s, self.seeking.wake),
                    ("let-go", self.letting_go.once, lambda: self.pace.seek_s, self.letting_go.wake),
                    ("renew", self.renew_once, lambda: self.pace.renew_s, None),
                    ("idle", self.idle_once, lambda: max(0.05, self.pace.idle_release_s / 4), None),
                ):
                    group.create_task(self._loop(name, turn, rest_s, wake), name=name)
                for chain_id in self.watches:
                    group.create_task(self.following.run(chain_id), name=f"heads-{chain_id}")
                group.create_task(self._until_stopped(), name="stop")
        except* _Stopped:
            pass

    async def stop(self) -> None:
        """Finish the step, release the leases, so that another node goes on at once."""
        self._stop.set()
        self.seeking.is_off = True
        self.seeking.wake.set()

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        with suppress(TimeoutError):  # a database that hangs keeps its leases until they run out
            async with asyncio.timeout(STOP_STEP_WITHIN_S):
                async with self.seeking.under_way:
                    pass  # whatever was being acquired is about to go back, like the others
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
        self,
        name: str,
        once: Callable[[], Awaitable[object]],
        rest_s: Callable[[], float],
        wake: asyncio.Event | None,
    ) -> None:
        trouble = Trouble(name, self.is_database_failure)
        while not self._stop.is_set():
            try:
                await once()
            except Exception as error:  # noqa: BLE001 - a loop's edge: the cause is logged, the next turn tries again
                trouble.met(error)
            else:
                trouble.over()
            await self._rest(rest_s(), wake)

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
        self.seeking.hint(signer)
        return False

    def requested(
        self, signer: Signer, arrived: Sequence[ManagedTx] = (), behind: Collection[int] = ()
    ) -> bool:
        """Requests were stored for this signer, and nothing else: people's wishes need not be looked for.

        `arrived` are those, if its lane may take them as they are once it holds all that they are `behind`.
        """
        lane = self.lanes.get(signer)
        if lane is None:
            return self.hint(signer)
        lane.receive(arrived, behind)
        self.lanes.wake(signer)
        return True

    def freed(self, signer: Signer) -> None:
        """Another node let go of it: there may be work."""
        self.seeking.freed(signer)

    def told(self, sample: Sample) -> None:
        """What the database holds. A lane that should know more than it does missed a hint."""
        for signer in sample.queued:
            lane = self.lanes.get(signer)
            if lane is not None and not lane.queue:
                self._remind(lane)
        for signer in sample.asked:
            if (lane := self.lanes.get(signer)) is not None:
                self._remind(lane)

    def _remind(self, lane: Lane) -> None:
        if lane.reconciled and not self.lanes.is_busy(lane.signer):
            self.hint(lane.signer)

    # ---- what happens around

    def rebalance(self) -> None:
        """The list of nodes has changed: hand over what others should have, look for what should be ours."""
        now_s = self.clock.now_s()
        signers = [term.signer for term in self.lanes.terms()]
        self._hand_over([s for s in signers if self.router.better_owner(s, now_s) is not None])
        self.seeking.look_soon()

    def _hand_over(self, signers: Sequence[Signer]) -> None:
        for signer in signers:
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
        self.seeking.is_off = excluded or self._stop.is_set()
        if excluded:
            self._hand_over([term.signer for term in self.lanes.terms()])
        else:
            self.seeking.look_soon()

    def history_changed(self, before: object, after: object) -> None:
        """The database is not the one it was: commits may be lost. Whatever was remembered is worth nothing."""
        self.observer.note("history_changed", before=str(before), after=str(after))
        for term in self.lanes.terms():
            self.lanes.drop(term.signer)
            self._on_lost(term.signer)

    def _on_lost(self, signer: Signer) -> None:
        self.seeking.again(signer, in_s=self.pace.renew_s / 4)

    def _on_given_up(self, lane: Lane) -> None:
        self.seeking.leave_alone(lane.signer, for_s=GIVEN_UP_PAUSE_S)
        self.letting_go.add(lane.term)

    # ---- the loops' turns

    async def seek_once(self) -> int:
        """How many signers were acquired."""
        return await self.seeking.look()

    async def renew_once(self) -> int:
        """How many leases were renewed."""
        terms = self.lanes.terms_due(self.clock.now_s(), every_s=self.pace.renew_s)
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
