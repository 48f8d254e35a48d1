"""The oldest and the newest available PostgreSQL, with an empty database on each."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fixtures.postgres import _fresh_database, run_folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_16() -> AsyncIterator[EmbeddedPostgres]:
    async with embedded_postgres(run_folder() / "postgres-16", version=16) as server:
        yield server


@pytest_asyncio.fixture(params=[16, 18])
async def empty_dsn_of_each(
    request: pytest.FixtureRequest, postgres_16: EmbeddedPostgres, postgres: EmbeddedPostgres
) -> AsyncIterator[str]:
    server = {16: postgres_16, 18: postgres}[request.param]
    async for dsn in _fresh_database(server.dsn, "template0"):
        yield dsn


@pytest_asyncio.fixture
async def empty(empty_dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Open a connection to the empty database."""
    connection = await asyncpg.connect(empty_dsn)
    try:
        yield connection
    finally:
        await connection.close()
