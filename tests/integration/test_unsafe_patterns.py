"""Known ways to lose or repeat a nonce, each as a fixed schedule on a real PostgreSQL.

The table has one row per pattern: the product passes the schedule, and the same check catches a mutant with exactly that flaw. A
schedule that let its mutant through would prove nothing about the product.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from fakes.rounds import run_alone
from fencepost.adapters.postgres import lane_writer
from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import Cursor, LaneWrite, TxChange
from fencepost.domain import transaction_state
from fencepost.domain.ids import Address, Signer
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction_state import JournalEntry
from integration import lanes_on_stage as lanes
from integration import mutants, schedules, stage
from integration.stage import SIGNER, Owner, Stage

WITHOUT_TOKEN_IN_A_KEY = (
    "ALTER TABLE signer_lease DROP CONSTRAINT signer_lease_chain_id_signer_fencing_token_key"
)


@dataclass(frozen=True, slots=True)
class Row:
    pattern: str
    schedule: Callable[..., Awaitable[schedules.Verdict]]
    ours: Mapping[str, Any]
    mutant: Mapping[str, Any]
    caught_as: str
    also_ours: Mapping[str, Any] = field(default_factory=dict)


OURS = {"write": stage.write, "take_over": stage.take_over}


async def _submit(key: Callable[[], str | None], on: Stage) -> None:
    ledger = await on.ledger(on.new)
    await ledger.accept([stage.new_request(1).changed(request_id=key())])


async def _take_over_a_minute_ahead(on: Stage, owner: Owner) -> int | None:
    clock = lanes.ManualClock(at_s=10.0**9)
    terms = await (await on.ledger(owner, clock=clock)).acquire([SIGNER])
    return terms[0].token if terms else None


TABLE = [
    Row(
        "a fenced UPDATE with a plain EXISTS",
        schedules.late_write,
        OURS,
        {**OURS, "write": mutants.plain_exists},
        "late write",
    ),
    Row(
        "a plain EXISTS, and the row's token too",
        schedules.late_write,
        OURS,
        {**OURS, "write": mutants.plain_exists_and_row_token},
        "late write",
    ),
    Row(
        "a lock in a CTE that nothing references",
        schedules.late_write,
        OURS,
        {**OURS, "write": mutants.lock_that_nothing_references},
        "late write",
    ),
    Row(
        "a look at the lease without a lock",
        schedules.late_write,
        OURS,
        {**OURS, "write": mutants.commit_lanes_without("FOR KEY SHARE OF s")},
        "late write",
    ),
    Row(
        "a lock on the lease without a check of its holder",
        schedules.write_after_take_over,
        {"write": stage.write},
        {"write": mutants.commit_lanes_without("AND s.fencing_token = l.token")},
        "wrote after the take-over",
    ),
    Row(
        "FOR KEY SHARE, and a take-over that changes no key",
        schedules.late_write,
        {"write": stage.write, "take_over": mutants.plain_take_over},  # the schema alone delays it
        {"write": stage.write, "take_over": mutants.plain_take_over, "schema": WITHOUT_TOKEN_IN_A_KEY},
        "late write",
        also_ours={**OURS, "schema": WITHOUT_TOKEN_IN_A_KEY},  # and so does the product's take-over
    ),
    Row(
        "an advisory lock in the statement that checks",
        schedules.write_meets_take_over,
        {"write": stage.write, "take_over": stage.acquire_statements},
        {"write": mutants.lock_and_check_in_one, "take_over": mutants.advisory_take_over},
        "moved while it waited",
    ),
    Row(
        "SERIALIZABLE on one side",
        schedules.late_write,
        OURS,
        {**OURS, "write": mutants.plain_exists, "isolation": "serializable"},
        "late write",
        also_ours={**OURS, "isolation": "serializable"},
    ),
    Row(
        "the row's token alone",
        schedules.write_after_take_over,
        {"write": stage.write},
        {"write": mutants.row_token_alone},
        "wrote after the take-over",
    ),
    Row(
        "now() to see who holds",
        schedules.old_transaction_reads_lease,
        {"is_held": sql("lease_owner")},
        {"is_held": mutants.IS_HELD_BY_START_OF_TRANSACTION},
        "looks held",
    ),
    Row(
        "now() to renew",
        schedules.old_transaction_renews,
        {"renew": sql("lease_renew")},
        {"renew": mutants.RENEW_BY_START_OF_TRANSACTION},
        "too early",
    ),
    Row(
        "a client's clock in the predicate",
        schedules.clock_ahead,
        {"take_over": _take_over_a_minute_ahead},
        {"take_over": mutants.take_over_by_own_clock},
        "stolen",
    ),
    Row(
        "the same node id keeps its token over a restart",
        schedules.restart_under_the_same_name,
        {"take_over": stage.take_over},
        {"take_over": mutants.take_over_by_node_name},
        "still passes the fence",
    ),
    Row(
        "an UPSERT with CASE to acquire",
        schedules.losing_poll,
        {"poll": stage.acquire_statements},
        {"poll": mutants.upsert_poll},
        "losing poll",
    ),
    Row(
        "the lock and max(nonce)+1 in one statement",
        schedules.two_allocations,
        {"allocate": stage.write},
        {"allocate": mutants.lock_and_count_in_one},
        "repeat",
    ),
    Row(
        "lease rows are deleted",
        schedules.release_and_acquire,
        {"release": schedules.release},
        {"release": mutants.release_by_delete},
        "was issued after",
    ),
    Row(
        "the nonce in one transaction, the row in another",
        schedules.killed_while_allocating,
        {"allocate": schedules.allocate_and_die_before_the_commit},
        {"allocate": mutants.nonce_first_row_later},
        "the cursor says",
        also_ours={"allocate": schedules.allocate_and_die_after_the_commit},
    ),
    Row(
        "one transaction, but no request key",
        schedules.retry_after_a_lost_answer,
        {"submit": partial(_submit, lambda: "the caller's name for it")},
        {"submit": partial(_submit, lambda: None)},
        "one request became 2",
    ),
    Row(
        "broadcast, then persist",
        lanes.dies_while_sending,
        {"send_one": run_alone},
        {"send_one": lanes.broadcast_then_persist},
        "before they were stored",
    ),
    Row(
        "nonce too low, so take a fresh nonce",
        lanes.nonce_is_too_low,
        {"send_again": lanes.step_again},
        {"send_again": lanes.fresh_nonce_when_too_low},
        "mined 2 times",
    ),
    Row(
        "the send failed, so release the nonce",
        lanes.send_fails,
        {"after_failure": lanes.nothing_special},
        {"after_failure": lanes.release_the_nonce},
        "several requests on one nonce",
    ),
]

PATTERNS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.pattern)


@pytest.fixture(params=["by value", "in arrays"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose how the statement gets its rows: value by value, or in arrays."""
    if request.param == "in arrays":
        monkeypatch.setattr(lane_writer, "MAX_ROWS_BY_VALUE", 0)


