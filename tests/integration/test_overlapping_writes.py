"""Two fenced writes of the same term overlap: the caller of the first gave up, but PostgreSQL still runs it.

The second one checks the rows before the first one commits, and updates them afterwards. It must not report a change that it did
not make.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from fencepost.adapters.postgres import lane_writer
from fencepost.adapters.postgres.lane_writer import lane_statement
from fencepost.adapters.postgres.queries import load_all
from fencepost.application.ports import Cursor, LaneWrite, TxChange, Written
from fencepost.domain import transaction_state
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.domain.transaction_state import ManagedTx, Transition
from integration.stage import Stage, commit_lanes

OTHER = Signer(31_337, Address("0x" + "cd" * 20))
MOVED, APPLIED = Written(lease_ok=True, applied=False), Written(lease_ok=True, applied=True)


@pytest.fixture(params=["by value", "in arrays"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in arrays":
        monkeypatch.setattr(lane_writer, "MAX_ROWS_BY_VALUE", 0)


def changed_by(step: partial[Transition], tx: ManagedTx, term: Term) -> LaneWrite:
    taken = step(tx)
    return LaneWrite(term, (TxChange(tx, taken.tx, taken.entries),))


suspended = partial(changed_by, partial(transaction_state.suspend, by="a test"))
rejected = partial(changed_by, partial(transaction_state.reject, error="a test"))


async def written_behind(on: Stage, first: LaneWrite, *later: LaneWrite) -> list[Written]:
    """Commit the later writes while the first one, which they wait for, is not committed yet."""
    connection = await on.connect()
    await connection.execute("BEGIN")
    assert await commit_lanes(connection, first) == (True, True)
    ledger = await on.ledger(on.old)
    task = asyncio.ensure_future(ledger.commit_each(later))
    assert await on.waits(task, behind=connection)
    await connection.execute("COMMIT")
    return list(await task)


async def test_a_transaction_that_changed_meanwhile_is_not_reported_as_written(on: Stage) -> None:
    tx, term = await on.request(), await on.acquire(on.old)
    assert await written_behind(on, suspended(tx, term), rejected(tx, term)) == [MOVED]
    assert [row[1] for row in await on.rows()] == ["SUSPENDED"]
    assert await on.admin.fetchval("SELECT count(*) FROM journal WHERE event = 'Refuse'") == 0


async def test_a_cursor_that_moved_meanwhile_is_not_reported_as_written(on: Stage) -> None:
    term = await on.acquire(on.old)
    ledger, start = await on.ledger(on.old), Cursor(0, 0)
    assert await ledger.commit(LaneWrite(term, cursor_after=start)) == APPLIED
    moves = [LaneWrite(term, cursor_before=start, cursor_after=Cursor(to, 0)) for to in (1, 2)]
    assert await written_behind(on, *moves) == [MOVED]
    assert await on.admin.fetchval("SELECT next_nonce FROM signer_nonce_cursor") == 1


async def test_other_lanes_of_the_statement_are_written(on: Stage) -> None:
    tx, term = await on.request(), await on.acquire(on.old)
    other_tx, other = await on.request(2, signer=OTHER), await on.acquire(on.old, signer=OTHER)
    later = rejected(tx, term), rejected(other_tx, other)
    assert await written_behind(on, suspended(tx, term), *later) == [MOVED, APPLIED]
    assert sorted(row[1] for row in await on.rows()) == ["FAILED", "SUSPENDED"]


async def test_without_the_condition_the_write_would_be_lost(on: Stage) -> None:
    """The schedule catches a statement that does not compare what it wrote with what it should have written."""
    tx, term = await on.request(), await on.acquire(on.old)
    statement, arguments = lane_statement([rejected(tx, term)], now_s=0.0, node="a test's node")
    condition = load_all()["commit_lanes"].conditions["txs"]
    assert condition in statement
    first, second = await on.connect(), await on.connect()
    await first.execute("BEGIN")
    assert await commit_lanes(first, suspended(tx, term)) == (True, True)
    task = asyncio.ensure_future(second.fetchrow(statement.replace(condition, "true"), *arguments))
    assert await on.waits(task, behind=first)
    await first.execute("COMMIT")
    row = await task
    assert row is not None
    assert row["applied"]  # the flaw: the row says otherwise
    assert [found[1] for found in await on.rows()] == ["SUSPENDED"]
