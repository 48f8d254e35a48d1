"""Migrations under concurrency, changed files, failures and missing rights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import Connection
from fencepost.adapters.postgres.migrate import Migration
from fencepost.dev.postgres import EmbeddedPostgres
from fencepost.errors import DatabaseUnusable, MigrationError

FIRST = Migration(1, "first", "CREATE TABLE one (id int)")
SECOND = Migration(2, "second", "CREATE TABLE two (id int)")
BROKEN = Migration(2, "broken", "CREATE TABLE two (id int); CREATE TABLE three (id nonsense)")


async def tables(connection: Connection) -> set[str]:
    rows = await connection.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'"
    )
    return {row["relname"] for row in rows}


async def recorded(connection: Connection) -> list[tuple[int, str, str]]:
    rows = await connection.fetch("SELECT number, name, checksum FROM schema_migration ORDER BY number")
    return [(row["number"], row["name"], row["checksum"]) for row in rows]


async def test_ten_nodes_start_together_on_an_empty_database(empty_dsn_of_each: str) -> None:
    dsn = empty_dsn_of_each
    applied = await asyncio.gather(*(migrate.apply(dsn) for _ in range(10)))
    workers = [done for done in applied if done]
    assert len(workers) == 1, "more than one of them thought that it was first"
    assert workers[0] == migrate.available()
    connection = await asyncpg.connect(dsn)
    try:
        assert await recorded(connection) == [(m.number, m.name, m.checksum) for m in migrate.available()]
    finally:
        await connection.close()


async def test_a_second_run_has_nothing_to_do(empty_dsn: str, empty: Connection) -> None:
    assert await migrate.apply(empty_dsn, migrations=[FIRST]) == [FIRST]
    assert await migrate.apply(empty_dsn, migrations=[FIRST]) == []
    assert await migrate.apply(empty_dsn, migrations=[FIRST, SECOND]) == [SECOND]
    assert await tables(empty) == {"one", "two", "schema_migration"}


async def test_a_changed_file_is_rejected_and_nothing_after_it_runs(
    empty_dsn: str, empty: Connection
) -> None:
    await migrate.apply(empty_dsn, migrations=[FIRST])
    changed = Migration(1, "first", FIRST.sql + " -- only a comment")
    with pytest.raises(MigrationError, match=r"0001_first was changed .* use .*a new database"):
        await migrate.apply(empty_dsn, migrations=[changed, SECOND])
    assert await tables(empty) == {"one", "schema_migration"}


async def test_a_database_newer_than_the_program_is_rejected(empty_dsn: str, empty: Connection) -> None:
    await migrate.apply(empty_dsn, migrations=[FIRST, SECOND])
    with pytest.raises(MigrationError, match="0002_second, which this version does not know"):
        await migrate.apply(empty_dsn, migrations=[FIRST])
    assert [number for number, _, _ in await recorded(empty)] == [1, 2]


async def test_a_missing_file_in_the_middle_is_rejected(empty_dsn: str) -> None:
    await migrate.apply(empty_dsn, migrations=[FIRST, SECOND])
    third = Migration(3, "third", "CREATE TABLE three (id int)")
    with pytest.raises(MigrationError, match="0001_first, which this version does not know"):
        await migrate.apply(empty_dsn, migrations=[SECOND, third])


async def test_a_failing_migration_leaves_nothing_half_made(empty_dsn: str, empty: Connection) -> None:
    with pytest.raises(MigrationError, match='0002_broken failed: type "nonsense" does not exist'):
        await migrate.apply(empty_dsn, migrations=[FIRST, BROKEN])
    assert await tables(empty) == {"one", "schema_migration"}
    assert [number for number, _, _ in await recorded(empty)] == [1]
    assert await migrate.apply(empty_dsn, migrations=[FIRST, SECOND]) == [SECOND], "it can't be mended"


async def test_the_next_node_finishes_after_a_crashed_migration(empty_dsn: str, empty: Connection) -> None:
    slow = Migration(1, "slow", "CREATE TABLE one (id int); SELECT pg_sleep(60)")
    dying = asyncio.get_running_loop().create_task(migrate.apply(empty_dsn, migrations=[slow]))
    pid = None
    for _ in range(1000):
        pid = await empty.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
        )
        if pid is not None:
            break
        await asyncio.sleep(0.01)
    assert pid is not None
    await empty.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(MigrationError, match="the connection broke"):
        await dying
    assert "one" not in await tables(empty)
    assert await migrate.apply(empty_dsn, migrations=[FIRST]) == [FIRST]


async def test_a_second_migrator_waits_a_while_and_reports_it(
    empty_dsn: str, empty: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_WAIT_S", 0.2)
    await empty.execute("SELECT pg_advisory_lock($1)", migrate.LOCK_KEY)
    with pytest.raises(MigrationError, match="another node has been migrating"):
        await migrate.apply(empty_dsn, migrations=[FIRST])
    assert await tables(empty) == set()
    await empty.execute("SELECT pg_advisory_unlock($1)", migrate.LOCK_KEY)
    assert await migrate.apply(empty_dsn, migrations=[FIRST]) == [FIRST]


async def test_status_lists_applied_migrations_and_changes_nothing(empty_dsn: str, empty: Connection) -> None:
    assert not any(status.is_applied for status in await migrate.status(empty_dsn))
    assert await tables(empty) == set()
    await migrate.apply(empty_dsn)
    assert all(status.is_applied for status in await migrate.status(empty_dsn))


# ---- rights


@asynccontextmanager
async def unprivileged_user(postgres: EmbeddedPostgres, dsn: str) -> AsyncIterator[str]:
    """Create a user that may only connect."""
    name, password = f"user_{uuid4().hex[:12]}", uuid4().hex
    admin = await asyncpg.connect(dsn)
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        parts = urlsplit(postgres.tcp_dsn)
        netloc = f"{name}:{password}@127.0.0.1:{postgres.port}"
        yield urlunsplit(parts._replace(netloc=netloc, path=urlsplit(dsn).path))
    finally:
        await admin.execute(f"DROP OWNED BY {name}")
        await admin.execute(f"DROP ROLE {name}")
        await admin.close()


async def test_a_missing_right_to_create_tables_says_what_to_do(
    postgres: EmbeddedPostgres, empty_dsn: str, empty: Connection
) -> None:
    async with unprivileged_user(postgres, empty_dsn) as dsn:
        with pytest.raises(DatabaseUnusable, match=r"may not apply them.*fencepost migrate grants") as raised:
            await migrate.apply(dsn)
        assert (urlsplit(dsn).password or "") not in str(raised.value)
        assert await tables(empty) == set()
        await empty.execute(f"GRANT CREATE ON SCHEMA public TO {urlsplit(dsn).username}")
        assert await migrate.apply(dsn) == migrate.available()


async def test_a_migration_that_needs_more_rights_reports_it(
    postgres: EmbeddedPostgres, empty_dsn: str, empty: Connection
) -> None:
    async with unprivileged_user(postgres, empty_dsn) as dsn:
        await empty.execute(f"GRANT CREATE ON SCHEMA public TO {urlsplit(dsn).username}")
        greedy = Migration(2, "greedy", "CREATE SCHEMA other")
        with pytest.raises(DatabaseUnusable):
            await migrate.apply(dsn, migrations=[FIRST, greedy])
        assert [number for number, _, _ in await recorded(empty)] == [1]


# ---- the migration files


def test_the_files_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in migrate.available()] == list(
        range(1, len(migrate.available()) + 1)
    )


def test_the_checksum_covers_the_text() -> None:
    assert Migration(1, "x", "SELECT 1").checksum == Migration(9, "y", "SELECT 1").checksum
    assert Migration(1, "x", "SELECT 1").checksum != Migration(1, "x", "SELECT 2").checksum
