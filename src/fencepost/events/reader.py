"""Read events for one caller: filter them, and wait for new ones.

One task per process asks for the newest place while at least one caller waits, however many callers wait. A hint makes it
ask at once; polling is the truth, so a lost hint costs at most `POLL_INTERVAL_S`. A hint may come before its entries can
be read, because an older database transaction still runs: the task then asks again soon, and less and less often.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.domain.ids import Address
from fencepost.events.log import BEGINNING, EventLog, LogPage, Place
from fencepost.events.types import Event, EventType, events_of

POLL_INTERVAL_S = 1.0
HINT_RETRY_S = 0.02  # the first pause after a hint; each further one is twice as long
MAX_EVENTS = 500


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Select events that match all given fields; None matches everything.

    With `tags`, only events of transactions that have all of them match. Events that concern no signer match only if
    `addresses` is None.
    """

    types: frozenset[EventType] | None = None
    addresses: frozenset[Address] | None = None
    chain_id: int | None = None
    tags: tuple[str, ...] = ()

    def matches(self, event: Event) -> bool:
        """Return whether the event matches, apart from its tags."""
        return (
            (self.types is None or event.type in self.types)
            and (self.addresses is None or event.address in self.addresses)
            and (self.chain_id is None or event.chain_id == self.chain_id)
            and (not self.tags or event.tx_id is not None)
        )


ALL_EVENTS = EventFilter()


ReadTags = Callable[[Collection[UUID]], Awaitable[Mapping[UUID, Collection[str]]]]


async def no_tags(_tx_ids: Collection[UUID]) -> Mapping[UUID, Collection[str]]:
    """Return no tags, for a ledger that stores none."""
    return {}


@dataclass(frozen=True, slots=True)
class EventPage:
    """Hold matching events in order, and the place to continue from, which may lie behind the last one."""

    events: Sequence[Event]
    next: Place


@dataclass(slots=True)
class EventReader:
    """Read events, and wait for new ones."""

    log: EventLog
    read_tags: ReadTags = no_tags
    poll_interval_s: float = POLL_INTERVAL_S
    is_stopped: Callable[[], bool] = lambda: False
    on_waiting: Callable[[], object] = lambda: None  # called again and again while callers wait
    _waiting: set[asyncio.Event] = field(default_factory=set)
    _poller: asyncio.Task[None] | None = None
    _hinted: asyncio.Event = field(default_factory=asyncio.Event)
    _shared_reads: dict[Place, asyncio.Task[LogPage]] = field(default_factory=dict)  # that have not begun

    def hint(self) -> None:
        """Look for new events now, if a caller waits: the log may have grown, or the node stops."""
        if self._waiting:
            self._hinted.set()

    async def page(
        self, after: Place, wanted: EventFilter = ALL_EVENTS, *, limit: int = MAX_EVENTS
    ) -> EventPage:
        """Return the matching events of the next stretch of the log; it may contain none although later ones match.

        `next` equals `after` only at the end of the log.
        """
        return await self._select(await self.log.read(after), after, wanted, limit)

    async def _select(self, read: LogPage, after: Place, wanted: EventFilter, limit: int) -> EventPage:
        events = [
            event
            for entry in read.entries
            for event in events_of(entry)
            if event.place > after and wanted.matches(event)
        ]
        if wanted.tags:
            tags = await self.read_tags({event.tx_id for event in events if event.tx_id is not None})
            needed = set(wanted.tags)
            events = [event for event in events if event.tx_id and needed <= set(tags.get(event.tx_id, ()))]
        if len(events) > limit:
            return EventPage(events[:limit], events[limit - 1].place)
        return EventPage(events, read.read_to)

    async def wait(
        self, after: Place, wanted: EventFilter = ALL_EVENTS, *, limit: int = MAX_EVENTS, timeout_s: float
    ) -> EventPage:
        """Return the next matching events, once there are any, or an empty page when the time is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        moved = asyncio.Event()
        try:
            while True:
                moved.clear()
                page = await self._select(await self._read_shared(after), after, wanted, limit)
                left_s = deadline_s - loop.time()
                if page.events or left_s <= 0 or self.is_stopped():
                    return page
                if page.next != after:
                    after = page.next
                elif moved not in self._waiting:
                    self._watch(moved)  # and read once more: the log may have grown in between
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left_s):
                            await moved.wait()
        finally:
            self._waiting.discard(moved)

    async def follow(self, after: Place, wanted: EventFilter = ALL_EVENTS) -> AsyncIterator[Event]:
        """Yield every matching event after a place, for ever."""
        while not self.is_stopped():
            page = await self.wait(after, wanted, timeout_s=60.0)
            for event in page.events:
                yield event
            after = page.next

    async def _read_shared(self, after: Place) -> LogPage:
        """Read the log once for all callers that wait at the same place and were woken together.

        A caller never joins a read that has begun: what woke the caller may have been written after it.
        """

        async def read() -> LogPage:
            del self._shared_reads[after]
            return await self.log.read(after)

        task = self._shared_reads.get(after)
        if task is None:
            task = self._shared_reads[after] = asyncio.get_running_loop().create_task(
                read(), name="event-read"
            )
            task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    def _watch(self, moved: asyncio.Event) -> None:
        self._waiting.add(moved)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll(), name="event-poll")

    async def _poll(self) -> None:
        """Wake the waiting callers when the log has grown; end when none waits."""
        seen, pause_s = BEGINNING, self.poll_interval_s
        while self._waiting:
            self.on_waiting()
            newest = await self._newest()
            has_moved = newest is None or newest != seen
            if has_moved:
                for moved in self._waiting:
                    moved.set()
            seen = newest or seen
            pause_s = HINT_RETRY_S if has_moved else min(pause_s * 2, self.poll_interval_s)
            if await self._hint_came(pause_s):
                pause_s = HINT_RETRY_S

    async def _newest(self) -> Place | None:
        """Return the newest place; None if the callers must look for themselves: they stop, or raise what they meet."""
        if self.is_stopped():
            return None
        try:
            return await self.log.newest()
        except Exception:  # noqa: BLE001 - the callers read the log, and raise the error
            return None

    async def _hint_came(self, within_s: float) -> bool:
        """Wait, and return whether a hint came; hints that come faster than `HINT_RETRY_S` count as one."""
        await asyncio.sleep(min(HINT_RETRY_S, within_s))
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s - HINT_RETRY_S):
                await self._hinted.wait()
        came = self._hinted.is_set()
        self._hinted.clear()
        return came


def _retrieve(task: asyncio.Task[LogPage]) -> None:
    """Mark the error of a shared read as seen: all its callers may have been cancelled."""
    if not task.cancelled():
        task.exception()
