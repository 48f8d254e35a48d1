"""Concurrent requests: in parallel while lanes are idle, one statement after another while lanes write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
import pytest

from fencepost.adapters.postgres import request_writer
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.request_writer import PARALLEL_BATCHES, RequestWriter
from fencepost.application.ports import Accepted, AcceptOutcome, NewRequest
from fencepost.application.uuid7 import new_tx_id
from fencepost.domain.ids import Address, Signer
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent, Kind
from fencepost.runtime.clock import MonotonicClock
from fixtures.core import eventually

APPLICATION = "fencepost-turns"
SIGNER = Signer(31337, Address("0x" + "ab" * 20))
MANY = request_writer.MAX_REQUESTS_PER_COMMIT


def many(name: str) -> list[NewRequest]:
    """Return as many requests as one statement takes, so that none is shared."""
    intent = Intent(call=Call(to=SIGNER.address))
    return [
        NewRequest(new_tx_id(), SIGNER, f"{name}-{number}", kind=Kind.INTENT, intent=intent)
        for number in range(MANY)
    ]


@asynccontextmanager
async def accepting_beside(pool: Pool, *, lanes_idle_s: float) -> AsyncIterator[RequestWriter]:
    taking = RequestWriter(pool, clock=MonotonicClock(), node="a", lanes_idle_s=lambda: lanes_idle_s)
    yield taking
    await taking.drain()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    async with open_pool(
        dsn, size=8, connect_timeout_s=5, lease_duration_s=60, application=APPLICATION
    ) as opened:
        yield opened


class Watcher:
    """Counts waiting statements on its own connection: within a transaction the view would not change."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def waiting(self) -> int:
        return int(
            await self._connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'",
                APPLICATION,
            )
        )

    async def until_waiting(self, count: int) -> None:
        async def there_are() -> bool:
            return await self.waiting() >= count

        await eventually(there_are)


@asynccontextmanager
async def table_held(dsn: str) -> AsyncIterator[Watcher]:
    """Lock the table so that every insert waits."""
    holding, watching = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        async with holding.transaction():
            await holding.execute("LOCK TABLE managed_tx IN EXCLUSIVE MODE")
            yield Watcher(watching)
    finally:
        await holding.close()
        await watching.close()


async def test_requests_are_stored_in_parallel_while_lanes_are_idle(dsn: str, pool: Pool) -> None:
    async with accepting_beside(pool, lanes_idle_s=60.0) as taking, asyncio.TaskGroup() as group:
        async with table_held(dsn) as watcher:
            asked = [
                group.create_task(taking.accept(many(f"r{number}"))) for number in range(PARALLEL_BATCHES + 2)
            ]
            await watcher.until_waiting(PARALLEL_BATCHES)
            await asyncio.sleep(0.05)
            assert await watcher.waiting() == PARALLEL_BATCHES  # connections remain for the lanes
        answers = [answer for answered in await asyncio.gather(*asked) for answer in answered]
    assert {answer.outcome for answer in answers} == {AcceptOutcome.CREATED}
    assert len(answers) == MANY * len(asked)


async def test_requests_are_stored_in_turn_while_lanes_write(
    dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_writer, "BATCH_OVERLAP_AFTER_S", 60.0)
    async with accepting_beside(pool, lanes_idle_s=0.0) as taking, asyncio.TaskGroup() as group:
        async with table_held(dsn) as watcher:
            asked = [group.create_task(taking.accept(many(f"w{number}"))) for number in range(3)]
            await watcher.until_waiting(1)
            await asyncio.sleep(0.05)
            assert await watcher.waiting() == 1
        answers = await asyncio.gather(*asked)
    assert [len(answered) for answered in answers] == [MANY] * 3


async def test_a_slow_statement_does_not_delay_the_others(dsn: str, pool: Pool) -> None:
    async with accepting_beside(pool, lanes_idle_s=0.0) as taking, asyncio.TaskGroup() as group:
        async with table_held(dsn) as watcher:
            asked = [group.create_task(taking.accept(many(f"l{number}"))) for number in range(3)]
            await watcher.until_waiting(3)
        await asyncio.gather(*asked)


async def test_small_batches_share_a_statement_and_each_gets_its_own_answers(pool: Pool) -> None:
    first, second, first_again = many("s")[:3], many("t")[:2], many("s")[:3]
    async with accepting_beside(pool, lanes_idle_s=60.0) as taking:
        answers = await asyncio.gather(
            taking.accept(first), taking.accept(second), taking.accept(first_again)
        )
    assert [[answer.tx_id for answer in answered] for answered in answers] == [
        [request.tx_id for request in asked] for asked in (first, second, first)
    ]
    assert [{answer.outcome for answer in answered} for answered in answers] == [
        {AcceptOutcome.CREATED},
        {AcceptOutcome.CREATED},
        {AcceptOutcome.KNOWN},
    ]
    assert await pool.fetchval("SELECT count(DISTINCT xmin::text) FROM managed_tx") == 1


@pytest.mark.parametrize("request_id", ["slow", None])
async def test_a_request_to_a_slow_database_is_stored_once_and_accepted(
    dsn: str, request_id: str | None
) -> None:
    """The machine is busy, the server works: a slow statement is no outage."""
    locker = await asyncpg.connect(dsn)
    transaction = locker.transaction()
    await transaction.start()
    await locker.execute("LOCK TABLE journal_batch IN EXCLUSIVE MODE")
    intent = Intent(call=Call(to=SIGNER.address))
    request = NewRequest(new_tx_id(), SIGNER, request_id, kind=Kind.INTENT, intent=intent)
    async with (
        open_pool(
            dsn,
            size=4,
            connect_timeout_s=5,
            lease_duration_s=1.2,  # statements may wait 0.3 s for a lock
            application=APPLICATION,
        ) as pool,
        accepting_beside(pool, lanes_idle_s=1.0) as taking,
    ):
        storing = asyncio.create_task(taking.accept([request]))
        await asyncio.sleep(1.0)  # some tries have failed by then
        assert not storing.done()
        await transaction.rollback()
        (accepted,) = await storing
    assert (accepted.outcome, accepted.tx_id) == (AcceptOutcome.CREATED, request.tx_id)
    assert await locker.fetchval("SELECT count(*) FROM managed_tx") == 1
    await locker.close()


@pytest.mark.parametrize("request_id", ["slow", None])
async def test_a_request_with_a_late_answer_is_stored_once_and_accepted(
    pool: Pool, request_id: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    intent = Intent(call=Call(to=SIGNER.address))
    request = NewRequest(new_tx_id(), SIGNER, request_id, kind=Kind.INTENT, intent=intent)
    async with accepting_beside(pool, lanes_idle_s=1.0) as taking:
        store, answers_lost = taking._store, 1

        async def lose_an_answer(requests: Sequence[NewRequest]) -> dict[UUID, Accepted]:
            nonlocal answers_lost
            stored = await store(requests)
            if answers_lost:
                answers_lost -= 1
                raise TimeoutError
            return stored

        monkeypatch.setattr(taking, "_store", lose_an_answer)
        (accepted,) = await taking.accept([request])
    assert (accepted.outcome, accepted.tx_id) == (AcceptOutcome.CREATED, request.tx_id)
    assert await pool.fetchval("SELECT count(*) FROM managed_tx") == 1
