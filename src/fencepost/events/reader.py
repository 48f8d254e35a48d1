"""Read events for one caller: filter them, and wait for new ones.

Waiting polls: one task per process asks for the newest place while at least one caller waits, however many callers wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from fencepost.domain.ids import Address
from fencepost.events.log import BEGINNING, EventLog, Place
from fencepost.events.types import Event, EventType, events_of

POLL_INTERVAL_S = 0.25
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
    _waiting: set[asyncio.Event] = field(default_factory=set)
    _poller: asyncio.Task[None] | None = None

    async def page(
        self, after: Place, wanted: EventFilter = ALL_EVENTS, *, limit: int = MAX_EVENTS
    ) -> EventPage:
        """Return the matching events of the next stretch of the log; it may contain none although later ones match.

        `next` equals `after` only at the end of the log.
        """
        read = await self.log.read(after)
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
                page = await self.page(after, wanted, limit=limit)
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

    def _watch(self, moved: asyncio.Event) -> None:
        self._waiting.add(moved)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.get_running_loop().create_task(self._poll(), name="event-poll")

    async def _poll(self) -> None:
        """Wake the waiting callers when the log has grown; end when none waits."""
        seen = BEGINNING
        while self._waiting:
            try:
                newest = await self.log.newest()
            except Exception:  # noqa: BLE001 - the callers read again, and raise what they meet
                newest = BEGINNING
            if newest != seen or self.is_stopped():
                for moved in self._waiting:
                    moved.set()
            seen = newest
            await asyncio.sleep(self.poll_interval_s)
