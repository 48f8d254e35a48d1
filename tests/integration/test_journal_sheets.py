"""What is written as one sheet is read as the lines that were told: none is missing, none comes twice, all in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest_asyncio

from fencepost.adapters.postgres.journal_sheets import MOST_LINES
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.reader import PostgresReader
from fencepost.application.ports import Cursor, LaneWrite, TxChange
from fencepost.application.read import BEGINNING, Part, Place
from fencepost.application.tx_ids import new_tx_id
from fencepost.domain import managed
from fencepost.domain.ids import TxHash
from fencepost.domain.lease import Term
from fencepost.domain.managed import Attempt, Entry, ManagedTx, Purpose
from fencepost.domain.states import State
from fencepost.domain.transaction import Fees, SignedTx, TxType
from integration.stage import SIGNER, Stage, new_request, open_reader, until

COUNT = 50
MOST_AT_ONCE = 64  # lines of one accept on one sheet
ENDED = ("Told", "Refuse")


@pytest_asyncio.fixture
async def reader(dsn: str) -> AsyncIterator[PostgresReader]:
    async with open_reader(dsn) as opened:
        yield opened


async def queued(on: Stage) -> tuple[PostgresLedger, Term, list[ManagedTx]]:
    """Requests that came at once."""
    ledger = await on.ledger(on.old)
    await ledger.accept([new_request(value).changed(tx_id=new_tx_id()) for value in range(1, COUNT + 1)])
    (term,) = await ledger.acquire([SIGNER])
    return ledger, term, list(await ledger.load_queue(SIGNER, limit=COUNT))


def given(tx: ManagedTx, nonce: int) -> TxChange:
    fees, name = Fees(fee_cap_wei=2, tip_wei=1), TxHash(f"0x{tx.tx_id.hex}{tx.tx_id.hex}")
    attempt = Attempt(1, Purpose.INTENT, TxType.DYNAMIC_FEE, 21_000, fees, SignedTx(raw=b"bytes", hash=name))
    step = managed.allocated(tx, nonce, attempt)
    return TxChange(tx, step.tx, step.entries)


def ended(tx: ManagedTx) -> TxChange:
    step = managed.refused(tx, "it must not be")
    return TxChange(tx, step.tx, (Entry("Told", {"of": str(tx.tx_id)}), *step.entries))


async def lines(on: Stage) -> list[tuple[Any, ...]]:
    found = await on.admin.fetch("SELECT id, tx_id, event, state, detail FROM journal ORDER BY xid, id")
    ids = [row["id"] for row in found]
    assert len(ids) == len(set(ids))
    return [
        (row["tx_id"], row["event"], row["state"], row["detail"] and msgspec.json.decode(row["detail"]))
        for row in found
    ]


async def sheets(on: Stage) -> int:
    return int(await on.admin.fetchval("SELECT count(*) FROM journal_sheet"))


async def test_the_numbers_of_a_sheet_are_enough_for_its_lines(on: Stage) -> None:
    ledger = await on.ledger(on.old)
    first = new_tx_id()  # all ids of one moment
    requests = [
        new_request(value).changed(tx_id=UUID(int=first.int + value)) for value in range(1, 2 * MOST_AT_ONCE)
    ]
    await ledger.accept(requests)
    received = await lines(on)
    assert sorted(line[0] for line in received) == [request.tx_id for request in requests]
    most = await on.admin.fetchval("SELECT max(cardinality(tx_ids)) FROM journal_sheet")
    step = await on.admin.fetchval(
        "SELECT seqincrement FROM pg_sequence"
        " WHERE seqrelid = pg_get_serial_sequence('journal_sheet', 'id')::regclass"
    )
    assert MOST_LINES <= most == MOST_AT_ONCE <= step


async def test_lines_are_what_was_told_in_the_order_of_telling(on: Stage) -> None:
    ledger, term, queue = await queued(on)
    assert await sheets(on) < COUNT / 2
    received = await lines(on)
    assert sorted(received) == sorted((tx.tx_id, "Receive", "QUEUED", None) for tx in queue)
    changes = [given(tx, nonce) for nonce, tx in enumerate(queue)]
    start = Entry("BeginSequence", {"start": 0})
    written = await ledger.commit(
        LaneWrite(term, tuple(changes), cursor_after=Cursor(COUNT, 0), entries=(start,))
    )
    assert written.applied
    assert (await lines(on))[COUNT:] == [
        (None, "BeginSequence", None, {"start": 0}),
        *((c.after.tx_id, "AssignNonce", "ALLOCATED", c.entries[0].detail) for c in changes),
    ]


async def test_what_is_told_differently_stands_on_sheets_of_its_own(on: Stage) -> None:
    ledger, term, queue = await queued(on)
    changes = [ended(tx) if place % 3 else given(tx, place // 3) for place, tx in enumerate(queue[:9])]
    assert (await ledger.commit(LaneWrite(term, tuple(changes), cursor_after=Cursor(3, 0)))).applied
    told = [(c.after.tx_id, entry.event) for c in changes for entry in c.entries]
    assert [line[:2] for line in (await lines(on))[COUNT:]] == told


async def test_more_lines_of_one_transaction_than_a_sheet_holds(on: Stage) -> None:
    ledger, term, (tx, other, *_) = await queued(on)
    many = tuple(Entry(f"E{number}", {"n": number}) for number in range(2 * MOST_LINES + 3))
    changes = (TxChange(tx, tx.changed(error="x"), many), ended(other))
    assert (await ledger.commit(LaneWrite(term, changes))).applied
    assert (await lines(on))[COUNT:] == [
        *((tx.tx_id, entry.event, "QUEUED", entry.detail) for entry in many),
        (other.tx_id, "Told", "FAILED", {"of": str(other.tx_id)}),
        (other.tx_id, "Refuse", "FAILED", {"error": "it must not be"}),
    ]


async def test_a_page_of_what_ended_may_begin_inside_a_sheet(on: Stage, reader: PostgresReader) -> None:
    ledger, term, queue = await queued(on)
    assert (await ledger.commit(LaneWrite(term, tuple(map(ended, queue))))).applied
    seen: list[Any] = []
    after: Place = BEGINNING

    async def has_come() -> bool:
        nonlocal after
        page = await reader.completions(after, limit=7)
        after = page[-1].place if page else after
        seen.extend(page)
        return len(seen) >= COUNT

    await until(has_come)
    assert [completion.tx_id for completion in seen] == [tx.tx_id for tx in queue]
    assert {(completion.event, completion.state) for completion in seen} == {("Refuse", State.FAILED)}
    assert await reader.completions(after, limit=7) == []


async def test_the_history_of_one_among_many(on: Stage, reader: PostgresReader) -> None:
    ledger, term, queue = await queued(on)
    assert (await ledger.commit(LaneWrite(term, tuple(map(ended, queue))))).applied
    for tx in (queue[0], queue[17], queue[-1]):
        view = await reader.get(tx.tx_id, frozenset({Part.HISTORY}))
        assert view is not None
        assert [(row.event, row.state, row.detail) for row in view.journal or ()] == [
            ("Receive", "QUEUED", {}),
            ("Told", "FAILED", {"of": str(tx.tx_id)}),
            ("Refuse", "FAILED", {"error": "it must not be"}),
        ]
