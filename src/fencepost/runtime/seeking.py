"""Signers that this node should work for: who is wanted, who is left alone for now, and taking those that are free.

A hint names a signer, and only it is tried: what hints cost does not grow with what waits. Now and then, and whenever
something says that there may be more (a grace is over, a lease of another node ends, the nodes have changed), the
ledger is asked for every signer that has work and no owner. Polling is the truth, hints only make it prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fencepost.application.ports import Clock, Ledger, Observer
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.runtime.lanes import Lanes
from fencepost.runtime.routing import Router

MOST_ACQUIRED_AT_ONCE = 200

# Signers whose keys only others hold are passed over, so many pages at a time.
MOST_PAGES_A_LOOK = 10

# A look may take one part of the time in so many.
REST_PER_WORK = 20.0

# A signer that another node turned out to hold is not tried again on a mere hint; its release is told, its end is seen.
HELD_ELSEWHERE_S = 10.0
MOST_HELD_ELSEWHERE = 20_000

EXPIRY_MARGIN_S = 0.005


@dataclass(slots=True)
class Seeking:
    ledger: Ledger
    clock: Clock
    observer: Observer
    lanes: Lanes
    router: Router
    addresses: frozenset[Address]  # whose keys this node holds
    chain_ids: Sequence[int]
    look_every_s: float
    expiries_every_s: (
        float  # how often the leases of others are looked at, unless one of them is about to end
    )
    skew_allowance_s: float
    soonest_expiry: Callable[[], Awaitable[float | None]]  # seconds, of leases of others
    give_back: Callable[[Term], None]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_off: bool = False
    _wanted: dict[Signer, None] = field(default_factory=dict)  # in the order in which they were asked for
    _undone: set[Signer] = field(default_factory=set)  # a fork undid something: wanted until they were here
    _not_before_s: dict[Signer, float] = field(default_factory=dict)  # given up here for a while
    _held_elsewhere_s: dict[Signer, float] = field(default_factory=dict)  # until when hints are not for us
    _look_at_s: float = 0.0
    _rest_s: float = field(init=False)  # between two looks, unless something says that there may be more
    _looked_up_to: Signer | None = None  # None: from the beginning
    _expiries_at_s: float = 0.0

    def __post_init__(self) -> None:
        self._rest_s = self.look_every_s

    # ---- what is told

    def hint(self, signer: Signer) -> None:
        """There may be work for it."""
        if self._serves(signer) and self._held_elsewhere_s.get(signer, 0.0) <= self.clock.now_s():
            self._want(signer)

    def freed(self, signer: Signer) -> None:
        """Another node let go of it: there may be work."""
        self._held_elsewhere_s.pop(signer, None)
        if signer not in self.lanes and self._serves(signer):
            self._want(signer)

    def undone(self, signer: Signer, block: int) -> None:
        """What has ended for it in this block or above may be undone, and perhaps nobody holds it.

        Whoever holds it sees the fork, too; but should that node die over it, the ledger won't name the signer: what has
        ended is no work.
        """
        if signer.address not in self.addresses:
            return
        self.lanes.forked(signer, block)
        if signer not in self.lanes:
            self._undone.add(signer)
            self.wake.set()

    def again(self, signer: Signer, *, in_s: float) -> None:
        """It was ours a moment ago, and its work is not done."""
        self._wanted[signer] = None
        self.leave_alone(signer, for_s=in_s)
        asyncio.get_running_loop().call_later(in_s, self.wake.set)

    def leave_alone(self, signer: Signer, *, for_s: float) -> None:
        self._not_before_s[signer] = self.clock.now_s() + for_s

    def look_soon(self) -> None:
        """There may be more than what was hinted at."""
        self._look_at_s = 0.0
        self.wake.set()

    def _want(self, signer: Signer) -> None:
        self._wanted[signer] = None
        self.wake.set()

    def _serves(self, signer: Signer) -> bool:
        return signer.address in self.addresses and signer.chain_id in self.chain_ids

    # ---- turns

    def rest_s(self) -> float:
        return max(0.0, self._look_at_s - self.clock.now_s())

    async def turn(self) -> int:
        """How many signers were acquired: of those hinted at, and of all when it is time to look."""
        return await self._sought(is_look=self.rest_s() <= 0)

    async def look(self) -> int:
        """How many signers were acquired, of all that have work."""
        return await self._sought(is_look=True)

    async def _sought(self, *, is_look: bool) -> int:
        async with self.under_way:
            if self.is_off:
                self._look_at_s = self.clock.now_s() + self.look_every_s
                return 0
            return await self._seek(is_look=is_look)

    async def _seek(self, *, is_look: bool) -> int:
        now_s = self.clock.now_s()
        undone = sorted(s for s in self._undone if self._held_elsewhere_s.get(s, 0.0) <= now_s)
        wanted, self._wanted = self._wanted | dict.fromkeys(undone), {}
        try:
            found = await self._found(now_s) if is_look else ()
            if self.is_off:  # since the ledger was asked: what is wanted is tried when it is on again
                self._wanted |= wanted
                return 0
            able = self._mine_first(self._able([*found, *wanted], now_s), now_s)
            self._wanted |= {s: None for s in wanted if self._not_before_s.get(s, 0.0) > now_s}
            taken = await self._acquire(able[:MOST_ACQUIRED_AT_ONCE]) if able else 0
        except Exception:
            self._wanted |= wanted  # a hint comes once
            raise
        if len(able) > MOST_ACQUIRED_AT_ONCE:
            self._wanted |= dict.fromkeys(able[MOST_ACQUIRED_AT_ONCE:])
            self.wake.set()
        if is_look:
            if taken >= MOST_ACQUIRED_AT_ONCE:
                self.look_soon()  # there are more
            await self._be_there_at_the_next_expiry()
        return taken

    async def _found(self, now_s: float) -> Sequence[Signer]:
        """Those whose keys are here. A look that stops before the end is gone on with by the next one."""
        self._look_at_s = now_s + self._rest_s
        found: list[Signer] = []
        for _ in range(MOST_PAGES_A_LOOK):
            page = await self.ledger.signers_with_work(
                list(self.chain_ids), limit=MOST_ACQUIRED_AT_ONCE, after=self._looked_up_to
            )
            found += [signer for signer in page if signer.address in self.addresses]
            self._looked_up_to = page[-1] if len(page) == MOST_ACQUIRED_AT_ONCE else None
            if self._looked_up_to is None or len(found) >= MOST_ACQUIRED_AT_ONCE:
                break
        self._rest_after(self.clock.now_s() - now_s)
        return found

    def _rest_after(self, took_s: float) -> None:
        """The more signers have work, the longer a look takes, and the rarer it is; but always in time for an expiry."""
        most_s = max(self.look_every_s, 2 * self.expiries_every_s)
        self._rest_s = min(most_s, max(self.look_every_s, took_s * REST_PER_WORK))

    async def _acquire(self, able: Sequence[Signer]) -> int:
        terms = await self.ledger.acquire(able)
        if self.is_off:  # since they were asked for: nobody works for them here, so another node may
            for term in terms:
                self.give_back(term)
            self._wanted |= dict.fromkeys(able)
            return 0
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

    def _able(self, signers: Iterable[Signer], now_s: float) -> list[Signer]:
        return [
            signer
            for signer in dict.fromkeys(signers)
            if signer.address in self.addresses
            and signer not in self.lanes
            and self._not_before_s.get(signer, 0.0) <= now_s
        ]

    def _mine_first(self, signers: Sequence[Signer], now_s: float) -> list[Signer]:
        """Those that need not be left to a better owner; for the others we come back when the grace is over."""
        waits_s = {signer: self.router.wait_s(signer, now_s) for signer in signers}
        soonest_s = min((wait_s for wait_s in waits_s.values() if wait_s > 0), default=None)
        if soonest_s is not None:
            asyncio.get_running_loop().call_later(soonest_s + EXPIRY_MARGIN_S, self.look_soon)
        return [signer for signer, wait_s in waits_s.items() if wait_s <= 0]

    async def _be_there_at_the_next_expiry(self) -> None:
        """When a node dies its signers are free at a known moment: be there then, not at the next poll.

        A lease that runs out later than that is looked at again in time: ends only move away, unless a node dies.
        """
        now_s = self.clock.now_s()
        if now_s < self._expiries_at_s:
            return
        left_s = await self.soonest_expiry()
        self._expiries_at_s = now_s + self.expiries_every_s
        if left_s is None:
            return
        free_in_s = max(0.0, left_s) + self.skew_allowance_s
        self._expiries_at_s = min(self._expiries_at_s, now_s + free_in_s - self._rest_s)
        if free_in_s < self._rest_s:
            asyncio.get_running_loop().call_later(free_in_s + EXPIRY_MARGIN_S, self.look_soon)
