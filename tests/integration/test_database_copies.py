"""A copy of the database is recognized by its identity, however it was made."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from fencepost.adapters.postgres.database import (
    Connection,
    DatabaseHistory,
    ServerIdentity,
    current_history,
    open_pool,
)
from fencepost.application.ports import Cursor, LaneState, LaneWrite
from fencepost.application.queries import BEGINNING
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.domain.lease import history_of
from fixtures.core import open_ledger
from fixtures.postgres import run_folder, with_database
from integration.stage import SIGNER, open_reader, until


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def template_copy(dsn: str) -> AsyncIterator[str]:
    name = f"copy_{uuid4().hex[:16]}"
    source = dsn.rpartition("?")[0].rpartition("/")[2]
    async with connected(with_database(dsn, "postgres")) as admin:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE {source}")
        try:
            yield with_database(dsn, name)
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def empty_database(dsn: str) -> AsyncIterator[str]:
    name = f"copy_{uuid4().hex[:16]}"
    async with connected(with_database(dsn, "postgres")) as admin:
        await admin.execute(f"CREATE DATABASE {name}")
        try:
            yield with_database(dsn, name)
        finally:
            await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def work(dsn: str) -> tuple[int, LaneState]:
    """Take over the signer and move its cursor; return the token and the database history."""
    async with open_ledger(dsn, node=uuid4().hex, lease_s=30) as ledger:
        terms = await ledger.acquire([SIGNER])
        state = await ledger.load(SIGNER, queue_limit=1)
        after = Cursor(0, 0) if state.cursor is None else state.cursor.past(1)
        written = await ledger.commit(LaneWrite(terms[0], cursor_before=state.cursor, cursor_after=after))
        assert written.applied
        await ledger.release(terms)
    return terms[0].token, state


async def test_a_copied_database_has_another_history(dsn: str) -> None:
    token, _ = await work(dsn)
    async with template_copy(dsn) as copy:
        in_copy, state = await work(copy)
        assert state.cursor_token == token
        assert state.is_from_copy
        assert history_of(in_copy) > history_of(token)
        again, state = await work(copy)
        assert (history_of(again), state.is_from_copy) == (history_of(in_copy), False)
        async with template_copy(copy) as second:
            in_second, state = await work(second)
        assert state.is_from_copy
        assert history_of(in_second) > history_of(in_copy)
    further, state = await work(dsn)
    assert (history_of(further), state.is_from_copy) == (history_of(token), False)


async def test_a_promoted_server_has_another_history_and_is_no_copy(dsn: str) -> None:
    token, _ = await work(dsn)
    async with connected(dsn) as connection:
        await connection.execute("UPDATE database_history SET timeline = 0")
        later, state = await work(dsn)
        assert history_of(later) > history_of(token)
        assert not state.is_from_copy
        assert await connection.fetchval("SELECT count(*) FROM database_history") == 2


@pytest.mark.parametrize("column", ["system_id", "timeline", "database_oid", "table_oid"])
async def test_nodes_that_start_together_begin_one_history(dsn: str, column: str) -> None:
    async with connected(dsn) as admin:
        await admin.execute(f"UPDATE database_history SET {column} = 0")
        nodes = [await asyncpg.connect(dsn) for _ in range(8)]
        try:
            found = await asyncio.gather(*(current_history(node) for node in nodes))
        finally:
            for node in nodes:
                await node.close()
        assert len(set(found)) == 1
        rows = await admin.fetch("SELECT history, epoch, is_copy FROM database_history ORDER BY history")
        assert [row["history"] for row in rows] == [rows[0]["history"], found[0].number]
        assert rows[1]["epoch"] == found[0].epoch > rows[0]["epoch"]
        assert rows[1]["is_copy"] == (column != "timeline")


async def test_data_restored_into_new_tables_has_another_history(dsn: str) -> None:
    """Both databases have counted their histories from the same number."""
    async with connected(dsn) as connection:
        before = await current_history(connection)
        await connection.execute(
            "INSERT INTO database_history SELECT history, epoch, 1, timeline, 2, 3, is_copy, began_at"
            " FROM database_history"
        )
        after = await current_history(connection)
        assert (after.number, after.epoch > before.epoch) == (before.number + 1, True)
        assert await current_history(connection) == after


async def test_a_new_history_is_above_every_issued_token(dsn: str) -> None:
    """Also when the table of histories was lost or left out of a dump."""
    token, _ = await work(dsn)
    async with connected(dsn) as connection:
        await connection.execute("DELETE FROM database_history")
    later, state = await work(dsn)
    assert history_of(later) > history_of(token)
    assert state.is_from_copy


# ---- the order of the journal


class Consumer:
    """Reads completions like a client: it keeps its last position and continues from there."""

    def __init__(self) -> None:
        self.after = BEGINNING

    async def read(self, dsn: str, count: int) -> list[str | None]:
        seen: list[str | None] = []

        async def has_come() -> bool:
            page = await reader.completions(self.after, limit=2)
            if page:
                self.after = page[-1].cursor
            seen.extend(completion.request_id for completion in page)
            return len(seen) >= count

        async with open_reader(dsn) as reader:
            await until(has_come)
            assert await reader.completions(self.after, limit=10) == []
        return seen


async def end(connection: Connection, name: str) -> None:
    """Store a request and its end as a journal entry."""
    await connection.execute(
        "WITH tx AS ("
        "  INSERT INTO managed_tx (tx_id, chain_id, signer, request_id, kind, payload, payload_digest)"
        "  VALUES (gen_random_uuid(), $1, $2, $3, 'intent', '{}', sha256('')) RETURNING tx_id)"
        " INSERT INTO journal_batch (chain_id, signer, tx_ids, events, states)"
        " SELECT $1, $2, ARRAY[tx_id], '{Finish}', '{CONFIRMED}' FROM tx",
        SIGNER.chain_id,
        SIGNER.address,
        name,
    )


@asynccontextmanager
async def node_connection(dsn: str) -> AsyncIterator[Connection]:
    """Open a connection as a node's pool does."""
    async with (
        open_pool(
            dsn,
            size=1,
            connect_timeout_s=5,
            lease_duration_s=30,
            application="node",
            history=DatabaseHistory(),
        ) as pool,
        pool.acquire() as connection,
    ):
        yield connection


