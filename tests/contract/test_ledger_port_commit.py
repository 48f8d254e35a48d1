"""What the `Ledger` port promises about the fenced write, over the fake and over PostgreSQL."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import uuid4

import pytest

from fakes.ledger_lab import ALICE, LEASE_S, SKEW_S, LedgerLab, attempt, new, tx_hash
from fakes.ledger_steps import ACCEPTED, APPLIED, FENCED, MOVED, allocated, apply, change, held, stored, take
from fencepost.application.ports import Cursor, LaneWrite, TxChange
from fencepost.domain import managed
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import Entry, Intent, Kind, ManagedTx, Purpose
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction import Call

NO_CURSOR = None


# ---- all, under the token, or nothing


async def test_an_allocation_is_written_whole(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, queue = await held(ledger, "x", "y")
    before = await lab.events(None)
    write = LaneWrite(
        term,
        (take(queue[0], 7), take(queue[1], 8)),
        cursor_before=NO_CURSOR,
        cursor_after=Cursor(9, 7),
        entries=(Entry("BeginSequence", {"start": 7}),),
    )
    assert await ledger.commit(write) == APPLIED
    state = await ledger.load(ALICE, queue_limit=10)
    assert state.cursor == Cursor(9, 7)
    assert state.cursor_token == term.token
    assert state.queue == ()
    assert [(tx.nonce, tx.state, tx.version) for tx in state.in_flight] == [
        (7, State.ALLOCATED, 2),
        (8, State.ALLOCATED, 2),
    ]
    assert state.in_flight[0].attempts == (attempt(f"{queue[0].tx_id}"),)
    assert state.in_flight[0].hash == tx_hash(f"{queue[0].tx_id}")
    assert state.in_flight[0].journal_count == 2
    assert await lab.events(queue[0].tx_id) == ["Receive", "AssignNonce"]
    assert await lab.events(None) == [*before, "BeginSequence"]


async def test_an_old_term_writes_nothing(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    term, (tx,) = await held(one, "x")
    await lab.pass_time(LEASE_S + SKEW_S + 1)
    (newer,) = await two.acquire([ALICE])
    wish = await two.ask(ALICE, "pause", tx_id=None, asked_by="eve", reason=None, detail={})
    write = LaneWrite(
        term,
        (take(tx, 0),),
        cursor_after=Cursor(1, 0),
        entries=(Entry("Protect"),),
        done_commands=((wish, "late"),),
    )
    assert await one.commit(write) == FENCED
    assert (await stored(one, tx)).state is State.QUEUED
    assert (await two.load(ALICE, queue_limit=1)).cursor is None
    assert await lab.outcome(wish) is None
    assert await lab.events(None) == []
    assert await lab.events(tx.tx_id) == ["Receive"]
    assert await two.commit(write.changed(term=newer)) == APPLIED


async def test_a_term_that_has_run_out_still_writes_while_nobody_took_over(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await held(ledger, "x")
    await lab.pass_time(LEASE_S * 5)
    assert await ledger.commit(LaneWrite(term, (take(tx, 0),), cursor_after=Cursor(1, 0))) == APPLIED


async def test_one_row_that_moved_stops_the_whole_write(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (x, y) = await held(ledger, "x", "y")
    await apply(ledger, term, y, partial(managed.suspended, by="eve"))
    write = LaneWrite(term, (take(x, 0), take(y, 1)), cursor_after=Cursor(2, 0), entries=(Entry("Begin"),))
    assert await ledger.commit(write) == MOVED
    assert (await stored(ledger, x)).state is State.QUEUED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor is None
    assert await lab.events(None) == []


async def test_a_row_that_is_not_there_stops_the_write(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await held(ledger, "x")
    ghost = tx.changed(tx_id=new().tx_id)
    assert await ledger.commit(LaneWrite(term, (take(ghost, 0),))) == MOVED


async def test_a_step_that_the_table_does_not_have_is_refused(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await held(ledger, "x")
    jump = take(tx, 0).after.changed(state=State.SUBMITTED)
    assert await ledger.commit(LaneWrite(term, (TxChange(tx, jump, ()),))) == MOVED
    ended = await apply(ledger, term, tx, partial(managed.dropped, reason="no"))
    again = TxChange(ended, ended.changed(state=State.QUEUED), ())
    assert await ledger.commit(LaneWrite(term, (again,))) == MOVED
    assert (await stored(ledger, tx)).state is State.CANCELLED


@pytest.mark.parametrize(
    "expected", [None, Cursor(1, 0), Cursor(3, 0), Cursor(2, 0, CursorState.PAUSED, "why")]
)
async def test_the_cursor_moves_only_from_where_it_was_expected(
    lab: LedgerLab, expected: Cursor | None
) -> None:
    ledger = await lab.node("a")
    term, _ = await allocated(ledger, "x", "y")
    move = LaneWrite(term, cursor_before=expected, cursor_after=Cursor(9, 0))
    assert await ledger.commit(move) == MOVED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == Cursor(2, 0)
    assert await ledger.commit(move.changed(cursor_before=Cursor(2, 0))) == APPLIED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == Cursor(9, 0)


async def test_a_first_cursor_is_refused_when_one_exists_or_was_expected(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    (term,) = await ledger.acquire([ALICE])
    assert (
        await ledger.commit(LaneWrite(term, cursor_before=Cursor(0, 0), cursor_after=Cursor(1, 0))) == MOVED
    )
    assert await ledger.commit(LaneWrite(term, cursor_after=Cursor(1, 0))) == APPLIED
    assert await ledger.commit(LaneWrite(term, cursor_after=Cursor(1, 0))) == MOVED


@pytest.mark.parametrize("is_doubted", [True, False])
async def test_the_cursors_state_and_reason_and_doubt_come_back(lab: LedgerLab, *, is_doubted: bool) -> None:
    ledger = await lab.node("a")
    (term,) = await ledger.acquire([ALICE])
    first = Cursor(4, 2, is_doubted=not is_doubted)
    protected = Cursor(4, 2, CursorState.PROTECT, "a stranger", is_doubted)
    assert await ledger.commit(LaneWrite(term, cursor_after=first)) == APPLIED
    assert await ledger.commit(LaneWrite(term, cursor_before=first, cursor_after=protected)) == APPLIED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == protected


async def test_the_same_nonce_twice_applies_nothing(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, _ = await allocated(ledger, "x")
    await ledger.accept([new("y"), new("z")])
    y, z = await ledger.load_queue(ALICE, limit=10)
    write = LaneWrite(term, (take(y, 1), take(z, 0)), cursor_before=Cursor(1, 0), cursor_after=Cursor(2, 0))
    assert await ledger.commit(write) == MOVED
    within = LaneWrite(term, (take(y, 1), take(z, 1)), cursor_before=Cursor(1, 0), cursor_after=Cursor(2, 0))
    assert await ledger.commit(within) == MOVED
    assert [(await stored(ledger, tx)).state for tx in (y, z)] == [State.QUEUED] * 2
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == Cursor(1, 0)


async def test_the_same_hash_twice_applies_nothing(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (x,) = await allocated(ledger, "x")
    await ledger.accept([new("y")])
    (y,) = await ledger.load_queue(ALICE, limit=10)
    write = LaneWrite(
        term,
        (take(y, 1, name=f"{x.tx_id}"),),
        cursor_before=Cursor(1, 0),
        cursor_after=Cursor(2, 0),
    )
    assert await ledger.commit(write) == MOVED
    assert (await stored(ledger, y)).attempts == ()
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == Cursor(1, 0)


async def test_lanes_that_commit_together_do_not_judge_one_another(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    signers = [Signer(31_337, Address(f"0x{i:040x}")) for i in range(1, 13)]
    lanes = [await held(one, "r", signer=signer) for signer in signers]
    await one.release([lanes[0][0]])
    await two.acquire([signers[0]])
    taken = f"{lanes[5][1][0].tx_id}"
    writes = [
        LaneWrite(term, (take(tx, 0, name=taken if i == 6 else None),), cursor_after=Cursor(1, 0))
        for i, (term, (tx,)) in enumerate(lanes)
    ]
    writes[1] = writes[1].changed(cursor_before=Cursor(5, 0))
    writes[2] = writes[2].changed(changes=(take(lanes[2][1][0].changed(version=9), 0),))
    answers = await asyncio.gather(*(one.commit(write) for write in writes))
    assert answers[:5] == [FENCED, MOVED, MOVED, APPLIED, APPLIED]
    assert sorted([answers[5].applied, answers[6].applied]) == [False, True]
    assert answers[7:] == [APPLIED] * 5
    for answer, (_, (tx,)) in zip(answers, lanes, strict=True):
        assert (await stored(one, tx)).state is (State.ALLOCATED if answer.applied else State.QUEUED)


# ---- fillers: rows that begin with a nonce


def filler(nonce: int, name: str | None = None, *, signer: Signer = ALICE) -> TxChange:
    draft = ManagedTx(uuid4(), signer, seq=0, kind=Kind.FILLER, intent=Intent(Call(to=signer.address)))
    bytes_ = attempt(name or f"{draft.tx_id}", purpose=Purpose.FILLER)
    return change(draft, partial(managed.allocated, nonce=nonce, attempt=bytes_))


async def test_fillers_are_stored_with_nonce_and_bytes(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await held(ledger, "x")
    await ledger.commit(LaneWrite(term, (take(tx, 2),), cursor_after=Cursor(3, 2)))
    wish = await ledger.ask(ALICE, "unprotect", tx_id=None, asked_by="eve", reason=None, detail={})
    made = (filler(0), filler(1))
    write = LaneWrite(
        term,
        cursor_before=Cursor(3, 2),
        cursor_after=Cursor(3, 0),
        entries=(Entry("Unprotect"),),
        done_commands=((wish, "filled"),),
        fillers=made,
    )
    assert await ledger.commit(write) == APPLIED
    state = await ledger.load(ALICE, queue_limit=10)
    assert state.cursor == Cursor(3, 0)
    assert [(row.nonce, row.kind) for row in state.in_flight] == [
        (0, Kind.FILLER),
        (1, Kind.FILLER),
        (2, Kind.INTENT),
    ]
    for row, new_one in zip(state.in_flight, made, strict=False):
        assert row == new_one.after.changed(version=2, seq=row.seq, received_s=row.received_s)
        assert row.seq > tx.seq
    assert await lab.events(made[0].after.tx_id) == ["AssignNonce"]
    assert await lab.outcome(wish) == "filled"
    sent = await apply(
        ledger,
        term,
        state.in_flight[0],
        partial(managed.sent, attempt_number=1, result=ACCEPTED, now_s=lab.clock.now_s(), due_s=None),
    )
    assert (sent.state, sent.version, sent.latest.sent_count) == (State.SUBMITTED, 3, 1)


async def test_an_old_term_stores_no_filler(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    term, _ = await allocated(one, "x")
    await one.release([term])
    await two.acquire([ALICE])
    late = filler(1)
    assert await one.commit(LaneWrite(term, fillers=(late,))) == FENCED
    assert await two.get(late.after.tx_id) is None
    assert await lab.events(late.after.tx_id) == []


@pytest.mark.parametrize("nonces", [(5, 0), (5, 5)])
async def test_a_filler_for_a_nonce_that_is_taken_applies_nothing(
    lab: LedgerLab, nonces: tuple[int, int]
) -> None:
    ledger = await lab.node("a")
    term, _ = await allocated(ledger, "x")
    made = tuple(filler(nonce) for nonce in nonces)
    write = LaneWrite(term, cursor_before=Cursor(1, 0), cursor_after=Cursor(6, 0), fillers=made)
    assert await ledger.commit(write) == MOVED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == Cursor(1, 0)
    assert [await ledger.get(new_one.after.tx_id) for new_one in made] == [None, None]


async def test_a_filler_that_exists_or_whose_bytes_do_is_refused(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    again = filler(1)
    assert await ledger.commit(LaneWrite(term, fillers=(again,))) == APPLIED
    known = TxChange(again.before, again.after.changed(nonce=2), again.entries)
    assert await ledger.commit(LaneWrite(term, fillers=(known,))) == MOVED
    assert await ledger.commit(LaneWrite(term, fillers=(filler(3, f"{tx.tx_id}"),))) == MOVED


async def test_a_cursor_that_moved_stops_fillers_too(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, _ = await allocated(ledger, "x")
    late = filler(1)
    write = LaneWrite(term, cursor_before=Cursor(7, 0), cursor_after=Cursor(7, 0), fillers=(late,))
    assert await ledger.commit(write) == MOVED
    assert await ledger.get(late.after.tx_id) is None
