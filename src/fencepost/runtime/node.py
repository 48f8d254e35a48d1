"""Run one node: acquire the leases of signers that have work, and step their lanes.

A node is a process with its own identity (`incarnation`): a restarted node has a new one, even under the same name. It
runs these loops and N lane workers in one task group; tests call the turn of a loop (`…_once`) directly.

| loop | does |
|---|---|
| seek | acquires free signers with work, unless another node is preferred for them; hints make it prompt, polling makes it certain, and it polls at the moment when another node's lease expires |
| renew | renews all leases in one statement, on the monotonic clock; drops the lanes whose term is over |
| heads-N | refreshes the view of chain N; a block with a managed hash wakes the lane that waits for it |
| idle | releases leases of signers without work |
| let-go | releases leases whose last step has ended, and announces it to the other nodes |
| silent | hands over the signers of a chain whose endpoints do not answer, if another node can read the chain |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.application.admission import Sample
from fencepost.application.chain_view import ChainView, HeadChange
from fencepost.application.lane import Lane
from fencepost.application.ports import Clock, Ledger, Observer
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.domain.transaction_state import ManagedTx
from fencepost.runtime.head_follower import HeadFeed, HeadFollower
from fencepost.runtime.lane_scheduler import LaneScheduler
from fencepost.runtime.lease_acquirer import LeaseAcquirer
from fencepost.runtime.lease_releaser import LeaseReleaser
from fencepost.runtime.routing import ALONE, Router
from fencepost.tasks.service_loop import FailureLog, IsDatabaseFailure, is_broken_connection

_log = logging.getLogger(__name__)

GIVEN_UP_PAUSE_S = 3.0
STOP_STEP_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class LoopIntervals:
    """Hold the intervals of the loops."""

    acquire_interval_s: float = 1.0
    renew_interval_s: float = 2.5
    idle_release_s: float = 30.0
    skew_allowance_s: float = 0.0
    handover_budget_s: float = 1.0
    silent_release_s: float = 10.0


async def _never() -> float | None:
    return None


@dataclass(slots=True)
class Node:
    """Hold the parts of a node, and connect their events."""

    name: str
    incarnation: UUID
    ledger: Ledger
    clock: Clock
    observer: Observer
    chain_views: Mapping[int, ChainView]  # by chain id
    heads: Mapping[int, HeadFeed]  # by chain id
    addresses: frozenset[Address]  # whose keys this node holds
    intervals: LoopIntervals
    make_lane: Callable[[Term], Lane]
    workers: int
    router: Router = field(default_factory=lambda: Router(ALONE))
    soonest_expiry: Callable[[], Awaitable[float | None]] = _never  # seconds until another node's lease ends
    is_database_failure: IsDatabaseFailure = is_broken_connection
    lanes: LaneScheduler = field(init=False)
    lease_releaser: LeaseReleaser = field(init=False)
    head_follower: HeadFollower = field(init=False)
    lease_acquirer: LeaseAcquirer = field(init=False)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Create the parts."""
        self.lanes = LaneScheduler(
            workers=self.workers,
            make_lane=self.make_lane,
            observer=self.observer,
            on_lost=self._on_lost,
            on_failing=lambda signer, in_s: self.lease_acquirer.retry(signer, in_s=in_s),
            on_given_up=self._on_given_up,
            on_retired=lambda lane: self.lease_releaser.add(lane.term),
            is_served_elsewhere=lambda signer: self.router.may_be_served_by_others(signer.chain_id),
            is_database_failure=self.is_database_failure,
        )
        self.lease_releaser = LeaseReleaser(self.ledger, self.clock, self.observer)
        self.lease_acquirer = LeaseAcquirer(
            ledger=self.ledger,
            clock=self.clock,
            observer=self.observer,
            lanes=self.lanes,
            router=self.router,
            addresses=self.addresses,
            chain_ids=list(self.chain_views),
            poll_interval_s=self.intervals.acquire_interval_s,
            expiry_check_interval_s=self.intervals.renew_interval_s,
            skew_allowance_s=self.intervals.skew_allowance_s,
            soonest_expiry=self.soonest_expiry,
            release_later=self.lease_releaser.add,
            is_left_to_others=self._is_left_to_others,
        )
        self.head_follower = HeadFollower(
            self.chain_views,
            self.heads,
            self.lanes,
            self.ledger,
            self.clock,
            on_undone=self.lease_acquirer.undone,
            is_database_failure=self.is_database_failure,
        )

    async def run(self) -> None:
        """Run all loops until `stop` is called; then finish the running steps and release the leases."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.lanes.run(), name="lanes")
                for name, turn, rest_s, wake in (
                    ("seek", self.lease_acquirer.turn, self.lease_acquirer.rest_s, self.lease_acquirer.wake),
                    (
                        "let-go",
                        self.lease_releaser.once,
                        lambda: self.intervals.acquire_interval_s,
                        self.lease_releaser.wake,
                    ),
                    ("renew", self.renew_once, lambda: self.intervals.renew_interval_s, None),
                    ("silent", self.leave_silent_chains, lambda: self.intervals.acquire_interval_s, None),
                    ("idle", self.idle_once, lambda: max(0.05, self.intervals.idle_release_s / 4), None),
                ):
                    group.create_task(self._loop(name, turn, rest_s, wake), name=name)
                for chain_id in self.chain_views:
                    group.create_task(self.head_follower.run(chain_id), name=f"heads-{chain_id}")
                group.create_task(self._until_stopped(), name="stop")
        except* _Stopped:
            pass

    async def stop(self) -> None:
        """Make `run` finish the running steps and release the leases, so that another node continues at once."""
        self._stop.set()
        self.lease_acquirer.is_off = True
        self.lease_acquirer.wake.set()

    async def _until_stopped(self) -> None:
        await self._stop.wait()
        with suppress(TimeoutError):  # if the database hangs, the leases expire by themselves
            async with asyncio.timeout(STOP_STEP_WITHIN_S):
                async with self.lease_acquirer.under_way:
                    pass  # leases that were being acquired are released like the others
                await self._release_all()
        for term in self.lanes.terms():  # their steps take too long: PostgreSQL rejects their later writes
            self.lanes.drop(term.signer)
            self.lease_releaser.add(term)
        # A stop must not fail on a broken database: the leases expire by themselves.
        with suppress(Exception):
            async with asyncio.timeout(STOP_STEP_WITHIN_S):
                await self.lease_releaser.once()
        raise _Stopped

    async def _release_all(self) -> None:
        """Release each lease as soon as its step has ended, without waiting for the last one."""
        for term in self.lanes.terms():
            self.lease_releaser.start_handover(term)
            self.lanes.retire(term.signer)
        while len(self.lanes):
            self.lease_releaser.wake.clear()
            with suppress(OSError):  # the lease expires by itself
                await self.lease_releaser.once()
            if len(self.lanes):
                await self.lease_releaser.wake.wait()

    async def _loop(
        self,
        name: str,
        once: Callable[[], Awaitable[object]],
        rest_s: Callable[[], float],
        wake: asyncio.Event | None,
    ) -> None:
        failure_log = FailureLog(name, self.is_database_failure)
        while not self._stop.is_set():
            try:
                await once()
            except Exception as error:  # noqa: BLE001 - a loop's edge: the cause is logged, the next turn tries again
                failure_log.failed(error)
            else:
                failure_log.succeeded()
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
        """Wake the lane of a signer that may have a new request or command. Return whether this node has the lane."""
        lane = self.lanes.get(signer)
        if lane is not None:
            lane.on_hint()
            self.lanes.wake(signer)
            return True
        self.lease_acquirer.hint(signer)
        return False

    def requested(
        self, signer: Signer, arrived: Sequence[ManagedTx] = (), behind: Collection[int] = ()
    ) -> bool:
        """Wake the lane of a signer that has new requests. Return whether this node has the lane.

        Unlike `hint` it does not make the lane read operator commands. `arrived` are the stored requests, if the lane may
        append them without reading the ledger once it holds all requests with the `seq` in `behind`.
        """
        lane = self.lanes.get(signer)
        if lane is None:
            return self.hint(signer)
        lane.on_request(arrived, behind)
        self.lanes.wake(signer)
        return True

    def freed(self, signer: Signer) -> None:
        """Try to acquire a signer whose lease another node has released."""
        self.lease_acquirer.freed(signer)

    def apply_sample(self, sample: Sample) -> None:
        """Wake the lanes that missed a hint: the database has requests or commands that they do not know."""
        for signer in sample.queued:
            lane = self.lanes.get(signer)
            if lane is not None and not lane.holds_requests:
                self._wake_lane(lane)
        for signer in sample.signers_with_commands:
            if (lane := self.lanes.get(signer)) is not None:
                self._wake_lane(lane)

    def _wake_lane(self, lane: Lane) -> None:
        if lane.reconciled and not self.lanes.is_busy(lane.signer):
            self.hint(lane.signer)

    # ---- cluster and database events

    def rebalance(self) -> None:
        """Hand over signers that other nodes are now preferred for, and poll for signers of this node."""
        now_s = self.clock.now_s()
        terms = self.lanes.terms()
        self._hand_over([term for term in terms if self.router.better_owner(term.signer, now_s) is not None])
        self.lease_acquirer.poll_soon()

    def _hand_over(self, terms: Sequence[Term]) -> None:
        for term in terms:
            self.lease_releaser.start_handover(term)
            self.lanes.retire(term.signer)
        asyncio.get_running_loop().call_later(self.intervals.handover_budget_s, self._force_overdue)

    def _force_overdue(self) -> None:
        """Release leases whose step takes too long for the hand-over: PostgreSQL rejects the step's later writes."""
        for signer, token in self.lease_releaser.overdue(self.intervals.handover_budget_s):
            lane = self.lanes.get(signer)
            if lane is not None and lane.term.token == token:
                self.lanes.drop(signer)
                self.lease_releaser.add(lane.term)
            else:
                self.lease_releaser.forget(signer)

    def exclude(self, excluded: bool) -> None:  # noqa: FBT001 - the new state, not an option
        """Hold no lease while another process has this node's name."""
        self.lease_acquirer.is_off = excluded or self._stop.is_set()
        if excluded:
            self._hand_over(self.lanes.terms())
        else:
            self.lease_acquirer.poll_soon()

    def history_changed(self, before: object, after: object) -> None:
        """Drop all lanes: after a fail-over or a restore the database may have lost commits that they have in memory."""
        self.observer.note("history_changed", before=str(before), after=str(after))
        for term in self.lanes.terms():
            self.lanes.drop(term.signer)
            self._on_lost(term.signer)

    def _on_lost(self, signer: Signer) -> None:
        self.lease_acquirer.retry(signer, in_s=self.intervals.renew_interval_s / 4)

    def _on_given_up(self, lane: Lane) -> None:
        self.lease_acquirer.skip(lane.signer, for_s=GIVEN_UP_PAUSE_S)
        self.lease_releaser.add(lane.term)

    # ---- the loops' turns

    async def acquire_once(self) -> int:
        """Poll for signers with work, and return how many were acquired."""
        return await self.lease_acquirer.poll()

    async def renew_once(self) -> int:
        """Renew the leases that are due, drop the lanes whose term is over, and return how many were renewed."""
        terms = self.lanes.terms_due(self.clock.now_s(), every_s=self.intervals.renew_interval_s)
        if not terms:
            return 0
        try:
            current = {term.signer: term for term in await self.ledger.renew(terms)}
        except Exception:
            self.observer.note("renew", error=len(terms))
            raise
        self.observer.note("renew", renewed=len(current), fenced=len(terms) - len(current))
        for term in terms:
            renewed = current.get(term.signer)
            if renewed is not None:
                self.lanes.renewed(renewed)
            elif (lane := self.lanes.get(term.signer)) is not None and lane.term.token == term.token:
                self.observer.note("fenced", signer=term.signer, token=term.token, op="renew")
                self.lanes.drop(term.signer)
                self._on_lost(term.signer)
        return len(current)

    async def heads_once(self, chain_id: int) -> HeadChange:
        """Refresh the view of a chain."""
        return await self.head_follower.once(chain_id)

    def silent_chains(self) -> frozenset[int]:
        """Return the chains whose endpoints have not answered for `silent_release_s`."""
        limit_s = self.intervals.silent_release_s
        return frozenset(
            chain_id
            for chain_id, chain_view in self.chain_views.items()
            if chain_view.chain.silent_for_s >= limit_s
        )

    def _is_left_to_others(self, chain_id: int) -> bool:
        return chain_id in self.silent_chains() and self.router.is_served_by_others(chain_id)

    async def leave_silent_chains(self) -> int:
        """Hand over the signers of chains that this node cannot read and another node can. Return how many."""
        left = frozenset(filter(self._is_left_to_others, self.silent_chains()))
        terms = [term for term in self.lanes.terms() if term.signer.chain_id in left]
        self._leave_lanes_without_chain()
        for chain_id in sorted({term.signer.chain_id for term in terms}):
            _log.warning(
                "chain %s: no endpoint answers this node; its signers are handed over to nodes that can read it",
                chain_id,
            )
        if terms:
            self._hand_over(terms)
        return len(terms)

    def _leave_lanes_without_chain(self) -> None:
        """Hand over signers whose steps fail because the endpoints here reject a call that they need."""
        now_s = self.clock.now_s()
        failing = self.lanes.without_chain(longer_than_s=self.intervals.silent_release_s, now_s=now_s)
        left = [lane for lane in failing if self.router.is_served_by_others(lane.signer.chain_id)]
        for lane in left:
            _log.warning("%s: its steps fail with the endpoints of this node; it is handed over", lane.signer)
            self.lanes.failures.handed_over(lane.signer)
            self.lease_acquirer.skip(lane.signer, for_s=GIVEN_UP_PAUSE_S)
        if left:
            self._hand_over([lane.term for lane in left])

    async def idle_once(self) -> int:
        """Release the leases of signers without work, and return how many."""
        lanes = self.lanes.idle(longer_than_s=self.intervals.idle_release_s, now_s=self.clock.now_s())
        if not lanes:
            return 0
        for lane in lanes:
            self.lanes.drop(lane.signer)
        await self.ledger.release([lane.term for lane in lanes])
        return len(lanes)


class _Stopped(Exception):
    pass
