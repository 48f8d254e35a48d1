"""A real PostgreSQL for the whole run, shared by all workers; a fresh database a test, copied from one template."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from fencepost.adapters.postgres import migrate
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres

TEMPLATE = "template_fencepost"


def run_folder() -> Path:
    """One folder a test run, the same for all its workers; others may pass through it (PostgreSQL is not root)."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"alone-{os.getpid()}")
    folder = Path(tempfile.gettempdir()) / f"fencepost-tests-{run[:12]}"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    return folder


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(
        session.config, "workerinput"
    ):  # the last one out: workers have ended before the controller
        shutil.rmtree(run_folder(), ignore_errors=True)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres() -> AsyncIterator[EmbeddedPostgres]:
    # Without fsync a crash of the server still loses nothing (the kernel keeps the pages); only a crash of the machine
    # would, and no test does that. Databases are made several times faster.
    async with embedded_postgres(run_folder() / "postgres", options={"fsync": "off"}) as server:
        await _make_template(server.dsn)
        yield server


async def _make_template(dsn: str) -> None:
    """By whichever worker comes first; the others wait for its lock and find it made."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SELECT pg_advisory_lock(7)")
        if await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", TEMPLATE):
            return
        await connection.execute(f"CREATE DATABASE {TEMPLATE}_new")
        await migrate.apply(with_database(dsn, f"{TEMPLATE}_new"))
        await connection.execute(f"ALTER DATABASE {TEMPLATE}_new RENAME TO {TEMPLATE}")
    finally:
        await connection.close()


def with_database(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


@pytest_asyncio.fixture
async def empty_dsn(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database with nothing in it."""
    async for dsn in _fresh_database(postgres.dsn, "template0"):
        yield dsn


@pytest_asyncio.fixture
async def dsn(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database with our schema and no rows."""
    async for dsn in _fresh_database(postgres.dsn, TEMPLATE):
        yield dsn


async def _fresh_database(dsn: str, template: str) -> AsyncIterator[str]:
    name = f"test_{uuid4().hex[:16]}"
    await _administer(dsn, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield with_database(dsn, name)
    finally:
        await _administer(dsn, f"DROP DATABASE {name} WITH (FORCE)")


async def _administer(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for _ in range(50):
            try:
                await connection.execute(statement)
            except asyncpg.ObjectInUseError:  # two workers copy the template at the same moment
                await asyncio.sleep(0.1)
            else:
                return
        await connection.execute(statement)
    finally:
        await connection.close()
