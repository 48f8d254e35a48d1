"""Connections stay taken between statements, and nobody goes without one for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from fencepost.adapters.postgres import pool as pool_module
from fencepost.adapters.postgres.database import open_pool
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


async def test_one_statement_after_another_has_the_same_connection(dsn: str) -> None:
    async with pool_of(dsn, size=3) as pool:
        first = await pool.fetchval(WHO)
        assert [await pool.fetchval(WHO) for _ in range(3)] == [first] * 3
        assert (pool.get_size(), pool.get_idle_size()) == (1, 1)
        async with pool.acquire() as connection:
            assert await connection.fetchval(WHO) == first
            assert pool.get_idle_size() == 0


async def test_statements_side_by_side_have_one_each_and_the_rest_waits(dsn: str) -> None:
    async with pool_of(dsn, size=2) as pool:
        asked = [pool.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.05)") for _ in range(6)]
        assert len(set(await asyncio.gather(*asked))) == 2
        assert (pool.get_size(), pool.get_idle_size()) == (2, 2)


async def test_who_waits_for_a_connection_gets_the_next_that_is_free(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        sleeping = asyncio.create_task(pool.execute("SELECT pg_sleep(0.1)"))
        await asyncio.sleep(0)
        async with pool.acquire() as connection:
            waiting = asyncio.create_task(pool.fetchval("SELECT 1"))
            assert await connection.fetchval("SELECT 2") == 2
        assert await waiting == 1
        await sleeping


async def test_a_refused_statement_leaves_a_connection_that_works(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        before = await pool.fetchval(WHO)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await pool.fetch("SELECT 1 / 0")
        assert await pool.fetchval(WHO) == before


async def test_who_goes_away_leaves_no_statement_behind(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        leaving = asyncio.create_task(pool.execute("SELECT pg_sleep(60)"))
        await asyncio.sleep(0.05)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert (
            await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)'") == 0
        )


async def test_a_connection_that_was_cut_while_it_rested_is_not_used_again(dsn: str) -> None:
    async with pool_of(dsn, size=1) as pool:
        before = await pool.fetchval(WHO)
        admin = await asyncpg.connect(dsn)
        await admin.execute("SELECT pg_terminate_backend($1)", before)
        await admin.close()
        await asyncio.sleep(0.1)  # it is heard of
        assert await pool.fetchval(WHO) != before


async def test_a_connection_that_nobody_used_for_long_is_ended(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool_of(dsn, size=2) as pool:
        asked = [pool.fetchval("SELECT pg_backend_pid() FROM pg_sleep(0.05)") for _ in range(2)]
        before = await asyncio.gather(*asked)
        monkeypatch.setattr(pool_module, "_UNUSED_S_MAX", 0.0)
        assert await pool.fetchval(WHO) not in before
        assert await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY ($1)", before) == 0