BOTH_WAYS = pytest.mark.usefixtures("way")


@BOTH_WAYS
@PATTERNS
async def test_the_product_is_safe(on: Stage, row: Row) -> None:
    assert await row.schedule(on, **row.ours) is None


@BOTH_WAYS
@pytest.mark.parametrize("row", [row for row in TABLE if row.also_ours], ids=lambda row: row.pattern)
async def test_the_product_is_safe_with_the_other_statement_too(on: Stage, row: Row) -> None:
    assert await row.schedule(on, **row.also_ours) is None


@PATTERNS
async def test_the_mutant_is_caught(on: Stage, row: Row) -> None:
    verdict = await row.schedule(on, **row.mutant)
    assert verdict is not None, "the schedule did not notice the mutant"
    assert row.caught_as in verdict


# ---- tokens


async def test_tokens_contain_the_timeline_and_strictly_rise(on: Stage) -> None:
    timeline = await on.admin.fetchval("SELECT timeline_id FROM pg_control_checkpoint()")
    tokens = [
        (await on.acquire(on.old)).token for _ in range(3)
    ]  # re-acquiring its own lease still begins a new term
    await on.expire()
    tokens.append((await on.acquire(on.new)).token)
    first = (timeline << 40) + 1
    assert tokens == [first, first + 1, first + 2, first + 3]
    recorded = await on.admin.fetch("SELECT fencing_token FROM lease_term ORDER BY acquired_at")
    assert [row["fencing_token"] for row in recorded] == tokens


@pytest.mark.parametrize("ahead", [0, 1, 3])
async def test_a_token_is_above_stored_ones_and_those_of_an_older_timeline(on: Stage, ahead: int) -> None:
    """A promoted replica without the last commits has a higher timeline; the test changes the stored token instead."""
    timeline = (await on.acquire(on.old)).token >> 40
    await on.admin.execute("DELETE FROM lease_term")
    stored = ((timeline - 1 + ahead) << 40) + 7
    await on.admin.execute("UPDATE signer_lease SET fencing_token = $1, expires_at = '-infinity'", stored)
    token = (await on.acquire(on.new)).token
    assert token == max(stored, timeline << 40) + 1


