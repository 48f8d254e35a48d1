"""The connection pool: error messages when it cannot open, and the limits of every connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest

from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import (
    OLDEST_SERVER,
    TRANSACTION_TIMEOUT_SINCE,
    Timeouts,
    close_pool,
    identify,
    require_supported,
)
from fencepost.adapters.postgres.ledger import FORGET_TERMS_EVERY, MAX_TERMS_KEPT, PostgresLedger
from fencepost.adapters.postgres.pool import Pool
from fencepost.dev.postgres import EmbeddedPostgres
from fencepost.errors import DatabaseUnusable
from fencepost.runtime.clock import MonotonicClock
from integration.stage import PATIENCE_S, SIGNER, Stage, pool_of, until, write

PASSWORD = "hunter2-secret"


async def refusal(dsn: str, *, connect_timeout_s: float = 5.0) -> str:
    with pytest.raises(DatabaseUnusable) as raised:
        async with pool_of(dsn, connect_timeout_s=connect_timeout_s):
            pass
    message = str(raised.value)
    assert PASSWORD not in message
    assert "\n" not in message
    return message


def changed(
    dsn: str, *, user: str | None = None, port: int | None = None, database: str | None = None
) -> str:
    parts = urlsplit(dsn)
    name, _, password = parts.netloc.partition("@")[0].partition(":")
    where = f"127.0.0.1:{port or parts.port}"
    who = f"{user or name}:{password if user is None else PASSWORD}"
    return urlunsplit(
        parts._replace(netloc=f"{who}@{where}", path=f"/{database}" if database else parts.path)
    )


# ---- the pool cannot open


async def test_a_wrong_password_is_reported(postgres: EmbeddedPostgres) -> None:
    assert "rejected the user or password" in await refusal(changed(postgres.tcp_dsn, user="fencepost"))


async def test_an_unknown_user_is_reported(postgres: EmbeddedPostgres) -> None:
    assert "rejected the user or password" in await refusal(changed(postgres.tcp_dsn, user="unknown_user"))


async def test_a_missing_database_is_reported(postgres: EmbeddedPostgres) -> None:
    message = await refusal(changed(postgres.tcp_dsn, database="not_there"))
    assert "does not exist: create it" in message


async def test_a_port_without_a_server_is_reported(unused_tcp_port: int) -> None:
    assert "connection refused" in await refusal(f"postgresql://u:{PASSWORD}@127.0.0.1:{unused_tcp_port}/d")


async def test_a_server_that_never_answers_times_out() -> None:
    async with silent_server() as port:
        dsn = f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d"
        async with asyncio.timeout(PATIENCE_S):
            assert "did not respond in time" in await refusal(dsn, connect_timeout_s=0.3)
            with pytest.raises(DatabaseUnusable, match="did not respond in time"):
                await migrate.apply(dsn, timeout_s=0.3)


async def test_a_server_that_closes_the_connection_is_reported() -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await refusal(f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/d", connect_timeout_s=2.0)


@pytest.mark.parametrize(
    "dsn",
    [
        "nonsense",
        f"mysql://u:{PASSWORD}@127.0.0.1/d",
        f"postgresql://u:{PASSWORD}@127.0.0.1:port/d",
        f"postgresql://u:{PASSWORD}@127.0.0.1:99999/d",
        f"postgresql://u:{PASSWORD}@[::1/d",
        f"postgresql://u:{PASSWORD}@127.0.0.1/d?sslmode=perhaps",
    ],
)
async def test_an_invalid_address_is_reported(dsn: str) -> None:
    assert "database.dsn" in await refusal(dsn)


def test_a_server_that_is_too_old_is_reported() -> None:
    require_supported(OLDEST_SERVER)
    with pytest.raises(DatabaseUnusable, match=f"PostgreSQL {OLDEST_SERVER - 1} is too old"):
        require_supported(OLDEST_SERVER - 1)


@asynccontextmanager
async def silent_server() -> AsyncIterator[int]:
    released = asyncio.Event()

    async def ignore(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    async with server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            released.set()


# ---- the limits of a connection


def test_time_outs_follow_the_lease_and_the_server_version() -> None:
    timeouts = Timeouts.for_lease(12.0)
    assert timeouts == Timeouts(idle_in_transaction_ms=4000, transaction_ms=4000, lock_ms=3000)
    assert "transaction_timeout" in timeouts.statements(TRANSACTION_TIMEOUT_SINCE)
    assert "SET transaction_timeout" not in timeouts.statements(TRANSACTION_TIMEOUT_SINCE - 1)


async def test_every_reused_connection_has_its_time_outs(dsn: str) -> None:
    async with pool_of(dsn, lease_duration_s=12.0) as pool:
        for _ in range(3):  # after each return to the pool
            async with pool.acquire() as connection:
                shown = {
                    name: await connection.fetchval(f"SHOW {name}")
                    for name in (
                        "idle_in_transaction_session_timeout",
                        "lock_timeout",
                        "transaction_timeout",
                        "application_name",
                        "transaction_isolation",
                    )
                }
            assert shown == {
                "idle_in_transaction_session_timeout": "4s",
                "lock_timeout": "3s",
                "transaction_timeout": "4s",
                "application_name": "fencepost-test",
                "transaction_isolation": "read committed",
            }


async def test_the_pool_ends_a_transaction_that_was_left_open(dsn: str) -> None:
    async with pool_of(dsn) as pool:
        async with pool.acquire() as connection:
            await connection.execute("BEGIN")
            await connection.execute("SELECT pg_current_xact_id()")
        async with pool.acquire() as connection:
            assert not connection.is_in_transaction()


async def test_closing_does_not_wait_for_a_hanging_connection(dsn: str) -> None:
    async with pool_of(dsn) as pool:
        async with pool.acquire() as connection:
            hanging = asyncio.get_running_loop().create_task(connection.fetchval("SELECT pg_sleep(30)"))
            await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                await close_pool(pool, within_s=0.1)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await hanging


async def test_a_server_reports_its_identity(dsn: str) -> None:
    async with pool_of(dsn) as pool, pool.acquire() as connection:
        one, two = await identify(connection), await identify(connection)
    assert one == two
    assert (one.system_id > 0, one.timeline) == (True, 1)


async def test_the_owner_of_a_database_has_all_required_rights(postgres: EmbeddedPostgres) -> None:
    """No superuser is needed."""
    name = f"plain_{uuid4().hex[:12]}"
    admin = await asyncpg.connect(postgres.dsn)
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'")
        await admin.execute(f"CREATE DATABASE {name} OWNER {name}")
        dsn = changed(postgres.tcp_dsn, user=name, database=name)
        await migrate.apply(dsn)
        async with pool_of(dsn) as pool:
            async with pool.acquire() as connection:
                assert (await identify(connection)).timeline == 1
            assert len(await ledger_on(pool).acquire([SIGNER])) == 1
    finally:
        await admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        await admin.execute(f"DROP ROLE IF EXISTS {name}")
        await admin.close()


def ledger_on(pool: Pool) -> PostgresLedger:
    return PostgresLedger(
        pool,
        clock=MonotonicClock(),
        node="test",
        incarnation=uuid4(),
        lease_duration_s=30.0,
        skew_allowance_s=0.0,
    )


async def test_a_lease_holder_paused_inside_a_transaction_loses_the_lease(on: Stage) -> None:
    tx = await on.request()
    old = await on.acquire(on.old)
    await on.expire()
    async with pool_of(on.dsn, lease_duration_s=0.9) as pool, pool.acquire() as paused:
        transaction = paused.transaction()
        await transaction.start()
        assert await write(paused, old, tx)
        ledger = await on.ledger(on.new)
        assert await ledger.acquire([SIGNER]) == []  # the take-over skips the lease while the write is open

        async def taken_over() -> bool:
            return bool(await ledger.acquire([SIGNER]))

        await until(taken_over)
        # asyncpg's error depends on its state when the server's last message arrived.
        ended = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
        with pytest.raises(ended):
            await transaction.commit()
    rows = await on.rows()
    assert [(row[1], row[2]) for row in rows] == [("QUEUED", None)]
    assert await on.late_writes() == 0


async def test_a_lock_wait_is_shorter_than_the_lease_allows(on: Stage) -> None:
    await on.acquire(on.old)
    blocker = await on.connect()
    async with blocker.transaction():
        await blocker.execute("SELECT 1 FROM signer_lease FOR UPDATE")
        async with pool_of(on.dsn, lease_duration_s=0.8) as pool:
            with pytest.raises(asyncpg.LockNotAvailableError):
                await pool.execute("UPDATE signer_lease SET expires_at = clock_timestamp()")


async def test_a_statement_is_planned_once_and_reads_no_whole_table(dsn: str) -> None:
    by_id, ids = "SELECT state FROM managed_tx WHERE tx_id = ANY ($1::uuid[])", [uuid4()]
    async with pool_of(dsn) as pool, pool.acquire() as connection:
        for _ in range(8):
            await connection.fetch(by_id, ids)
        plans = await connection.fetchrow(
            "SELECT name, generic_plans, custom_plans FROM pg_prepared_statements WHERE statement = $1", by_id
        )
        assert plans is not None
        assert (plans["generic_plans"], plans["custom_plans"]) == (8, 0)
        shown = await connection.fetch(f"EXPLAIN EXECUTE \"{plans['name']}\" ('{{}}')")
        assert not any("Seq Scan" in row[0] for row in shown)


async def test_terms_are_kept_for_audits_up_to_a_bound(on: Stage) -> None:
    """While a chain does not answer, a signer begins a term every few seconds."""
    ledger = await on.ledger(on.new)
    (term,) = await ledger.acquire([SIGNER])
    rounds = term.token // FORGET_TERMS_EVERY + 3 * MAX_TERMS_KEPT // FORGET_TERMS_EVERY
    last = rounds * FORGET_TERMS_EVERY - 1
    await on.admin.execute(
        "INSERT INTO lease_term SELECT t.chain_id, t.signer, n, t.owner_node, t.incarnation, t.acquired_at,"
        " t.sealed_snapshot FROM lease_term t, generate_series($1::bigint, $2) n",
        term.token + 1,
        last,
    )
    await on.admin.execute("UPDATE signer_lease SET fencing_token = $1", last)
    (newest,) = await ledger.acquire([SIGNER])
    assert newest.token == last + 1
    kept = await on.admin.fetch("SELECT fencing_token FROM lease_term ORDER BY fencing_token")
    assert [row["fencing_token"] for row in kept] == list(
        range(newest.token - MAX_TERMS_KEPT + 1, newest.token + 1)
    )
    (further,) = await ledger.acquire([SIGNER])
    assert further.token == newest.token + 1
    assert await on.admin.fetchval("SELECT count(*) FROM lease_term") == MAX_TERMS_KEPT + 1
