"""What the `Ledger` port gives back of what was written, over the fake and over PostgreSQL."""

from __future__ import annotations

from functools import partial

import pytest

from fakes.ledger_lab import ALICE, BOB, LedgerLab, attempt, tx_hash
from fakes.ledger_steps import (
    ACCEPTED,
    APPLIED,
    allocated,
    apply,
    block,
    change,
    held,
    receipt_of,
    stored,
    take,
)
from fencepost.application.ports import Cursor, LaneWrite
from fencepost.domain import managed
from fencepost.domain.confirmations import Confirmations, Standing
from fencepost.domain.managed import Purpose
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.states import State, SubState


async def test_attempts_and_what_nodes_said_come_back(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    said = SendResult(SendCategory.POOL_FULL, "m" * 5_000)
    now_s = lab.clock.now_s()
    tx = await apply(
        ledger,
        term,
        tx,
        partial(managed.sent, attempt_number=1, result=said, now_s=now_s - 3, due_s=now_s + 30),
    )
    assert (tx.latest.sent_count, tx.latest.last_result) == (1, SendCategory.POOL_FULL)
    assert tx.latest.last_message == "m" * 2_000
    tx = await apply(
        ledger,
        term,
        tx,
        partial(managed.given_up, ending=State.FAILED, error="e" * 3_000),
        partial(managed.attempted, attempt=attempt("fill", number=2, purpose=Purpose.FILLER), event="Fill"),
    )
    tx = await apply(
        ledger,
        term,
        tx,
        partial(managed.sent, attempt_number=2, result=ACCEPTED, now_s=now_s, due_s=None),
    )
    assert [a.sent_count for a in tx.attempts] == [1, 1]
    assert [a.purpose for a in tx.attempts] == [Purpose.INTENT, Purpose.FILLER]
    assert tx.attempts[1].last_result is SendCategory.ACCEPTED
    assert (tx.state, tx.sub_state, tx.ending) == (State.SUBMITTED, SubState.REFUSED, State.FAILED)
    assert tx.error == "e" * 2_000
    assert (tx.submit_count, tx.resubmit_due_s) == (1, None)
    assert tx.hash == tx_hash("fill")
    assert await lab.events(tx.tx_id) == [
        "Receive",
        "AssignNonce",
        "SendResult",
        "GiveUp",
        "Fill",
        "SendResult",
    ]


async def test_times_come_back_as_they_were_and_grow_with_the_clock(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    now_s = lab.clock.now_s()
    tx = await apply(
        ledger,
        term,
        tx,
        partial(managed.sent, attempt_number=1, result=ACCEPTED, now_s=now_s - 4, due_s=now_s + 60),
    )
    await lab.pass_time(25)
    tx = await stored(ledger, tx)
    assert tx.resubmit_due_s is not None
    assert tx.last_submit_s is not None
    assert abs(tx.resubmit_due_s - (now_s + 60)) < 5
    assert abs(tx.last_submit_s - (now_s - 4)) < 5
    tx = await apply(ledger, term, tx, partial(managed.attempted, attempt=attempt("b", number=2), event="B"))
    assert tx.resubmit_due_s is None


async def test_receipts_and_confirmations_are_set_and_cleared(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    receipt = receipt_of(tx, block(5))
    tx = await apply(ledger, term, tx, partial(managed.mined, receipt=receipt))
    assert (tx.state, tx.mined, tx.confirmations) == (State.TRACKING, receipt, ())
    on_top = Confirmations(Standing.CANONICAL, (block(6), block(7)), new_fork=False, is_final=False)
    tx = await apply(ledger, term, tx, partial(managed.confirmed_further, confirmations=on_top))
    assert (tx.mined, tx.confirmations) == (receipt, on_top.blocks)
    tx = await apply(ledger, term, tx, partial(managed.orphaned, due_s=lab.clock.now_s()))
    assert (tx.state, tx.mined, tx.confirmations) == (State.SUBMITTED, None, ())
    again = receipt_of(tx, block(6, "b"))
    final = Confirmations(Standing.CANONICAL, (block(7, "b"),), new_fork=False, is_final=True)
    tx = await apply(
        ledger,
        term,
        tx,
        partial(managed.mined, receipt=again),
        partial(managed.finished, confirmations=final, revert_reason="no"),
    )
    assert (tx.state, tx.error, tx.mined) == (State.FAILED, "reverted: no", again)
    assert tx.confirmations == final.blocks


@pytest.mark.parametrize("bloom", ["0x" + "0" * 512, "0x" + "0" * 511 + "8"])
async def test_a_receipt_comes_back_as_the_node_gave_it(lab: LedgerLab, bloom: str) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "one")
    given = receipt_of(tx, block(5))
    receipt = given.changed(raw={**given.raw, "logsBloom": bloom})
    tx = await apply(ledger, term, tx, partial(managed.mined, receipt=receipt))
    assert tx.mined == receipt


async def test_ended_transactions_are_found_by_nonce_and_by_block(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, txs = await allocated(ledger, "x", "y", "z")
    final = Confirmations(Standing.CANONICAL, (), new_fork=False, is_final=True)
    for tx in txs[:2]:
        await apply(
            ledger,
            term,
            tx,
            partial(managed.mined, receipt=receipt_of(tx, block(10 + tx.held_nonce()))),
            partial(managed.finished, confirmations=final, revert_reason=None),
        )
    ended = await ledger.load_finished(ALICE, from_nonce=0, limit=10)
    assert [tx.nonce for tx in ended] == [0, 1]
    assert ended[0].attempts == txs[0].attempts
    assert [tx.nonce for tx in await ledger.load_finished(ALICE, from_nonce=1, limit=10)] == [1]
    assert [tx.nonce for tx in await ledger.load_finished(ALICE, from_nonce=0, limit=1)] == [0]
    assert await ledger.load_finished(BOB, from_nonce=0, limit=1) == []
    assert await ledger.signers_finished_since(31_337, 11) == [ALICE]
    assert await ledger.signers_finished_since(31_337, 12) == []
    assert await ledger.signers_finished_since(1, 0) == []
    assert await ledger.newest_ended_blocks(31_337, limit=10) == [block(11), block(10)]
    assert await ledger.newest_ended_blocks(31_337, limit=1) == [block(11)]
    assert await ledger.newest_ended_blocks(1, limit=10) == []
    state = await ledger.load(ALICE, queue_limit=10)
    assert [tx.nonce for tx in state.in_flight] == [2]


async def test_what_was_lost_before_it_had_bytes_is_among_the_ended_ones(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (x, y, z) = await held(ledger, "x", "y", "z")
    bare = change(x, partial(managed.allocated, nonce=0, attempt=None))
    write = LaneWrite(term, (bare, take(y, 1), take(z, 2)), cursor_after=Cursor(3, 0))
    assert await ledger.commit(write) == APPLIED
    for tx in (x, y):
        await apply(ledger, term, await stored(ledger, tx), partial(managed.lost, error="a stranger has it"))
    ended = await ledger.load_finished(ALICE, from_nonce=0, limit=10)
    assert [(tx.tx_id, tx.nonce, len(tx.attempts)) for tx in ended] == [(x.tx_id, 0, 0), (y.tx_id, 1, 1)]
    assert [tx.nonce for tx in await ledger.load_finished(ALICE, from_nonce=1, limit=10)] == [1]


async def test_an_ended_transaction_is_live_again_after_a_deep_reorg(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    final = Confirmations(Standing.CANONICAL, (), new_fork=False, is_final=True)
    tx = await apply(
        ledger,
        term,
        tx,
        partial(managed.mined, receipt=receipt_of(tx, block(3))),
        partial(managed.finished, confirmations=final, revert_reason=None),
    )
    await apply(ledger, term, tx, partial(managed.orphaned, due_s=lab.clock.now_s()))
    assert await ledger.load_finished(ALICE, from_nonce=0, limit=9) == []
    (back,) = (await ledger.load(ALICE, queue_limit=9)).in_flight
    assert (back.state, back.mined) == (State.SUBMITTED, None)


async def test_suspended_transactions_leave_the_queue_and_come_back(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (x, y) = await held(ledger, "x", "y")
    x = await apply(ledger, term, x, partial(managed.suspended, by="eve"))
    assert [tx.request_id for tx in await ledger.load_queue(ALICE, limit=9)] == ["y"]
    await apply(ledger, term, x, partial(managed.resumed, by="eve"))
    assert [tx.request_id for tx in await ledger.load_queue(ALICE, limit=9)] == ["x", "y"]
    assert y.seq > x.seq
