"""One node: it finds signers that have work, holds their leases, and keeps their lanes going.

A node is a process with an identity of its own (`incarnation`): a restart is another one, whatever its name. It runs
four loops and N lane workers in one task group; each loop has a `…_once` that tests can call by hand.

- seek: signers with work whose lease is free are acquired. A wake-up makes it prompt, polling makes it certain.
- renew: all leases in one statement, on the monotonic clock; what did not stand is dropped at once.
- heads: a view a chain; blocks that hold our hashes wake the lanes that wait for them.
- idle: leases that nobody needs go back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.application.heads import ChainWatch, HeadChange
from fencepost.application.lane import Lane
from fencepost.application.ports import Clock, Header, Ledger, Observer
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.errors import FencepostError, RpcError
from fencepost.runtime.lanes import Lanes

_log = logging.getLogger(__name__)

MOST_ACQUIRED_AT_ONCE = 200
GIVEN_UP_PAUSE_S = 3.0
STOP_STEP_WITHIN_S = 2.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the loops turn."""

    seek_s: float = 1.0
    renew_s: float = 2.5
    idle_release_s: float = 30.0


# New heads of a chain, as they come; it ends by being closed.
HeadFeed = Callable[[], AsyncGenerator[Header, None]]


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
    lanes: Lanes = field(init=False)
    _wanted: set[Signer] = field(default_factory=set)  # to be acquired soon, besides what the ledger names
    _not_before_s: dict[Signer, float] = field(default_factory=dict)  # given up here for a while
    _to_release: list[Term] = field(default_factory=list)
    _seek: asyncio.Event = field(default_factory=asyncio.Event)
    _seeking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stopping: bool = False

    def __post_init__(self) -> None:
        self.lanes = Lanes(
            workers=self.workers,
            make_lane=self.make_lane,
            observer=self.observer,
            on_lost=self._on_lost,
            on_given_up=self._on_given_up,
        )

    async def run(self) -> None:
        """Until cancelled; then what is under way is finished and the leases are given back."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.lanes.run(), name="lanes")
                group.create_task(self._loop(self.seek_once, self.pace.seek_s, wake=self._seek), name="seek")
                group.create_task(self._loop(self.renew_once, self.pace.renew_s), name="renew")
                group.create_task(
                    self._loop(self.idle_once, max(0.05, self.pace.idle_release_s / 4)), name="idle"
                )
                for chain_id in self.watches:
                    group.create_task(self._follow(chain_id), name=f"heads-{chain_id}")
                group.create_task(self._until_stopped(), name="stop")
        except* _Stopped:
            pass

    async def stop(self) -> None:
        """Finish the step, release the leases, so that another node goes on at once."""
        self._stopping = True
        self._seek.set()

    async def _until_stopped(self) -> None:
        while not self._stopping:
            await self._seek.wait()
            if not self._stopping:
                await asyncio.sleep(0.01)
        with suppress(TimeoutError):  # a database that hangs keeps its leases until they run out
            async with asyncio.timeout(STOP_STEP_WITHIN_S), self._seeking:
                pass  # whatever was being acquired has its lane now, and goes back with the others
        terms = [*self.lanes.terms(), *self._to_release]
        for term in terms:
            self.lanes.drop(term.signer)
        await self.lanes.quiesce(STOP_STEP_WITHIN_S)
        if terms:
            with suppress(
                Exception
            ):  # the leases run out by themselves; a stop must not hang on a broken database
                await self.ledger.release(terms)
        raise _Stopped

    async def _loop(
        self, once: Callable[[], object], every_s: float, *, wake: asyncio.Event | None = None
    ) -> None:
        while not self._stopping:
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
        if not self._stopping:
            wake.clear()

    # ---- hints

    def hint(self, signer: Signer) -> None:
        """Something may have happened for this signer: a request, a command, a release."""
        lane = self.lanes.get(signer)
        if lane is not None:
            lane.queue_may_have_more = True
            lane.commands_may_wait = True
            self.lanes.wake(signer)
        elif signer.address in self.addresses and signer.chain_id in self.watches:
            self._wanted.add(signer)
            self._seek.set()

    def _on_lost(self, signer: Signer) -> None:
        self._wanted.add(signer)
        self._not_before_s[signer] = self.clock.now_s() + self.pace.renew_s / 4
        asyncio.get_running_loop().call_later(self.pace.renew_s / 4, self._seek.set)

    def _on_given_up(self, lane: Lane) -> None:
        self._not_before_s[lane.signer] = self.clock.now_s() + GIVEN_UP_PAUSE_S
        self._to_release.append(lane.term)
        self._seek.set()

    # ---- the loops' turns

    async def seek_once(self) -> int:
        """How many signers were acquired."""
        async with self._seeking:
            return 0 if self._stopping else await self._sought()

    async def _sought(self) -> int:
        if self._to_release:
            given_up, self._to_release = self._to_release, []
            await self.ledger.release(given_up)
        now_s = self.clock.now_s()
        wanted, self._wanted = self._wanted, set()
        found = await self.ledger.signers_with_work(list(self.watches), limit=MOST_ACQUIRED_AT_ONCE)
        able = self._able([*found, *wanted], now_s)
        self._wanted |= {signer for signer in wanted if self._not_before_s.get(signer, 0.0) > now_s}
        if not able:
            return 0
        terms = await self.ledger.acquire(able)
        for term in terms:
            self._not_before_s.pop(term.signer, None)
            self.observer.note("acquired", signer=term.signer, token=term.token)
            self.lanes.open(term)
        self.observer.note("acquire", taken=len(terms), missed=len(able) - len(terms))
        return len(terms)

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
        standing = {term.signer: term for term in await self.ledger.renew(terms)}
        for term in terms:
            renewed = standing.get(term.signer)
            if renewed is not None:
                self.lanes.renewed(renewed)
            elif (lane := self.lanes.get(term.signer)) is not None and lane.term.token == term.token:
                self.observer.note("fenced", signer=term.signer, token=term.token, op="renew")
                self.lanes.drop(term.signer)
                self._on_lost(term.signer)
        return len(standing)

    async def idle_once(self) -> int:
        """How many idle leases went back."""
        lanes = self.lanes.idle(longer_than_s=self.pace.idle_release_s, now_s=self.clock.now_s())
        if not lanes:
            return 0
        for lane in lanes:
            self.lanes.drop(lane.signer)
        await self.ledger.release([lane.term for lane in lanes])
        return len(lanes)

    async def _follow(self, chain_id: int) -> None:
        async with aclosing(self.heads[chain_id]()) as heads:
            async for head in heads:
                try:
                    await self.heads_once(chain_id, head)
                except RpcError as error:
                    _log.warning("chain %s: %s", chain_id, error)
                    self.watches[chain_id].block_expected.set()  # not seen whole: soon again
                except Exception:  # noqa: BLE001 - a loop's edge: the cause is logged, the next head tries again
                    _log.exception("chain %s: a head was not told to the lanes", chain_id)

    async def heads_once(self, chain_id: int, head: Header | None = None) -> HeadChange:
        watch = self.watches[chain_id]
        old_head = watch.view.head
        change = await watch.refresh(head)
        if change.blocks or change.forked_at is not None or change.begun_anew:
            await self._tell_lanes(chain_id, change, old_head)
        return change

    async def _tell_lanes(self, chain_id: int, change: HeadChange, old_head: int) -> None:
        mined = {tx_hash for block in change.blocks for tx_hash in block.tx_hashes}
        if change.forked_at is not None:
            _log.warning("chain %s forked at block %s, below head %s", chain_id, change.forked_at, old_head)
            await self._look_for_undone(chain_id, change.forked_at)
        for lane in self.lanes:
            if lane.signer.chain_id != chain_id:
                continue
            ours = {attempt.signed.hash for tx in lane.unmined for attempt in tx.attempts}
            lane.seen |= ours & mined
            lane.must_look_up |= change.begun_anew and bool(ours)
            if change.forked_at is not None:
                lane.forked_at = min(change.forked_at, lane.forked_at or change.forked_at)
            if lane.in_flight or lane.forked_at is not None:
                self.lanes.wake(lane.signer)

    async def _look_for_undone(self, chain_id: int, forked_at: int) -> None:
        """A fork may reach below what has ended, of signers that nobody holds any more."""
        for signer in await self.ledger.signers_finished_since(chain_id, forked_at):
            if signer not in self.lanes and signer.address in self.addresses:
                self._wanted.add(signer)
                self._seek.set()


class _Stopped(Exception):
    pass
