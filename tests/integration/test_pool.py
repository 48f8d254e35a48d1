"""The pool keeps connections checked out between statements, and no caller waits for one because of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from fencepost.adapters.postgres import pool as pool_module
from fencepost.adapters.postgres.database import close_pool, open_pool
from fencepost.adapters.postgres.pool import Pool

PATIENCE_S = 10.0
WHO = "SELECT pg_backend_pid()"


@asynccontextmanager
async def pool_of(dsn: str, *, size: int) -> AsyncIterator[Pool]:
    async with (
        asyncio.timeout(PATIENCE_S),
        open_pool(
            dsn, size=size, connect_timeout_s=5, lease_duration_s=30, application="fencepost-test"
        ) as pool,
    ):
        yield pool


async def test_consecutive_statements_use_the_same_connection(dsn: str) -> None:
    async with pool_of(dsn, size=3) as pool:
        first = await pool.fetchval(WHO)
        assert [await pool.fetchval(WHO) for _ in range(3)] == [first] * 3
        assert (pool.get_size(), pool.get_idle_size()) == (1, 1)
        async with pool.acquire() as connection:
            assert await connection.fetchval(WHO) == first
            assert pool.get_idle_size() == 0


async def test_concurrent_statements_use_one_connection_each_and_the_rest_wait(dsn: str) -> None:
    async with pool_of(dsn, size=2) as pool:
        asked = [pool.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.05)") for _ in range(6)]
        assert len(set(await asyncio.gather(*asked))) == 2
        assert (pool.get_size(), pool.get_idle_size()) == (2, 2)


async def test_a_waiting_caller_gets_the_next_free_connection(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        sleeping = asyncio.create_task(pool.execute("SELECT pg_sleep(0.1)"))
        await asyncio.sleep(0)
        async with pool.acquire() as connection:
            waiting = asyncio.create_task(pool.fetchval("SELECT 1"))
            assert await connection.fetchval("SELECT 2") == 2
        assert await waiting == 1
        await sleeping


async def test_a_failed_statement_leaves_a_usable_connection(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        before = await pool.fetchval(WHO)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await pool.fetch("SELECT 1 / 0")
        assert await pool.fetchval(WHO) == before


async def test_a_cancelled_caller_leaves_no_statement_behind(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        leaving = asyncio.create_task(pool.execute("SELECT pg_sleep(60)"))
        await asyncio.sleep(0.05)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert (
            await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)'") == 0
        )


async def test_a_connection_cut_while_idle_is_not_used_again(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        before = await pool.fetchval(WHO)
        admin = await asyncpg.connect(dsn)
        await admin.execute("SELECT pg_terminate_backend($1)", before)
        await admin.close()
        await asyncio.sleep(0.1)  # the driver has noticed the cut
        assert await pool.fetchval(WHO) != before


async def test_a_long_idle_connection_is_closed(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool_of(dsn, size=2) as pool:
        asked = [pool.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.05)") for _ in range(2)]
        before = await asyncio.gather(*asked)
        monkeypatch.setattr(pool_module, "_MAX_UNUSED_S", 0.0)
        assert await pool.fetchval(WHO) not in before
        assert await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1)", before) == 0


async def test_a_pool_that_does_not_close_in_time_fails_all_callers_and_opens_nothing_more(dsn: str) -> None:
    """By itself, asyncpg's pool opens new connections for those that wait, after it was closed."""
    async with pool_of(dsn, size=1) as pool:
        before = asyncio.all_tasks()
        sleeping = asyncio.create_task(pool.execute("SELECT pg_sleep(60)"))
        waiting = [asyncio.create_task(pool.fetchval(WHO)) for _ in range(4)]
        while len(pool._acquiring) < len(waiting):  # noqa: ASYNC110 - the pool has no event for it
            await asyncio.sleep(0.01)
        await close_pool(pool, within_s=0.05)
        ended = await asyncio.gather(sleeping, *waiting, return_exceptions=True)
        assert {type(error) for error in ended[1:]} == {asyncpg.InterfaceError}
        assert isinstance(ended[0], asyncpg.ConnectionDoesNotExistError)
        assert asyncio.all_tasks() == before
        assert pool.get_size() == 0


async def test_a_pool_that_closes_serves_the_callers_that_wait(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        asked = [asyncio.create_task(pool.fetchval("SELECT 1 FROM pg_sleep(0.05)")) for _ in range(4)]
        await asyncio.sleep(0)
        await pool.close()
        assert await asyncio.gather(*asked) == [1, 1, 1, 1]


async def test_a_caller_cancelled_as_its_connection_comes_leaves_it_to_the_pool(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        async with pool.acquire():
            waiting = asyncio.create_task(pool.fetchval(WHO))
            await asyncio.sleep(0)
            (acquiring,) = pool._acquiring
            acquiring.add_done_callback(lambda _: waiting.cancel())
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await pool.fetchval("SELECT 1") == 1
