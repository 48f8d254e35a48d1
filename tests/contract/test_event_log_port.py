"""One contract for the event log in PostgreSQL and in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from fakes.ledger_lab import LEASE_S, SKEW_S
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.event_log import PostgresEventLog
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.application.ports import Ledger
from fencepost.domain.states import State
from fencepost.events.log import BEGINNING, EventLog, EventsExpired, Place
from fencepost.events.reader import EventFilter, EventReader
from fencepost.events.types import EventType
from fencepost.runtime.clock import MonotonicClock
from fencepost.testing import InMemoryDatabase, InMemoryLedger
from fencepost.testing.event_log import InMemoryEventLog
from integration.stage import new_request, open_stage, until

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class LogLab:
    log: EventLog
    ledger: Ledger
    end_all: Callable[[float], Awaitable[None]]  # end every transaction, as long ago as this

    async def store(self, *numbers: int) -> None:
        for number in numbers:
            await self.ledger.accept([new_request(number)])

    async def read_all(self, after: Place = BEGINNING, *, count: int, max_batches: int = 2) -> list[Place]:
        """Read page by page until `count` entries came; other users of the server may delay the newest."""
        found: list[Place] = []

        async def came() -> bool:
            nonlocal after
            page = await self.log.read(after, max_batches=max_batches)
            found.extend(entry.place for entry in page.entries)
            after = page.read_to
            return len(found) >= count

        await until(came)
        return found


@pytest_asyncio.fixture
async def memory_log() -> LogLab:
    database = InMemoryDatabase()
    ledger = InMemoryLedger(database, node="n", lease_duration_s=LEASE_S, skew_allowance_s=SKEW_S)

    async def end_all(ago_s: float) -> None:
        database.txs = {tx_id: tx.changed(state=State.CANCELLED) for tx_id, tx in database.txs.items()}
        database.journal = [replace(row, at=row.at - timedelta(seconds=ago_s)) for row in database.journal]

    return LogLab(InMemoryEventLog(database), ledger, end_all)


@pytest_asyncio.fixture
async def postgres_log(dsn: str) -> AsyncIterator[LogLab]:
    async with (
        open_stage(dsn) as stage,
        open_pool(dsn, size=2, connect_timeout_s=10, lease_duration_s=LEASE_S, application="test") as pool,
    ):

        async def end_all(ago_s: float) -> None:
            await stage.admin.execute(
                "UPDATE managed_tx SET state = 'CANCELLED', is_live = false,"
                " finished_at = clock_timestamp() - make_interval(secs => $1)",
                ago_s,
            )
            await stage.admin.execute("UPDATE journal_batch SET at = at - make_interval(secs => $1)", ago_s)

        ledger = PostgresLedger(
            pool,
            clock=MonotonicClock(),
            node="n",
            incarnation=uuid4(),
            lease_duration_s=LEASE_S,
            skew_allowance_s=SKEW_S,
        )
        yield LogLab(PostgresEventLog(pool), ledger, end_all)
        await ledger.drain()


@pytest.fixture(params=["memory_log", "postgres_log"])
def lab(request: pytest.FixtureRequest) -> LogLab:
    made: LogLab = request.getfixturevalue(request.param)
    return made


async def test_an_empty_log_has_no_entries(lab: LogLab) -> None:
    page = await lab.log.read(BEGINNING)
    assert (list(page.entries), page.read_to, await lab.log.newest()) == ([], BEGINNING, BEGINNING)


async def test_pages_have_every_entry_once_in_order(lab: LogLab) -> None:
    await lab.store(*range(1, 8))
    places = await lab.read_all(count=7)
    assert len(places) == len(set(places)) == 7
    assert places == sorted(places)
    assert await lab.log.newest() == places[-1]
    assert await lab.read_all(places[2], count=4) == places[3:]


async def test_a_place_inside_an_entry_returns_that_entry_again(lab: LogLab) -> None:
    await lab.store(1)
    (place,) = await lab.read_all(count=1)
    assert await lab.read_all(place._replace(part=0), count=1) == [place]
    assert not (await lab.log.read(place)).entries


async def test_live_transactions_keep_their_entries(lab: LogLab) -> None:
    await lab.store(1)
    await lab.read_all(count=1)
    assert await lab.log.prune(older_than_s=0.0) == 0
    assert len(await lab.read_all(count=1)) == 1


async def test_young_entries_stay_and_old_ones_go(lab: LogLab) -> None:
    await lab.store(1, 2)
    await lab.read_all(count=2)
    await lab.end_all(2 * DAY_S)
    assert await lab.log.prune(older_than_s=3 * DAY_S) == 0
    assert await lab.log.prune(older_than_s=DAY_S) == 2
    assert not (await lab.log.read(BEGINNING)).entries


async def test_a_reader_behind_removed_entries_gets_an_error(lab: LogLab) -> None:
    await lab.store(1, 2)
    first, second = await lab.read_all(count=2)
    await lab.end_all(2 * DAY_S)
    await lab.log.prune(older_than_s=DAY_S)
    with pytest.raises(EventsExpired):
        await lab.log.read(first)
    assert not (await lab.log.read(second)).entries
    assert not (await lab.log.read(BEGINNING)).entries


async def test_a_waiting_reader_gets_the_next_event(lab: LogLab) -> None:
    reader = EventReader(lab.log, poll_interval_s=0.02)
    await lab.store(1)
    first = (await reader.wait(BEGINNING, timeout_s=10)).next
    await lab.store(2)
    page = await reader.wait(first, timeout_s=10)
    assert [event.type for event in page.events] == [EventType.TX_QUEUED]


async def test_a_reader_passes_what_it_does_not_want(lab: LogLab) -> None:
    reader = EventReader(lab.log, poll_interval_s=0.02)
    await lab.store(1)
    (place,) = await lab.read_all(count=1)
    wanted = EventFilter(types=frozenset({EventType.TX_CONFIRMED}))
    page = await reader.wait(BEGINNING, wanted, timeout_s=0.1)
    assert (list(page.events), page.next) == ([], place)
    nothing = await reader.page(BEGINNING, EventFilter(addresses=frozenset()))
    assert not nothing.events


async def test_a_late_commit_is_not_skipped(dsn: str, postgres_log: LogLab) -> None:
    """A writer that began first and commits last is read first; until then the log ends before it."""
    late, insert = (
        await asyncpg.connect(dsn),
        (
            "INSERT INTO journal_batch (chain_id, signer, tx_ids, events, states) VALUES (1, $1, '{NULL}', '{Pause}', '{NULL}')"
        ),
    )
    try:
        async with late.transaction():
            await late.execute(insert, "0x" + "01" * 20)
            await postgres_log.store(1)
            assert not (await postgres_log.log.read(BEGINNING)).entries
        places = await postgres_log.read_all(count=2)
    finally:
        await late.close()
    entries = (await postgres_log.log.read(BEGINNING)).entries
    assert [entry.event for entry in entries] == ["Pause", "Receive"]
    assert len(places) == 2
