"""Journal entries written as one batch are read back individually: none is missing, none repeated, all in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest_asyncio

from fencepost.adapters.postgres.journal_batches import MAX_LINES
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.query_reader import PostgresReader
from fencepost.application.ports import Cursor, LaneWrite, TxChange
from fencepost.application.queries import BEGINNING, CompletionCursor, Part
from fencepost.application.uuid7 import new_tx_id
from fencepost.domain import transaction_state
from fencepost.domain.ids import TxHash
from fencepost.domain.lease import Term
from fencepost.domain.states import State
from fencepost.domain.transaction import Fees, SignedTx, TxType
from fencepost.domain.transaction_state import Attempt, JournalEntry, ManagedTx, Purpose
from integration.stage import SIGNER, Stage, new_request, open_reader, until

COUNT = 50
MAX_AT_ONCE = 64  # entries per accepted request in one batch
ENDED = ("Note", "Refuse")


@pytest_asyncio.fixture
async def reader(dsn: str) -> AsyncIterator[PostgresReader]:
    async with open_reader(dsn) as opened:
        yield opened


async def queued(on: Stage) -> tuple[PostgresLedger, Term, list[ManagedTx]]:
    """Store requests that arrive together."""
    ledger = await on.ledger(on.old)
    await ledger.accept([new_request(value).changed(tx_id=new_tx_id()) for value in range(1, COUNT + 1)])
    (term,) = await ledger.acquire([SIGNER])
    return ledger, term, list(await ledger.load_queue(SIGNER, limit=COUNT))


def given(tx: ManagedTx, nonce: int) -> TxChange:
    fees, name = Fees(fee_cap_wei=2, tip_wei=1), TxHash(f"0x{tx.tx_id.hex}{tx.tx_id.hex}")
    attempt = Attempt(1, Purpose.INTENT, TxType.DYNAMIC_FEE, 21_000, fees, SignedTx(raw=b"bytes", hash=name))
    step = transaction_state.assign_nonce(tx, nonce, attempt)
    return TxChange(tx, step.tx, step.entries)


def ended(tx: ManagedTx) -> TxChange:
    step = transaction_state.reject(tx, "it must not be")
    return TxChange(tx, step.tx, (JournalEntry("Note", {"of": str(tx.tx_id)}), *step.entries))


async def lines(on: Stage) -> list[tuple[Any, ...]]:
    found = await on.admin.fetch("SELECT id, tx_id, event, state, detail FROM journal ORDER BY xid, id")
    ids = [row["id"] for row in found]
    assert len(ids) == len(set(ids))
    return [
        (row["tx_id"], row["event"], row["state"], row["detail"] and msgspec.json.decode(row["detail"]))
        for row in found
    ]


async def batches(on: Stage) -> int:
    return int(await on.admin.fetchval("SELECT count(*) FROM journal_batch"))


async def test_the_ids_of_a_batch_cover_all_its_entries(on: Stage) -> None:
    ledger = await on.ledger(on.old)
    first = new_tx_id()  # all ids share one millisecond
    requests = [
        new_request(value).changed(tx_id=UUID(int=first.int + value)) for value in range(1, 2 * MAX_AT_ONCE)
    ]
    await ledger.accept(requests)
    received = await lines(on)
    assert sorted(line[0] for line in received) == [request.tx_id for request in requests]
    most = await on.admin.fetchval("SELECT max(cardinality(tx_ids)) FROM journal_batch")
    step = await on.admin.fetchval(
        "SELECT seqincrement FROM pg_sequence"
        " WHERE seqrelid = pg_get_serial_sequence('journal_batch', 'id')::regclass"
    )
    assert MAX_LINES <= most == MAX_AT_ONCE <= step


async def test_entries_are_read_in_the_order_they_were_written(on: Stage) -> None:
    ledger, term, queue = await queued(on)
    assert await batches(on) < COUNT / 2
    received = await lines(on)
    assert sorted(received) == sorted((tx.tx_id, "Receive", "QUEUED", None) for tx in queue)
    changes = [given(tx, nonce) for nonce, tx in enumerate(queue)]
    start = JournalEntry("BeginSequence", {"start": 0})
    written = await ledger.commit(
        LaneWrite(term, tuple(changes), cursor_after=Cursor(COUNT, 0), entries=(start,))
    )
    assert written.applied
    assert (await lines(on))[COUNT:] == [
        (None, "BeginSequence", None, {"start": 0}),
        *((c.after.tx_id, "AssignNonce", "ALLOCATED", c.entries[0].detail) for c in changes),
    ]


async def test_entries_of_different_shape_are_stored_in_separate_batches(on: Stage) -> None:
    ledger, term, queue = await queued(on)
    changes = [ended(tx) if place % 3 else given(tx, place // 3) for place, tx in enumerate(queue[:9])]
    assert (await ledger.commit(LaneWrite(term, tuple(changes), cursor_after=Cursor(3, 0)))).applied
    written = [(c.after.tx_id, entry.event) for c in changes for entry in c.entries]
    assert [line[:2] for line in (await lines(on))[COUNT:]] == written


async def test_one_transaction_may_have_more_entries_than_a_batch_holds(on: Stage) -> None:
    ledger, term, (tx, other, *_) = await queued(on)
    many = tuple(JournalEntry(f"E{number}", {"n": number}) for number in range(2 * MAX_LINES + 3))
    changes = (TxChange(tx, tx.changed(error="x"), many), ended(other))
    assert (await ledger.commit(LaneWrite(term, changes))).applied
    assert (await lines(on))[COUNT:] == [
        *((tx.tx_id, entry.event, "QUEUED", entry.detail) for entry in many),
        (other.tx_id, "Note", "FAILED", {"of": str(other.tx_id)}),
        (other.tx_id, "Refuse", "FAILED", {"error": "it must not be"}),
    ]


async def test_a_page_of_completions_may_begin_inside_a_batch(on: Stage, reader: PostgresReader) -> None:
    ledger, term, queue = await queued(on)
    assert (await ledger.commit(LaneWrite(term, tuple(map(ended, queue))))).applied
    seen: list[Any] = []
    after: CompletionCursor = BEGINNING

    async def has_come() -> bool:
        nonlocal after
        page = await reader.completions(after, limit=7)
        after = page[-1].cursor if page else after
        seen.extend(page)
        return len(seen) >= COUNT

    await until(has_come)
    assert [completion.tx_id for completion in seen] == [tx.tx_id for tx in queue]
    assert {(completion.event, completion.state) for completion in seen} == {("Refuse", State.FAILED)}
    assert await reader.completions(after, limit=7) == []


async def test_the_history_of_one_transaction_is_read_from_shared_batches(
    on: Stage, reader: PostgresReader
) -> None:
    ledger, term, queue = await queued(on)
    assert (await ledger.commit(LaneWrite(term, tuple(map(ended, queue))))).applied
    for tx in (queue[0], queue[17], queue[-1]):
        view = await reader.get(tx.tx_id, frozenset({Part.HISTORY}))
        assert view is not None
        assert [(row.event, row.state, row.detail) for row in view.journal or ()] == [
            ("Receive", "QUEUED", {}),
            ("Note", "FAILED", {"of": str(tx.tx_id)}),
            ("Refuse", "FAILED", {"error": "it must not be"}),
        ]
