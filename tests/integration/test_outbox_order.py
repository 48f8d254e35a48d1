"""A reader of the journal misses nothing, though writers commit in another order than they began."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from fencepost.adapters.postgres.database import Connection
from fencepost.adapters.postgres.journal import BEGINNING, Place, read_page
from integration.stage import SIGNER, Stage, new_request, open_stage


@pytest_asyncio.fixture
async def on(dsn: str) -> AsyncIterator[Stage]:
    async with open_stage(dsn) as opened:
        yield opened


async def note(connection: Connection, event: str) -> None:
    await connection.execute(
        "INSERT INTO journal (chain_id, signer, event, detail) VALUES ($1, $2, $3, $4)",
        SIGNER.chain_id,
        SIGNER.address,
        event,
        '{"why": "test"}',
    )


class ReaderById:
    """The reader that everybody writes first."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = 0

    async def read(self) -> list[str]:
        rows = await self._connection.fetch(
            "SELECT id, event FROM journal WHERE id > $1 ORDER BY id", self._last
        )
        self._last = max([self._last, *(row["id"] for row in rows)])
        return [row["event"] for row in rows]


class ReaderByPlace:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._after = BEGINNING

    async def read(self) -> list[str]:
        page = await read_page(self._connection, self._after, limit=100)
        self._after = max([self._after, *(entry.place for entry in page)])
        return [entry.event for entry in page]


async def test_a_late_commit_is_skipped_by_number_and_not_by_place(on: Stage) -> None:
    early, late = await on.connect(), await on.connect()
    by_id, by_place = ReaderById(on.admin), ReaderByPlace(on.admin)
    transaction = late.transaction()
    await transaction.start()
    await note(late, "began first")
    await note(early, "committed first")
    seen_by_id, seen_by_place = await by_id.read(), await by_place.read()
    assert seen_by_place == []  # "committed first" is there, but something may still come before it
    await transaction.commit()
    seen_by_id += await by_id.read()
    seen_by_place += await by_place.read()
    assert seen_by_id == ["committed first"], "the schedule no longer shows the flaw"
    assert seen_by_place == ["began first", "committed first"]
    assert await by_place.read() == []


async def test_the_number_may_be_taken_long_before_the_transaction_has_one(on: Stage) -> None:
    """The later transaction has the smaller number: places still sort by transaction first."""
    one, two = await on.connect(), await on.connect()
    by_place = ReaderByPlace(on.admin)
    first, second = one.transaction(), two.transaction()
    await first.start()
    await second.start()
    await one.execute("SELECT pg_current_xact_id()")
    await note(two, "second transaction, first number")
    await note(one, "first transaction, second number")
    await second.commit()
    seen = await by_place.read()
    await first.commit()
    seen += await by_place.read()
    assert seen == ["first transaction, second number", "second transaction, first number"]


async def test_what_is_rolled_back_is_never_read_and_holds_nobody_up_afterwards(on: Stage) -> None:
    undone = await on.connect()
    transaction = undone.transaction()
    await transaction.start()
    await note(undone, "never")
    await note(on.admin, "always")
    await transaction.rollback()
    assert [entry.event for entry in await read_page(on.admin, limit=10)] == ["always"]


async def test_pages_follow_each_other_without_overlap(on: Stage) -> None:
    async with on.admin.transaction():
        for number in range(5):
            await note(on.admin, f"event {number}")
    await note(on.admin, "event 5")
    seen: list[str] = []
    after: Place = BEGINNING
    for _ in range(4):
        page = await read_page(on.admin, after, limit=2)
        seen += [entry.event for entry in page]
        after = page[-1].place if page else after
    assert seen == [f"event {number}" for number in range(6)]


async def test_an_entry_says_whose_it_is(on: Stage) -> None:
    request = new_request(1)
    await (await on.ledger(on.new)).accept([request])
    (entry,) = await read_page(on.admin, limit=10)
    assert (entry.signer, entry.tx_id, entry.event, entry.state) == (
        SIGNER,
        request.tx_id,
        "Receive",
        "QUEUED",
    )
    assert (entry.node, entry.token, entry.detail) == ("new", None, {})
