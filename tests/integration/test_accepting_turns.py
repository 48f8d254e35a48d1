"""Many requests at once: beside others while lanes rest; one statement after the other while lanes write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from fencepost.adapters.postgres import accepting
from fencepost.adapters.postgres.accepting import PARALLEL_BATCHES, Accepting
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.ports import AcceptOutcome, NewRequest
from fencepost.application.tx_ids import new_tx_id
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import Intent, Kind
from fencepost.domain.transaction import Call
from fencepost.runtime.clock import MonotonicClock
from fix_core import eventually

APPLICATION = "fencepost-turns"
SIGNER = Signer(31337, Address("0x" + "ab" * 20))
MANY = accepting.MOST_REQUESTS_A_COMMIT


def many(name: str) -> list[NewRequest]:
    """As many as one statement takes: nobody shares it."""
    intent = Intent(call=Call(to=SIGNER.address))
    return [
        NewRequest(new_tx_id(), SIGNER, f"{name}-{number}", kind=Kind.INTENT, intent=intent)
        for number in range(MANY)
    ]


@asynccontextmanager
async def accepting_beside(pool: Pool, *, lanes_rested_s: float) -> AsyncIterator[Accepting]:
    taking = Accepting(pool, clock=MonotonicClock(), node="a", lanes_rested_s=lambda: lanes_rested_s)
    yield taking
    await taking.drain()


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Pool]:
    async with open_pool(
        dsn, size=8, connect_timeout_s=5, lease_duration_s=60, application=APPLICATION
    ) as opened:
        yield opened


class Watcher:
    """Counts who waits. A connection of its own: within a transaction it would always see the same."""

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
    """Whoever stores something waits."""
    holding, watching = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        async with holding.transaction():
            await holding.execute("LOCK TABLE managed_tx IN EXCLUSIVE MODE")
            yield Watcher(watching)
    finally:
        await holding.close()
        await watching.close()


async def test_while_lanes_rest_they_are_stored_side_by_side(dsn: str, pool: Pool) -> None:
    async with accepting_beside(pool, lanes_rested_s=60.0) as taking, asyncio.TaskGroup() as group:
        async with table_held(dsn) as watcher:
            asked = [
                group.create_task(taking.accept(many(f"r{number}"))) for number in range(PARALLEL_BATCHES + 2)
            ]
            await watcher.until_waiting(PARALLEL_BATCHES)
            await asyncio.sleep(0.05)
            assert await watcher.waiting() == PARALLEL_BATCHES  # lanes have connections left
        answers = [answer for answered in await asyncio.gather(*asked) for answer in answered]
    assert {answer.outcome for answer in answers} == {AcceptOutcome.CREATED}
    assert len(answers) == MANY * len(asked)


async def test_while_lanes_write_they_take_turns(
    dsn: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "BATCH_BESIDE_AFTER_S", 60.0)
    async with accepting_beside(pool, lanes_rested_s=0.0) as taking, asyncio.TaskGroup() as group:
        async with table_held(dsn) as watcher:
            asked = [group.create_task(taking.accept(many(f"w{number}"))) for number in range(3)]
            await watcher.until_waiting(1)
            await asyncio.sleep(0.05)
            assert await watcher.waiting() == 1
        answers = await asyncio.gather(*asked)
    assert [len(answered) for answered in answers] == [MANY] * 3


async def test_one_that_takes_long_does_not_stop_the_others(dsn: str, pool: Pool) -> None:
    async with accepting_beside(pool, lanes_rested_s=0.0) as taking, asyncio.TaskGroup() as group:
        async with table_held(dsn) as watcher:
            asked = [group.create_task(taking.accept(many(f"l{number}"))) for number in range(3)]
            await watcher.until_waiting(3)
        await asyncio.gather(*asked)


async def test_small_batches_share_a_statement_and_each_gets_its_own_answers(pool: Pool) -> None:
    first, second, first_again = many("s")[:3], many("t")[:2], many("s")[:3]
    async with accepting_beside(pool, lanes_rested_s=60.0) as taking:
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