async def end_all(dsn: str, *names: str) -> None:
    async with node_connection(dsn) as connection:
        for name in names:
            await end(connection, name)


async def dump(server: EmbeddedPostgres, source: str, target: str) -> None:
    """Copy a database as an operator does: `pg_dump | psql`."""
    program = await asyncio.create_subprocess_exec(
        server.bin_dir / "pg_dump", "--no-owner", "--dbname", source, stdout=PIPE, stderr=PIPE
    )
    text, errors = await program.communicate()
    assert program.returncode == 0, errors.decode()
    program = await asyncio.create_subprocess_exec(
        server.bin_dir / "psql",
        *("--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", target),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    _, errors = await program.communicate(text)
    assert program.returncode == 0, errors.decode()


async def use_transaction_ids(dsn: str, count: int) -> None:
    async with connected(dsn) as connection:
        await connection.execute(
            f"DO $$ BEGIN FOR i IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
        )


@pytest_asyncio.fixture
async def other_cluster() -> AsyncIterator[EmbeddedPostgres]:
    folder = run_folder() / f"other-{uuid4().hex[:12]}"
    async with embedded_postgres(folder, options={"fsync": "off"}) as server:
        yield server


async def test_a_consumer_continues_in_another_cluster_after_dump_and_restore(
    dsn: str, postgres: EmbeddedPostgres, other_cluster: EmbeddedPostgres
) -> None:
    await use_transaction_ids(dsn, 3000)
    token, _ = await work(dsn)
    await end_all(dsn, "one", "two", "three")
    kept, behind, new = Consumer(), Consumer(), Consumer()
    assert await kept.read(dsn, 3) == ["one", "two", "three"]
    async with open_reader(dsn) as reader:
        behind.after = (await reader.completions(BEGINNING, limit=1))[0].cursor
    target = with_database(other_cluster.dsn, "restored")
    async with connected(other_cluster.dsn) as admin:
        await admin.execute("CREATE DATABASE restored")
    await dump(postgres, dsn, target)
    await end_all(dsn, "lost")  # committed after the dump: the copy does not have it
    assert await kept.read(dsn, 1) == ["lost"]

    await end_all(target, "four", "five")
    async with connected(target) as connection:
        newest = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
        assert newest < kept.after.xid, "the schedule no longer shows the flaw"
    assert await kept.read(target, 2) == ["four", "five"]
    assert await behind.read(target, 4) == ["two", "three", "four", "five"]
    assert await new.read(target, 5) == ["one", "two", "three", "four", "five"]
    later, state = await work(target)
    assert (history_of(later) > history_of(token), state.is_from_copy) == (True, True)


async def test_a_dump_restored_twice_has_a_new_epoch_each_time(dsn: str, postgres: EmbeddedPostgres) -> None:
    """The first copy is discarded after a consumer has read from it."""
    await end_all(dsn, "one")
    consumer = Consumer()
    assert await consumer.read(dsn, 1) == ["one"]
    for name in ("first", "second"):
        async with empty_database(dsn) as target:
            await dump(postgres, dsn, target)
            await end_all(target, name)
            assert await consumer.read(target, 1) == [name]
            consumer.after = replace(consumer.after, xid=2**63)  # as in a cluster with large transaction ids


async def test_no_completion_appears_late_in_a_copy(dsn: str, postgres: EmbeddedPostgres) -> None:
    await end_all(dsn, "old")
    async with empty_database(dsn) as target:
        await dump(postgres, dsn, target)
        consumer = Consumer()
        async with node_connection(target) as late:
            async with late.transaction():
                await end(late, "began first")
                await end_all(target, "committed first")
                assert await consumer.read(target, 1) == ["old"]
            assert await consumer.read(target, 2) == ["began first", "committed first"]


async def test_a_connection_outside_a_node_writes_into_the_newest_epoch(dsn: str) -> None:
    async with connected(dsn) as connection:
        await end(connection, "one")
        assert await connection.fetchval("SELECT epoch = newest_epoch() FROM journal_batch")


# ---- a running node


async def test_a_running_node_notices_that_its_connections_reach_another_database(dsn: str) -> None:
    changes: list[tuple[ServerIdentity, ServerIdentity]] = []
    history = DatabaseHistory()
    history.on_change = lambda before, after: changes.append((before, after))
    async with template_copy(dsn) as copy:
        for reached in (dsn, copy):
            async with open_pool(
                reached,
                size=1,
                connect_timeout_s=5,
                lease_duration_s=5,
                application="node",
                history=history,
            ):
                pass
    ((before, after),) = changes
    assert (before.system_id, before.timeline) == (after.system_id, after.timeline)
    assert before.database_oid != after.database_oid
