"""Acquire the leases of signers that have work and that this node should hold.

A hint names one signer, and only this signer is tried: the cost of a hint does not grow with the number of waiting
signers. At intervals, and whenever more signers may have become free (a grace period or a lease of another node ended,
the list of nodes changed), the ledger is polled for every signer with work and a free lease. Polling is the truth; hints
only make it prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fencepost.application.ports import Clock, Ledger, Observer
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.runtime.lane_scheduler import LaneScheduler
from fencepost.runtime.routing import Router

MAX_ACQUIRED_AT_ONCE = 200

# A poll skips signers whose keys only other nodes hold; it reads at most this many pages.
MAX_PAGES_PER_POLL = 10

# After a poll that took t seconds the next one starts t times this later.
MIN_IDLE_PER_WORK = 20.0

# A hint for a signer that another node holds is ignored for this time. The other node announces a release, and polling
# finds an expired lease.
HELD_BY_OTHER_S = 10.0
MAX_HELD_BY_OTHER = 20_000

EXPIRY_MARGIN_S = 0.005


@dataclass(slots=True)
class LeaseAcquirer:
    """Keep the list of wanted signers, and acquire those that are free."""

    ledger: Ledger
    clock: Clock
    observer: Observer
    lanes: LaneScheduler
    router: Router
    addresses: frozenset[Address]  # whose keys this node holds
    chain_ids: Sequence[int]
    poll_interval_s: float
    expiry_check_interval_s: float  # between checks of other nodes' leases, unless one is about to end
    skew_allowance_s: float
    soonest_expiry: Callable[[], Awaitable[float | None]]  # seconds until the next lease of another node ends
    release_later: Callable[[Term], None]
    is_left_to_others: Callable[[int], bool] = lambda _chain_id: False  # only other nodes can read the chain
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: asyncio.Lock = field(default_factory=asyncio.Lock)  # held during a turn
    is_off: bool = False  # acquires nothing: the node stops, or another process has its name
    _wanted: dict[Signer, None] = field(default_factory=dict)  # in the order of the hints
    _undone: set[Signer] = field(default_factory=set)  # affected by a fork: wanted until acquired here
    _not_before_s: dict[Signer, float] = field(default_factory=dict)  # not tried before this time
    _held_by_other_s: dict[Signer, float] = field(default_factory=dict)  # hints are ignored until this time
    _poll_at_s: float = 0.0
    _rest_s: float = field(init=False)  # between two polls, unless one is requested earlier
    _polled_up_to: Signer | None = None  # None: from the beginning
    _check_expiry_at_s: float = 0.0

    def __post_init__(self) -> None:
        """Start with the configured interval."""
        self._rest_s = self.poll_interval_s

    # ---- events

    def hint(self, signer: Signer) -> None:
        """Try a signer that may have work, unless another node was found to hold it."""
        if self._serves(signer) and self._held_by_other_s.get(signer, 0.0) <= self.clock.now_s():
            self._add_wanted(signer)

    def freed(self, signer: Signer) -> None:
        """Try a signer whose lease another node has released."""
        self._held_by_other_s.pop(signer, None)
        if signer not in self.lanes and self._serves(signer):
            self._add_wanted(signer)

    def undone(self, signer: Signer, block: int) -> None:
        """Acquire a signer, if it is free, whose ended transactions a fork at this block may have undone.

        A lease holder sees the fork by itself. But if that node dies before it has handled the fork, polling does not
        find the signer: ended transactions are no work.
        """
        if signer.address not in self.addresses:
            return
        self.lanes.forked(signer, block)
        if signer not in self.lanes:
            self._undone.add(signer)
            self.wake.set()

    def retry(self, signer: Signer, *, in_s: float) -> None:
        """Acquire a signer again after a pause: this node lost its lane, and work is left."""
        self._wanted[signer] = None
        self.skip(signer, for_s=in_s)
        asyncio.get_running_loop().call_later(in_s, self.wake.set)

    def skip(self, signer: Signer, *, for_s: float) -> None:
        """Do not acquire a signer for this time."""
        self._not_before_s[signer] = self.clock.now_s() + for_s

    def poll_soon(self) -> None:
        """Poll in the next turn: signers without a hint may have become free."""
        self._poll_at_s = 0.0
        self.wake.set()

    def _add_wanted(self, signer: Signer) -> None:
        self._wanted[signer] = None
        self.wake.set()

    def _serves(self, signer: Signer) -> bool:
        return signer.address in self.addresses and signer.chain_id in self.chain_ids

    # ---- turns

    def rest_s(self) -> float:
        """Return the seconds until the next poll."""
        return max(0.0, self._poll_at_s - self.clock.now_s())

    async def turn(self) -> int:
        """Acquire wanted signers, and poll for more when it is time. Return how many were acquired."""
        return await self._acquire_wanted(polls=self.rest_s() <= 0)

    async def poll(self) -> int:
        """Acquire wanted signers and all others that have work. Return how many were acquired."""
        return await self._acquire_wanted(polls=True)

    async def _acquire_wanted(self, *, polls: bool) -> int:
        async with self.under_way:
            if self.is_off:
                self._poll_at_s = self.clock.now_s() + self.poll_interval_s
                return 0
            return await self._run_turn(polls=polls)

    async def _run_turn(self, *, polls: bool) -> int:
        now_s = self.clock.now_s()
        undone = sorted(s for s in self._undone if self._held_by_other_s.get(s, 0.0) <= now_s)
        wanted, self._wanted = self._wanted | dict.fromkeys(undone), {}
        try:
            found = await self._find_work(now_s) if polls else ()
            if self.is_off:  # switched off during the poll: wanted signers are tried when it is on again
                self._wanted |= wanted
                return 0
            candidates = self._without_preferred_by_others(self._candidates([*found, *wanted], now_s), now_s)
            self._wanted |= {s: None for s in wanted if self._not_before_s.get(s, 0.0) > now_s}
            acquired = await self._acquire(candidates[:MAX_ACQUIRED_AT_ONCE]) if candidates else 0
        except Exception:
            self._wanted |= wanted  # a hint comes only once
            raise
        if len(candidates) > MAX_ACQUIRED_AT_ONCE:
            self._wanted |= dict.fromkeys(candidates[MAX_ACQUIRED_AT_ONCE:])
            self.wake.set()
        if polls:
            if acquired >= MAX_ACQUIRED_AT_ONCE:
                self.poll_soon()  # there are more
            await self._plan_for_next_expiry()
        return acquired

    async def _find_work(self, now_s: float) -> Sequence[Signer]:
        """Return signers with work whose keys are here. A poll that stops early is continued by the next one."""
        self._poll_at_s = now_s + self._rest_s
        found: list[Signer] = []
        for _ in range(MAX_PAGES_PER_POLL):
            page = await self.ledger.signers_with_work(
                list(self.chain_ids), limit=MAX_ACQUIRED_AT_ONCE, after=self._polled_up_to
            )
            found += [signer for signer in page if signer.address in self.addresses]
            self._polled_up_to = page[-1] if len(page) == MAX_ACQUIRED_AT_ONCE else None
            if self._polled_up_to is None or len(found) >= MAX_ACQUIRED_AT_ONCE:
                break
        self._rest_after(self.clock.now_s() - now_s)
        return found

    def _rest_after(self, took_s: float) -> None:
        """Poll less often the longer a poll takes, but always in time for an expiry."""
        most_s = max(self.poll_interval_s, 2 * self.expiry_check_interval_s)
        self._rest_s = min(most_s, max(self.poll_interval_s, took_s * MIN_IDLE_PER_WORK))

    async def _acquire(self, candidates: Sequence[Signer]) -> int:
        terms = await self.ledger.acquire(candidates)
        if (
            self.is_off
        ):  # switched off during the statement: release them, so that another node can acquire them
            for term in terms:
                self.release_later(term)
            self._wanted |= dict.fromkeys(candidates)
            return 0
        missed = set(candidates) - {term.signer for term in terms}
        self.observer.note("acquire", taken=len(terms), missed=len(missed))
        for term in terms:
            self._not_before_s.pop(term.signer, None)
            self._undone.discard(term.signer)
            self.router.mark_held(term.signer)
            self.observer.note("acquired", signer=term.signer, token=term.token)
            self.lanes.open(term)
        if len(self._held_by_other_s) + len(missed) > MAX_HELD_BY_OTHER:
            self._held_by_other_s.clear()
        for signer in missed:
            self.router.mark_held(signer)
            self._held_by_other_s[signer] = self.clock.now_s() + HELD_BY_OTHER_S
        return len(terms)

    def _candidates(self, signers: Iterable[Signer], now_s: float) -> list[Signer]:
        return [
            signer
            for signer in dict.fromkeys(signers)
            if signer.address in self.addresses
            and signer not in self.lanes
            and self._not_before_s.get(signer, 0.0) <= now_s
            and not self.is_left_to_others(signer.chain_id)
        ]

    def _without_preferred_by_others(self, signers: Sequence[Signer], now_s: float) -> list[Signer]:
        """Leave out signers that another node is preferred for, and poll again when their grace period is over."""
        waits_s = {signer: self.router.wait_s(signer, now_s) for signer in signers}
        soonest_s = min((wait_s for wait_s in waits_s.values() if wait_s > 0), default=None)
        if soonest_s is not None:
            asyncio.get_running_loop().call_later(soonest_s + EXPIRY_MARGIN_S, self.poll_soon)
        return [signer for signer, wait_s in waits_s.items() if wait_s <= 0]

    async def _plan_for_next_expiry(self) -> None:
        """Poll at the moment when another node's lease expires, which is when the signers of a dead node become free.

        A lease that expires later than the next check is checked again in time: renewals only move its end away.
        """
        now_s = self.clock.now_s()
        if now_s < self._check_expiry_at_s:
            return
        left_s = await self.soonest_expiry()
        self._check_expiry_at_s = now_s + self.expiry_check_interval_s
        if left_s is None:
            return
        free_in_s = max(0.0, left_s) + self.skew_allowance_s
        self._check_expiry_at_s = min(self._check_expiry_at_s, now_s + free_in_s - self._rest_s)
        if free_in_s < self._rest_s:
            asyncio.get_running_loop().call_later(free_in_s + EXPIRY_MARGIN_S, self.poll_soon)
