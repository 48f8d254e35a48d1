"""Waiting readers: a hint wakes them, polling finds what no hint announced, and readers at one place share a read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from fencepost.domain.ids import Address
from fencepost.events import reader as reader_module
from fencepost.events.log import BEGINNING, MAX_BATCHES, EventLog, LogEntry, LogPage, Place
from fencepost.events.reader import EventFilter, EventReader
from fencepost.events.types import EventType

PATIENCE_S = 30.0
NEVER_S = 3_600.0


class ListLog(EventLog):
    """A log whose last entries may be hidden, as by an older database transaction that still runs."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.hidden = 0
        self.reads = 0
        self.looks = 0
        self.on_newest: Callable[[], None] = lambda: None

    def add(self, *, hidden: bool = False) -> None:
        number = len(self.entries) + 1
        at = datetime(2026, 1, 1, tzinfo=UTC)
        self.entries.append(
            LogEntry(Place(1, number, number), at, 1, Address("0x" + "ab" * 20), None, "Pause", None, {})
        )
        self.hidden += hidden

    @property
    def visible(self) -> list[LogEntry]:
        return self.entries[: len(self.entries) - self.hidden]

    async def read(self, after: Place, *, max_batches: int = MAX_BATCHES) -> LogPage:
        self.reads += 1
        await asyncio.sleep(0)
        found = [entry for entry in self.visible if entry.place > after][:max_batches]
        return LogPage(found, found[-1].place if found else after)

    async def newest(self) -> Place:
        await asyncio.sleep(0)
        self.looks += 1
        self.on_newest()
        return self.visible[-1].place if self.visible else BEGINNING

    async def prune(self, *, older_than_s: float) -> int:
        raise NotImplementedError


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the reader has no event for it
            await asyncio.sleep(0.001)


async def test_a_hint_wakes_a_reader_that_would_poll_much_later() -> None:
    log = ListLog()
    reader = EventReader(log, poll_interval_s=NEVER_S)
    waiting = asyncio.create_task(reader.wait(BEGINNING, timeout_s=NEVER_S))
    await until(lambda: log.looks > 0)
    await until(lambda: bool(reader._waiting))
    log.add()
    reader.hint()
    async with asyncio.timeout(PATIENCE_S):
        page = await waiting
    assert [event.type for event in page.events] == [EventType.SIGNER_PAUSED]


async def test_an_entry_that_becomes_readable_after_its_hint_is_found_soon() -> None:
    log = ListLog()
    reader = EventReader(log, poll_interval_s=NEVER_S)
    waiting = asyncio.create_task(reader.wait(BEGINNING, timeout_s=NEVER_S))
    await until(lambda: log.looks > 0)
    log.add(hidden=True)
    reader.hint()
    looks = log.looks
    await until(lambda: log.looks > looks + 1)
    log.hidden = 0  # the older transaction ends, and sends no hint
    async with asyncio.timeout(PATIENCE_S):
        assert (await waiting).events


async def test_without_hints_a_reader_polls() -> None:
    log = ListLog()
    reader = EventReader(log, poll_interval_s=0.01)
    waiting = asyncio.create_task(reader.wait(BEGINNING, timeout_s=NEVER_S))
    await until(lambda: log.looks > 3)
    log.add()
    async with asyncio.timeout(PATIENCE_S):
        assert (await waiting).events


async def test_an_idle_log_is_asked_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    log = ListLog()
    reader = EventReader(log, poll_interval_s=reader_module.POLL_INTERVAL_S)

    async def no_hint(_self: EventReader, within_s: float) -> bool:
        await asyncio.sleep(0)
        pauses.append(within_s)
        return False

    monkeypatch.setattr(EventReader, "_hint_came", no_hint)
    log.add()
    waiting = asyncio.create_task(reader.wait(log.entries[-1].place, timeout_s=NEVER_S))
    await until(lambda: len(pauses) > 20)
    waiting.cancel()
    assert pauses[0] == reader_module.HINT_RETRY_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == reader_module.POLL_INTERVAL_S


async def test_readers_that_wait_at_one_place_share_a_read() -> None:
    log = ListLog()
    reader = EventReader(log, poll_interval_s=NEVER_S)
    waits = [asyncio.create_task(reader.wait(BEGINNING, timeout_s=NEVER_S)) for _ in range(50)]
    await until(lambda: len(reader._waiting) == 50)
    await until(lambda: log.looks > 0)
    before = log.reads
    log.add()
    reader.hint()
    async with asyncio.timeout(PATIENCE_S):
        pages = await asyncio.gather(*waits)
    assert all(len(page.events) == 1 for page in pages)
    assert log.reads - before <= 2


async def test_a_reader_that_is_cancelled_leaves_the_others_their_read() -> None:
    log = ListLog()
    reader = EventReader(log, poll_interval_s=NEVER_S)
    first, second = (asyncio.create_task(reader.wait(BEGINNING, timeout_s=NEVER_S)) for _ in range(2))
    await until(lambda: len(reader._waiting) == 2)
    log.add()
    reader.hint()
    first.cancel()
    async with asyncio.timeout(PATIENCE_S):
        assert (await second).events
    assert first.cancelled()


async def test_a_failure_of_the_log_reaches_the_waiting_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    log = ListLog()
    reader = EventReader(log, poll_interval_s=0.01)
    waiting = asyncio.create_task(reader.wait(BEGINNING, timeout_s=NEVER_S))
    await until(lambda: log.looks > 0)

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("gone")

    log.on_newest = fail
    monkeypatch.setattr(log, "read", fail)
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(PATIENCE_S):
            await waiting


async def test_a_stop_ends_waits_without_an_event() -> None:
    log, stopped = ListLog(), False
    reader = EventReader(log, poll_interval_s=NEVER_S, is_stopped=lambda: stopped)
    waiting = asyncio.create_task(reader.wait(BEGINNING, timeout_s=NEVER_S))
    await until(lambda: log.looks > 0)
    stopped = True
    reader.hint()
    async with asyncio.timeout(PATIENCE_S):
        assert not (await waiting).events


async def test_a_wait_ends_in_time_and_returns_how_far_it_read() -> None:
    log = ListLog()
    log.add()
    reader = EventReader(log, poll_interval_s=0.01)
    page = await reader.wait(BEGINNING, EventFilter(types=frozenset()), timeout_s=0.05)
    assert (list(page.events), page.next) == ([], log.entries[-1].place)


async def test_hints_without_readers_do_nothing_and_readers_are_announced() -> None:
    announced: list[bool] = []
    log = ListLog()
    reader = EventReader(log, poll_interval_s=0.01, on_waiting=lambda: announced.append(True))
    reader.hint()
    await asyncio.sleep(0)
    assert (log.looks, announced) == (0, [])
    await reader.wait(BEGINNING, timeout_s=0.02)
    assert announced