async def test_only_one_of_many_nodes_gets_a_free_lease(on: Stage) -> None:
    terms = [await (await on.ledger(Owner(f"node {i}"))).acquire([SIGNER]) for i in range(3)]
    assert [len(term) for term in terms] == [1, 0, 0]


async def test_lease_rows_are_created_in_one_order(on: Stage) -> None:
    """Two nodes that created the same rows in opposite orders could deadlock."""
    signers = [Signer(chain_id, Address(f"0x{number:040x}")) for chain_id in (1, 2) for number in range(20)]
    keys = [signer.chain_id for signer in signers[::-1]], [signer.address for signer in signers[::-1]]
    await on.admin.execute(sql("lease_insert_missing"), *keys)
    rows = await on.admin.fetch("SELECT chain_id, signer FROM signer_lease ORDER BY ctid")
    assert [Signer(row["chain_id"], row["signer"]) for row in rows] == signers


@BOTH_WAYS
async def test_no_write_of_the_old_term_passes_after_a_take_over(on: Stage) -> None:
    tx = await on.request()
    old = await on.acquire(on.old)
    await on.expire()
    new = await on.acquire(on.new)
    ledger = await on.ledger(on.old)
    assert await ledger.renew([old]) == []
    await ledger.release([old])
    written = await ledger.commit(stage.allocation(tx, nonce=0, before=None, term=old))
    assert (written.lease_ok, written.applied) == (False, False)
    held = await on.admin.fetchrow(
        "SELECT fencing_token, expires_at > clock_timestamp() AS held FROM signer_lease"
    )
    assert held is not None
    assert (held["fencing_token"], held["held"]) == (new.token, True)
    assert await on.admin.fetchval("SELECT count(*) FROM journal WHERE fencing_token = $1", old.token) == 0


async def refused_whole(on: Stage, write: LaneWrite) -> None:
    """Assert that a write with the right token but a stale expectation is rejected as a whole."""
    before, journal = await on.rows(), await on.admin.fetchval("SELECT count(*) FROM journal")
    cursor = await on.admin.fetchrow("SELECT next_nonce, state FROM signer_nonce_cursor")
    written = await (await on.ledger(on.old)).commit(write)
    assert (written.lease_ok, written.applied) == (True, False)
    assert await on.rows() == before
    assert await on.admin.fetchval("SELECT count(*) FROM journal") == journal
    assert await on.admin.fetchrow("SELECT next_nonce, state FROM signer_nonce_cursor") == cursor


@BOTH_WAYS
async def test_a_changed_row_rejects_the_whole_write(on: Stage) -> None:
    tx = await on.request()
    term = await on.acquire(on.old)
    write = stage.allocation(tx, nonce=0, before=None, term=term)
    assert (await (await on.ledger(on.old)).commit(write)).applied
    stale = write.changes[0].after.changed(version=tx.version)  # the row has changed since then
    lane_step = transaction_state.claim_send(stale, due_s=1.0, resubmit=False)
    await refused_whole(on, LaneWrite(term=term, changes=(TxChange(stale, lane_step.tx, lane_step.entries),)))


@BOTH_WAYS
async def test_a_changed_cursor_rejects_the_whole_write(on: Stage) -> None:
    first, second = await on.request(1), await on.request(2)
    term = await on.acquire(on.old)
    write = stage.allocation(first, nonce=0, before=None, term=term)
    assert (await (await on.ledger(on.old)).commit(write)).applied
    now = Cursor(next_nonce=1, start_nonce=0)
    for remembered in (None, now.changed(next_nonce=0), now.changed(state=CursorState.PROTECT)):
        await refused_whole(on, stage.allocation(second, nonce=1, before=remembered, term=term))
    assert (
        await (await on.ledger(on.old)).commit(stage.allocation(second, nonce=1, before=now, term=term))
    ).applied


@BOTH_WAYS
async def test_a_transition_outside_the_state_table_is_rejected(on: Stage) -> None:
    tx = await on.request()
    term = await on.acquire(on.old)
    jumped = tx.changed(state=State.SUBMITTED, nonce=0)
    await refused_whole(on, LaneWrite(term=term, changes=(TxChange(tx, jumped, (JournalEntry("Jump"),)),)))
