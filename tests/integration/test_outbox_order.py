"""A reader of completions misses nothing although writers commit in another order than they began.

Other tests on the same server have their own transactions, which may delay completions: the test waits for what must come, and
holds a transaction of its own to delay what must not come yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio

from fencepost.adapters.postgres.database import Connection
from fencepost.adapters.postgres.query_reader import PostgresReader
from fencepost.application.queries import BEGINNING, CompletionCursor
from fencepost.domain.transaction_state import ManagedTx
from integration.stage import SIGNER, Stage, open_reader, until


@pytest_asyncio.fixture
async def reader(dsn: str) -> AsyncIterator[PostgresReader]:
    async with open_reader(dsn) as opened:
        yield opened


async def end(connection: Connection, tx: ManagedTx) -> None:
    await connection.execute(
        "INSERT INTO journal_batch (chain_id, signer, tx_ids, events, states)"
        " VALUES ($1, $2, ARRAY[$3::uuid], '{Finish}', '{CONFIRMED}')",
        SIGNER.chain_id,
        SIGNER.address,
        tx.tx_id,
    )


class ById:
    """The naive reader: it remembers the largest id it saw."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0

    async def read(self) -> list[str]:
        rows = await self._connection.fetch(
            "SELECT j.id, t.request_id FROM journal j JOIN managed_tx t USING (tx_id)"
            " WHERE j.event = 'Finish' AND j.id > $1 ORDER BY j.id",
            self._last,
        )
        self._last = max([self._last, *(row["id"] for row in rows)])
        return [row["request_id"] for row in rows]


class ByPlace:
    """The product's reader, used like a caller: continue from the last position."""

    def __init__(self, reader: PostgresReader, *, limit: int = 100) -> None:
        self._reader = reader
        self._limit = limit
        self._after: CompletionCursor = BEGINNING

    async def read(self) -> list[str | None]:
        page = await self._reader.completions(self._after, limit=self._limit)
        if page:
            self._after = page[-1].cursor
        return [completion.request_id for completion in page]

    async def read_up_to(self, count: int) -> list[str | None]:
        seen: list[str | None] = []

        async def has_come() -> bool:
            seen.extend(await self.read())
            return len(seen) >= count

        await until(has_come)
        return seen


async def test_a_late_commit_is_skipped_by_id_and_not_by_position(on: Stage, reader: PostgresReader) -> None:
    began_first, committed_first = await on.request(1), await on.request(2)
    early, late = await on.connect(), await on.connect()
    by_id, by_place = ById(on.admin), ByPlace(reader)
    transaction = late.transaction()
    await transaction.start()
    await end(late, began_first)
    await end(early, committed_first)
    seen_by_id, seen_by_place = await by_id.read(), await by_place.read()
    assert seen_by_place == []  # one is stored, but another may still precede it
    await transaction.commit()
    seen_by_id += await by_id.read()
    seen_by_place += await by_place.read_up_to(2)
    assert seen_by_id == ["request-2"], "the schedule no longer shows the flaw"
    assert seen_by_place == ["request-1", "request-2"]
    assert await by_place.read() == []


async def test_an_older_transaction_comes_first_though_its_id_is_larger(
    on: Stage, reader: PostgresReader
) -> None:
    first, second = await on.request(1), await on.request(2)
    one, two = await on.connect(), await on.connect()
    older, younger = one.transaction(), two.transaction()
    await older.start()
    await younger.start()
    await one.execute("SELECT pg_current_xact_id()")
    await end(two, second)
    await end(one, first)
    by_place = ByPlace(reader)
    await younger.commit()
    seen = await by_place.read()
    assert seen == []
    await older.commit()
    seen += await by_place.read_up_to(2)
    assert seen == ["request-1", "request-2"]


async def test_a_rolled_back_entry_is_never_read_and_delays_nothing_afterwards(
    on: Stage, reader: PostgresReader
) -> None:
    never, always = await on.request(1), await on.request(2)
    undone = await on.connect()
    transaction = undone.transaction()
    await transaction.start()
    await end(undone, never)
    await end(on.admin, always)
    await transaction.rollback()
    by_place = ByPlace(reader)
    assert await by_place.read_up_to(1) == ["request-2"]
    assert await by_place.read() == []


async def test_pages_of_one_transaction_do_not_overlap(on: Stage, reader: PostgresReader) -> None:
    txs = [await on.request(number) for number in range(1, 6)]
    async with on.admin.transaction():
        for tx in txs[:4]:
            await end(on.admin, tx)
    await end(on.admin, txs[4])
    by_place = ByPlace(reader, limit=2)
    assert await by_place.read_up_to(5) == [f"request-{number}" for number in range(1, 6)]
    assert await by_place.read() == []


async def test_a_transaction_of_another_database_causes_no_skip(
    on: Stage, reader: PostgresReader, empty_dsn: str
) -> None:
    """Transactions of the whole cluster count; they delay the feed and never leave a gap."""
    tx = await on.request(1)
    other = await asyncpg.connect(empty_dsn)
    by_place = ByPlace(reader)
    try:
        async with other.transaction():
            await other.execute("SELECT pg_current_xact_id()")
            await end(on.admin, tx)
            assert await by_place.read() == []
        seen = await by_place.read_up_to(1)
    finally:
        await other.close()
    assert seen == ["request-1"]
