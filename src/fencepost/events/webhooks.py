"""Deliver events to webhooks: at least once, by one process at a time, with retries that outlive the process.

`turn` acquires and renews leases and starts a run for each subscription that has something to send. A run sends retries that are
due, then the next page of the log, and records all outcomes in one fenced write. The checkpoint moves with that write, never
before the answers; a crash in between repeats the page.

Bounds: one run per subscription, `MAX_RUNS` runs and `MAX_SLOTS` requests for healthy endpoints, and as many for slow or failing
ones, which therefore take nothing from the others. A subscription with `MAX_PENDING` retries reads no further; the log keeps the
events. An endpoint that fails gets one new event at a time, after a growing pause.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol
from uuid import UUID

from fencepost.domain.ids import Address
from fencepost.domain.lease import TRUSTED_SHARE
from fencepost.errors import Fenced
from fencepost.events.log import BEGINNING, MAX_BATCHES, MAX_PARTS, EventLog, EventsExpired, LogPage, Place
from fencepost.events.reader import EventFilter, EventReader, ReadTags, no_tags
from fencepost.events.signatures import signed_headers
from fencepost.events.subscriptions import (
    MAX_PENDING,
    Attempt,
    OnError,
    Ordered,
    Pending,
    Retry,
    Settlement,
    Subscription,
    SubscriptionLease,
    SubscriptionState,
    SubscriptionStore,
)
from fencepost.events.types import Event, events_of
from fencepost.tasks.service_loop import FailureLog

_log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.25
ACQUIRE_INTERVAL_S: Final = 0.4
SAVE_INTERVAL_S: Final = 5.0  # checkpoints that passed only events that do not match
MAX_ACQUIRED: Final = 500  # per turn
MAX_HELD: Final = 10_000  # subscriptions of one process
MAX_RUNS: Final = 64  # of healthy endpoints; as many of slow and failing ones
MAX_SLOTS: Final = 128  # requests to healthy endpoints; as many to slow and failing ones
MAX_STATEMENTS: Final = 3  # of all runs at the same time: the lanes need the database more
MAX_SHARED_PAGES: Final = 16
MAX_PASSED_PAGES: Final = 4  # per turn
PAGE_EVENTS: Final = 100
SLOW_S: Final = 2.0
FIRST_PAUSE_S: Final = 5.0
MAX_PAUSE_S: Final = 60.0
FAILURE_PAUSE_S: Final = 1.0  # after a failure of the database
MAX_RETRY_AFTER_S: Final = 86_400.0
JITTER: Final = 0.2
_GONE: Final = 410
_NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """Say when deliveries are repeated and given up. `delays_s[n]` is the pause before attempt n + 1."""

    delays_s: Sequence[float]
    skip_after: int  # attempts, with `ordered: signer` and `onError: skip`
    disable_after_s: float
    max_in_flight: int  # requests to one endpoint
    lease_duration_s: float
    renew_interval_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what an endpoint answered. `error` is None if it accepted the event."""

    status: int | None
    error: str | None
    body: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Hold what the owner of a subscription may see; `addresses` of None are all."""

    addresses: frozenset[Address] | None
    shows_nonce: bool


class Clock(Protocol):
    """Return monotonic time."""

    def now_s(self) -> float: ...


Send = Callable[[str, dict[str, str], bytes], Awaitable[Answer]]
Render = Callable[[Sequence[Event], bool], Awaitable[Sequence[bytes]]]
FindAccess = Callable[[str | None], Awaitable[Access | None]]  # None: the key is revoked


@dataclass(slots=True)
class _SharedPages(EventLog):
    """Read a page once for all subscriptions that are at the same place."""

    log: EventLog
    newest_known: Place = BEGINNING
    _pages: dict[Place, tuple[Place, LogPage]] = field(default_factory=dict)

    async def read(self, after: Place, *, max_batches: int = MAX_BATCHES) -> LogPage:
        newest = self.newest_known
        kept = self._pages.get(after)
        if kept is not None and kept[0] == newest and max_batches == MAX_BATCHES:
            return kept[1]
        page = await self.log.read(after, max_batches=max_batches)
        if max_batches == MAX_BATCHES:
            self._pages.pop(after, None)
            self._pages[after] = newest, page
            while len(self._pages) > MAX_SHARED_PAGES:
                del self._pages[next(iter(self._pages))]
        return page

    async def newest(self) -> Place:
        self.newest_known = await self.log.newest()
        return self.newest_known

    async def prune(self, *, older_than_s: float) -> int:
        return await self.log.prune(older_than_s=older_than_s)


@dataclass(slots=True)
class _Held:
    """Keep what this process knows of a subscription whose lease it holds."""

    lease: SubscriptionLease
    place: Place  # every matching event up to here is accepted or stored as a retry
    saved: Place  # the checkpoint in the database
    renewed_at_s: float
    due_at_s: float  # of the next retry
    subscription: Subscription | None = None  # None: load it before the next run
    wanted: EventFilter | None = None
    shows_nonce: bool = False
    pending: int = 0
    failures: int = 0  # runs without a success
    failing_since: datetime | None = None
    paused_until_s: float = -_NEVER_S
    is_slow: bool = False
    is_running: bool = False

    @property
    def is_suspect(self) -> bool:
        return self.is_slow or self.failures > 0


@dataclass(frozen=True, slots=True)
class _Item:
    """One event to send, as attempt number `attempts + 1`. `event` is None if it is not in the log any more."""

    place: Place
    chain_id: int
    address: Address | None
    attempts: int
    event: Event | None
    is_stored: bool  # as a retry


@dataclass(slots=True)
class _Outcomes:
    """Collect what a run did."""

    accepted: list[Place] = field(default_factory=list)  # of stored retries
    retries: list[Retry] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    tried: set[Place] = field(default_factory=set)
    successes: int = 0
    failures: int = 0
    retry_after_s: float = 0.0
    is_gone: bool = False  # the endpoint answered 410
    is_lost: bool = False  # the lease was not renewed in time

    @property
    def succeeded(self) -> bool | None:
        if self.successes:
            return True
        return False if self.failures else None


@dataclass(slots=True)
class Deliverer:
    """Deliver the webhooks whose leases this process holds."""

    store: SubscriptionStore
    log: EventLog
    send: Send
    render: Render
    find_access: FindAccess
    policy: WebhookPolicy
    clock: Clock
    holder: UUID
    node: str
    read_tags: ReadTags = no_tags
    failure_log: FailureLog = field(default_factory=lambda: FailureLog("webhook delivery"))
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _pages: _SharedPages = field(init=False)
    _reader: EventReader = field(init=False)
    _held: dict[UUID, _Held] = field(default_factory=dict)
    _runs: dict[bool, set[asyncio.Task[None]]] = field(default_factory=lambda: {False: set(), True: set()})
    _slots: dict[bool, asyncio.Semaphore] = field(
        default_factory=lambda: {suspect: asyncio.Semaphore(MAX_SLOTS) for suspect in (False, True)}
    )
    _statements: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_STATEMENTS))
    _renew_at_s: float = -_NEVER_S
    _acquire_at_s: float = -_NEVER_S
    _save_at_s: float = -_NEVER_S

    def __post_init__(self) -> None:
        self._pages = _SharedPages(self.log)
        self._reader = EventReader(self._pages, self.read_tags)

    # ---- the loop

    async def turn(self) -> float:
        """Renew and acquire leases, start what is due, and return the seconds until the next turn."""
        now_s = self.clock.now_s()
        if now_s >= self._renew_at_s:
            await self._renew(now_s)
        if now_s >= self._acquire_at_s:
            await self._acquire(now_s)
        if not self._held:
            return ACQUIRE_INTERVAL_S
        newest = await self._pages.newest()
        await self._pass_over(newest)
        self._start_runs(newest)
        if now_s >= self._save_at_s:
            await self._save(now_s)
        return POLL_INTERVAL_S

    async def finish(self) -> None:
        """Wait for the runs that are under way; for tests and for a stop."""
        while runs := self._runs[False] | self._runs[True]:
            await asyncio.wait(runs)

    async def stop(self) -> None:
        """Cancel the runs and release the leases. What was sent and not recorded is sent again by the next holder."""
        runs = self._runs[False] | self._runs[True]
        for run in runs:
            run.cancel()
        if runs:
            await asyncio.wait(runs)
        held, self._held = self._held, {}
        if held:
            await self.store.release([one.lease for one in held.values()])

    async def _renew(self, now_s: float) -> None:
        self._renew_at_s = now_s + self.policy.renew_interval_s
        if not self._held:
            return
        leases = [held.lease for held in self._held.values()]
        kept = await self.store.renew(leases, duration_s=self.policy.lease_duration_s)
        renewed = {lease.subscription_id: lease for lease in kept}
        for lease in leases:
            held = self._held.get(lease.subscription_id)
            if held is None or held.lease.token != lease.token:
                continue
            if (current := renewed.get(lease.subscription_id)) is None:
                del self._held[
                    lease.subscription_id
                ]  # lost, paused or deleted; a run that is under way is fenced
                continue
            held.renewed_at_s = now_s
            if current.version != held.lease.version:
                held.lease = replace(held.lease, version=current.version)
                held.subscription, held.due_at_s = None, now_s

    async def _acquire(self, now_s: float) -> None:
        self._acquire_at_s = now_s + ACQUIRE_INTERVAL_S
        room = min(MAX_ACQUIRED, MAX_HELD - len(self._held))
        if room <= 0:
            return
        for lease in await self.store.acquire(
            holder=self.holder, node=self.node, duration_s=self.policy.lease_duration_s, limit=room
        ):
            self._held[lease.subscription_id] = _Held(
                lease, lease.checkpoint, lease.checkpoint, renewed_at_s=now_s, due_at_s=now_s
            )

    async def _save(self, now_s: float) -> None:
        """Store the checkpoints of subscriptions that only passed events that do not match."""
        self._save_at_s = now_s + SAVE_INTERVAL_S
        moved = [held for held in self._held.values() if held.place > held.saved and not held.is_running]
        if not moved:
            return
        places = [held.place for held in moved]
        kept = await self.store.advance(
            [(held.lease, place) for held, place in zip(moved, places, strict=True)]
        )
        for held, place in zip(moved, places, strict=True):
            if held.lease.subscription_id in kept:
                held.saved = max(held.saved, place)
            else:
                self._drop(held)

    async def _pass_over(self, newest: Place) -> None:
        """Move idle subscriptions over the next page if it concerns none of their signers or types, without a run."""
        places = Counter(held.place for held in self._held.values() if self._is_idle_behind(held, newest))
        for after, count in places.most_common(MAX_PASSED_PAGES):
            if count > 1:  # a subscription that is alone there reads for itself
                await self._pass_over_page(after, newest)

    async def _pass_over_page(self, after: Place, newest: Place) -> None:
        try:
            page = await self._pages.read(after)
        except EventsExpired:
            return  # each run reports it
        events = [event for entry in page.entries for event in events_of(entry) if event.place > after]
        addresses, types = {event.address for event in events}, {event.type for event in events}
        for held in self._held.values():
            if held.place != after or not self._is_idle_behind(held, newest) or held.wanted is None:
                continue
            wanted = held.wanted
            if (wanted.addresses is not None and wanted.addresses.isdisjoint(addresses)) or (
                wanted.types is not None and wanted.types.isdisjoint(types)
            ):
                held.place = page.read_to

    def _is_idle_behind(self, held: _Held, newest: Place) -> bool:
        return not held.is_running and held.subscription is not None and held.place < newest

    def _start_runs(self, newest: Place) -> None:
        now_s = self.clock.now_s()
        for held in list(self._held.values()):
            runs = self._runs[held.is_suspect]
            if held.is_running or len(runs) >= MAX_RUNS or not self._has_work(held, newest, now_s):
                continue
            held.is_running = True
            # The next turn begins with the others.
            self._held[held.lease.subscription_id] = self._held.pop(held.lease.subscription_id)
            task = asyncio.get_running_loop().create_task(self._run(held), name="webhook")
            runs.add(task)
            task.add_done_callback(runs.discard)

    def _has_work(self, held: _Held, newest: Place, now_s: float) -> bool:
        if held.due_at_s <= now_s:
            return True
        return held.place < newest and now_s >= held.paused_until_s and held.pending < MAX_PENDING

    def _drop(self, held: _Held) -> None:
        if self._held.get(held.lease.subscription_id) is held:
            del self._held[held.lease.subscription_id]

    # ---- one run

    async def _run(self, held: _Held) -> None:
        try:
            await self._deliver(held)
        except Fenced:
            self._drop(held)
        except EventsExpired:
            await self._disable(
                held,
                "events were removed before they could be delivered, because they were older than events.retention:"
                " resume with a new start",
            )
        except Exception as error:  # noqa: BLE001 - a run's edge: the cause is logged, the next run tries again
            self.failure_log.failed(error)
            held.subscription = None  # a write may have been committed although its answer was lost
            held.paused_until_s = self.clock.now_s() + FAILURE_PAUSE_S
            held.due_at_s = max(held.due_at_s, held.paused_until_s)
        else:
            self.failure_log.succeeded()
        finally:
            held.is_running = False
            self.wake.set()

    async def _deliver(self, held: _Held) -> None:
        subscription = await self._load(held)
        if subscription is None:
            return
        if held.due_at_s <= self.clock.now_s():
            await self._send_retries(held, subscription)
        if held.pending < MAX_PENDING and self.clock.now_s() >= held.paused_until_s:
            await self._send_page(held, subscription)

    async def _load(self, held: _Held) -> Subscription | None:
        """Load the subscription if it changed, and what its owner may see."""
        if held.subscription is None:
            async with self._statements:
                loaded = await self.store.get(held.lease.subscription_id)
            if loaded is None or loaded.state is not SubscriptionState.ACTIVE:
                self._drop(held)
                return None
            held.subscription, held.pending = loaded, loaded.pending
            held.failing_since = loaded.failing_since
        subscription = held.subscription
        async with self._statements:
            access = await self.find_access(subscription.owner)
        if access is None:
            await self._disable(held, "the API key that made the subscription is revoked")
            return None
        held.shows_nonce = access.shows_nonce
        held.wanted = limited(subscription.wanted, access)
        return subscription

    async def _send_page(self, held: _Held, subscription: Subscription) -> None:
        """Send the next events of the log, and move the checkpoint behind them."""
        limit = 1 if held.failures else min(PAGE_EVENTS, MAX_PENDING - held.pending)
        wanted = held.wanted or subscription.wanted
        async with self._statements:
            page = await self._reader.page(held.place, wanted, limit=limit)
        if not page.events:
            held.place = page.next
            return
        items = [
            _Item(event.place, event.chain_id or 0, event.address, 0, event, is_stored=False)
            for event in page.events
        ]
        blocked: set[Hashable] = set()
        if subscription.ordered is Ordered.SIGNER and held.pending:
            async with self._statements:
                waiting = await self.store.pending(subscription.id, due_only=False, limit=2 * MAX_PENDING)
            blocked = {_signer(pending) for pending in waiting}
        outcomes = await self._send_all(held, subscription, items, blocked)
        await self._settle(held, outcomes, checkpoint=page.next)

    async def _send_retries(self, held: _Held, subscription: Subscription) -> None:
        """Send retries that are due; in a promised order, those of a signer only after its oldest one was accepted."""
        is_ordered = subscription.ordered is Ordered.SIGNER
        async with self._statements:
            waiting = await self.store.pending(
                subscription.id, due_only=not is_ordered, limit=2 * MAX_PENDING if is_ordered else PAGE_EVENTS
            )
        heads: dict[Hashable, Pending] = {}
        for pending in waiting:
            heads.setdefault(_signer(pending) if is_ordered else pending.place, pending)
        due = [
            pending
            for pending in waiting
            if heads[_signer(pending) if is_ordered else pending.place].due_in_s <= 0
        ]
        if held.failures:  # one request shows whether the endpoint has recovered
            due = due[:1]
        items = [await self._find(pending) for pending in due[:PAGE_EVENTS]]
        outcomes = await self._send_all(held, subscription, items, set())
        await self._settle(held, outcomes, checkpoint=None)
        async with self._statements:
            left = await self.store.pending(subscription.id, due_only=False, limit=2 * MAX_PENDING)
        held.pending = len(left)
        first: dict[Hashable, float] = {}
        for one in left:
            first.setdefault(_signer(one) if is_ordered else one.place, one.due_in_s)
        soonest_s = min(first.values(), default=_NEVER_S)
        held.due_at_s = max(self.clock.now_s() + soonest_s, held.paused_until_s)

    async def _find(self, pending: Pending) -> _Item:
        """Read the event of a retry from the log again."""
        place, found = pending.place, None
        before = (
            place._replace(part=place.part - 1)
            if place.part
            else Place(place.epoch, place.xid, place.entry - 1, MAX_PARTS - 1)
        )
        try:
            async with self._statements:
                page = await self.log.read(before, max_batches=1)
        except EventsExpired:
            page = LogPage((), before)
        for entry in page.entries:
            found = next((event for event in events_of(entry) if event.place == place), found)
        return _Item(place, pending.chain_id, pending.address, pending.attempts, found, is_stored=True)

    # ---- sending

    async def _send_all(
        self, held: _Held, subscription: Subscription, items: Sequence[_Item], blocked: set[Hashable]
    ) -> _Outcomes:
        """Send events at the same time, those of one signer in order if that is promised, and collect the outcomes."""
        outcomes = _Outcomes()
        bodies = await self._render_all(held, items)
        chains: dict[Hashable, list[_Item]] = {}
        is_ordered = subscription.ordered is Ordered.SIGNER
        for item in items:
            chains.setdefault(_signer(item) if is_ordered else item.place, []).append(item)
        in_flight = asyncio.Semaphore(self.policy.max_in_flight)

        async def send_chain(chain: Sequence[_Item]) -> None:
            for item in chain:
                async with in_flight:
                    if (outcomes.failures and not outcomes.successes) or outcomes.is_gone or outcomes.is_lost:
                        return  # the endpoint fails: the rest waits
                    if not await self._send_one(held, subscription, item, bodies, outcomes):
                        return

        async with asyncio.TaskGroup() as group:
            for key, chain in chains.items():
                if key not in blocked:
                    group.create_task(send_chain(chain))
        if outcomes.is_lost:
            raise Fenced("the lease of the subscription was not renewed in time")
        outcomes.retries += self._untried(subscription, items, outcomes.tried)
        return outcomes

    async def _render_all(self, held: _Held, items: Sequence[_Item]) -> dict[Place, bytes]:
        events = [item.event for item in items if item.event is not None]
        if not events:
            return {}
        async with self._statements:
            bodies = await self.render(events, held.shows_nonce)
        return {event.place: body for event, body in zip(events, bodies, strict=True)}

    def _untried(
        self, subscription: Subscription, items: Sequence[_Item], tried: set[Place]
    ) -> Iterator[Retry]:
        """Yield the new events that wait because the endpoint, or an earlier event of their signer, failed."""
        delays_s = self.policy.delays_s
        due_in_s = 0.0 if subscription.ordered is Ordered.SIGNER else delays_s[min(1, len(delays_s) - 1)]
        for item in items:
            if item.place not in tried and not item.is_stored:
                yield Retry(item.place, item.chain_id, item.address, 0, due_in_s)

    async def _send_one(
        self,
        held: _Held,
        subscription: Subscription,
        item: _Item,
        bodies: dict[Place, bytes],
        outcomes: _Outcomes,
    ) -> bool:
        """Send one event, note the outcome, and return whether later events of its signer may be sent."""
        attempts = item.attempts + 1
        outcomes.tried.add(item.place)
        if item.event is None:
            answer = Answer(None, "the event was removed, because it was older than events.retention")
            outcomes.attempts.append(_attempt(item.place.id, attempts, datetime.now(UTC), 0.0, answer))
            outcomes.retries.append(Retry(item.place, item.chain_id, item.address, attempts, None))
            return True
        async with self._slots[held.is_suspect]:
            if self.clock.now_s() - held.renewed_at_s > TRUSTED_SHARE * self.policy.lease_duration_s:
                outcomes.is_lost = True
                return False
            attempt, answer = await send_event(
                self.send, subscription, item.place.id, bodies[item.place], attempts
            )
        held.is_slow = attempt.duration_s > SLOW_S
        outcomes.attempts.append(attempt)
        if answer.error is None:
            outcomes.successes += 1
            if item.is_stored:
                outcomes.accepted.append(item.place)
            return True
        outcomes.failures += 1
        outcomes.is_gone |= answer.status == _GONE
        outcomes.retry_after_s = max(outcomes.retry_after_s, answer.retry_after_s or 0.0)
        due_in_s = self._next_delay_s(subscription, attempts, answer)
        outcomes.retries.append(Retry(item.place, item.chain_id, item.address, attempts, due_in_s))
        return due_in_s is None

    def _next_delay_s(self, subscription: Subscription, attempts: int, answer: Answer) -> float | None:
        """Return the pause before the next attempt; None if the event is given up."""
        delays_s = self.policy.delays_s
        if subscription.ordered is Ordered.SIGNER and subscription.on_error is OnError.BLOCK:
            delay_s = delays_s[min(attempts, len(delays_s) - 1)]
        else:
            is_ordered = subscription.ordered is Ordered.SIGNER
            last = min(self.policy.skip_after, len(delays_s)) if is_ordered else len(delays_s)
            if attempts >= last:
                return None
            delay_s = delays_s[attempts]
        jittered_s = delay_s * (1 + JITTER * random.random())
        return max(jittered_s, min(answer.retry_after_s or 0.0, MAX_RETRY_AFTER_S))

    # ---- recording

    async def _settle(self, held: _Held, outcomes: _Outcomes, *, checkpoint: Place | None) -> None:
        """Record a run. From here on its accepted events are not sent again."""
        async with self._statements:
            await self.store.settle(
                Settlement(
                    held.lease,
                    checkpoint,
                    accepted=outcomes.accepted,
                    retries=outcomes.retries,
                    attempts=outcomes.attempts,
                    succeeded=outcomes.succeeded,
                )
            )
        now_s = self.clock.now_s()
        if checkpoint is not None:
            held.place = held.saved = checkpoint
            waiting = [retry.due_in_s for retry in outcomes.retries if retry.due_in_s is not None]
            held.pending += len(waiting)
            held.due_at_s = min([held.due_at_s, *(now_s + due_s for due_s in waiting)])
        if outcomes.succeeded:
            held.failures, held.failing_since, held.paused_until_s = 0, None, -_NEVER_S
        elif outcomes.failures:
            await self._note_failure(held, outcomes, now_s)
        if outcomes.is_gone:
            await self._disable(held, "the endpoint answered 410 Gone")

    async def _note_failure(self, held: _Held, outcomes: _Outcomes, now_s: float) -> None:
        held.failures += 1
        pause_s = min(FIRST_PAUSE_S * 2 ** min(held.failures - 1, 10), MAX_PAUSE_S, self._longest_delay_s())
        held.paused_until_s = now_s + max(pause_s, min(outcomes.retry_after_s, MAX_RETRY_AFTER_S))
        now = datetime.now(UTC)
        held.failing_since = held.failing_since or now
        failed_s = (now - held.failing_since).total_seconds()
        if failed_s >= self.policy.disable_after_s and not outcomes.is_gone:
            last = next(attempt for attempt in reversed(outcomes.attempts) if attempt.error is not None)
            await self._disable(held, f"every delivery failed for {failed_s / 86_400:.1f} days: {last.error}")

    def _longest_delay_s(self) -> float:
        """Return the longest pause between retries: no endpoint is left alone for longer than its next retry."""
        return max(self.policy.delays_s)

    async def _disable(self, held: _Held, reason: str) -> None:
        self._drop(held)
        try:
            async with self._statements:
                await self.store.disable(held.lease, reason)
        except Fenced:
            return  # another process delivers it, and finds out for itself
        _log.warning("disabled the webhook subscription %s: %s", held.lease.subscription_id, reason)


def limited(wanted: EventFilter, access: Access) -> EventFilter:
    """Return the filter, limited to the signers that the owner may see."""
    if access.addresses is None:
        return wanted
    own = access.addresses if wanted.addresses is None else wanted.addresses & access.addresses
    return replace(wanted, addresses=own)


async def send_event(
    send: Send, subscription: Subscription, event_id: str, body: bytes, attempt: int
) -> tuple[Attempt, Answer]:
    """Sign an event, send it once, and return the attempt to record and the answer."""
    at, began_s = datetime.now(UTC), asyncio.get_running_loop().time()
    headers = signed_headers(
        subscription.secrets, message_id=event_id, timestamp=int(at.timestamp()), body=body
    )
    answer = await send(subscription.url or "", {**headers, "content-type": "application/json"}, body)
    duration_s = asyncio.get_running_loop().time() - began_s
    return _attempt(event_id, attempt, at, duration_s, answer), answer


def _attempt(event_id: str, number: int, at: datetime, duration_s: float, answer: Answer) -> Attempt:
    return Attempt(event_id, number, at, duration_s, answer.status, answer.error, answer.body)


def _signer(one: _Item | Pending) -> Hashable:
    return one.chain_id, one.address


@asynccontextmanager
async def stopping(deliverer: Deliverer, *, timeout_s: float) -> AsyncIterator[None]:
    """Stop a deliverer after the body, within a time limit."""
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(timeout_s):
                await deliverer.stop()
        except TimeoutError:
            _log.warning("the leases of webhook subscriptions were not released in time; they expire")
