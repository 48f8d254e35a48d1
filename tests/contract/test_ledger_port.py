"""The contract of the `Ledger` port, over the fake and over PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from uuid import uuid4

import pytest

from fakes.ledger_lab import ALICE, BOB, LEASE_S, ON_OTHER_CHAIN, SKEW_S, LedgerLab, attempt, new, tx_hash
from fakes.ledger_steps import (
    ACCEPTED,
    APPLIED,
    FENCED,
    MOVED,
    allocated,
    apply,
    block,
    change,
    held,
    receipt_of,
    stored,
    take,
)
from fencepost.application.ports import (
    MAX_BEHIND,
    YOUNG_HISTORY_S,
    AcceptOutcome,
    Cursor,
    DoneCommand,
    LaneWrite,
    Ledger,
    NewRequest,
    TxChange,
    UnreadableRow,
    Written,
)
from fencepost.domain import transaction_state
from fencepost.domain.confirmations import BlockStatus, Confirmations
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import history_of
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent, JournalEntry, Kind, ManagedTx, Purpose, Receipt

CREATED, KNOWN = AcceptOutcome.CREATED, AcceptOutcome.KNOWN


async def protect(ledger: Ledger, signer: Signer = ALICE) -> None:
    (term,) = await ledger.acquire([signer])
    cursor = Cursor(0, 0, CursorState.PROTECT, "a foreign transaction")
    assert await ledger.commit(LaneWrite(term, cursor_after=cursor)) == Written(lease_ok=True, applied=True)
    await ledger.release([term])


async def outcomes(ledger: Ledger, *requests: NewRequest) -> list[AcceptOutcome]:
    return [answer.outcome for answer in await ledger.accept(requests)]


# ---- accepting


async def test_a_new_request_is_stored_as_it_was_submitted(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    request = new("order-1", value_wei=2**200, valid_for_s=60.0)
    (answer,) = await ledger.accept([request])
    assert (answer.outcome, answer.tx_id) == (CREATED, request.tx_id)
    tx = await ledger.get(request.tx_id)
    assert tx is not None
    assert (tx.state, tx.nonce, tx.version, tx.request_id) == (State.QUEUED, None, 1, "order-1")
    assert tx.intent.call.value_wei == 2**200
    assert tx.valid_until_s is not None
    assert abs(tx.valid_until_s - lab.clock.now_s() - 60) < 5
    assert await lab.events(tx.tx_id) == ["Receive"]
    same = await ledger.find_by_request(ALICE, "order-1")
    assert same is not None
    assert same.changed(valid_until_s=None) == tx.changed(valid_until_s=None)


async def test_a_repeated_request_is_a_duplicate_and_another_payload_is_a_conflict(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    first = new("order-1")
    await ledger.accept([first])
    (again,) = await ledger.accept([new("order-1")])
    (other,) = await ledger.accept([new("order-1", value_wei=2)])
    assert (again.outcome, again.tx_id) == (KNOWN, first.tx_id)
    assert (other.outcome, other.tx_id) == (AcceptOutcome.CONFLICT, first.tx_id)
    assert await lab.events(first.tx_id) == ["Receive"]


async def test_a_single_request_is_accepted_like_a_batch(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    request = new("order-1")
    ((first,), (again,)) = await ledger.accept([request]), await ledger.accept([new("order-1")])
    (other,) = await ledger.accept([new("order-1", value_wei=2)])
    assert [answer.outcome for answer in (first, again, other)] == [CREATED, KNOWN, AcceptOutcome.CONFLICT]
    assert {answer.tx_id for answer in (first, again, other)} == {request.tx_id}
    assert first.queued is not None


async def test_a_request_id_belongs_to_one_signer_on_one_chain(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    requests = [new("order-1", signer=signer) for signer in (ALICE, BOB, ON_OTHER_CHAIN)]
    assert await outcomes(ledger, *requests) == [CREATED] * 3


async def test_requests_without_an_id_are_all_new(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    assert await outcomes(ledger, new(), new()) == [CREATED] * 2
    assert await outcomes(ledger, new()) == [CREATED]
    assert len(await ledger.load_queue(ALICE, limit=10)) == 3


async def test_duplicates_within_one_batch_are_one_request(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    batch = [new("x"), new("x"), new("y"), new("x", value_wei=9)]
    answers = await ledger.accept(batch)
    assert [a.outcome for a in answers] == [CREATED, KNOWN, CREATED, AcceptOutcome.CONFLICT]
    assert answers[1].tx_id == batch[0].tx_id


async def test_a_hundred_concurrent_copies_from_two_nodes_make_one_request(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    answers = await asyncio.gather(*((one, two)[i % 2].accept([new("order-1")]) for i in range(100)))
    assert Counter(a.outcome for (a,) in answers) == {CREATED: 1, KNOWN: 99}
    assert len({a.tx_id for (a,) in answers}) == 1


async def test_two_batches_with_the_same_ids_in_opposite_order_both_finish(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    names = [f"order-{i}" for i in range(200)]
    for turn in range(5):
        forth, back = await asyncio.gather(
            one.accept([new(f"{turn}-{name}") for name in names]),
            two.accept([new(f"{turn}-{name}") for name in reversed(names)]),
        )
        assert [a.tx_id for a in forth] == [a.tx_id for a in reversed(back)]
        assert Counter(a.outcome for a in [*forth, *back]) == {CREATED: 200, KNOWN: 200}


async def test_a_protected_signer_rejects_new_requests_and_recognizes_duplicates(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    old = new("old")
    await ledger.accept([old])
    await protect(ledger)
    refused, known, other = await ledger.accept([new("new"), new("old"), new("new", signer=BOB)])
    assert (refused.outcome, refused.detail) == (AcceptOutcome.PROTECTED, "a foreign transaction")
    assert (known.outcome, known.tx_id) == (KNOWN, old.tx_id)
    assert other.outcome is CREATED
    assert await ledger.find_by_request(ALICE, "new") is None


async def test_the_queue_is_in_order_of_arrival_and_cut_at_the_limit(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    requests = [new(f"r{i}") for i in range(5)]
    await ledger.accept(requests)
    queue = await ledger.load_queue(ALICE, limit=3)
    assert [tx.tx_id for tx in queue] == [request.tx_id for request in requests[:3]]
    state = await ledger.load(ALICE, queue_limit=4)
    assert [tx.request_id for tx in state.queue] == ["r0", "r1", "r2", "r3"]
    assert (state.cursor, state.in_flight) == (None, ())


async def test_a_request_id_may_be_any_text(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    names = [
        '"quoted"',
        "back\\slash\\",
        "{a,b}",
        "NULL",
        "null",
        " ",
        "tab\tand\nline",
        "\x1f",
        "ü 🦊",
        None,
        "last",
    ]
    requests = [new(name) for name in names]
    assert await outcomes(ledger, *requests) == [CREATED] * len(names)
    queue = await ledger.load_queue(ALICE, limit=20)
    assert [tx.request_id for tx in queue] == names
    assert [tx.tx_id for tx in queue] == [request.tx_id for request in requests]
    again = [new(name) for name in names if name is not None]
    assert await outcomes(ledger, *again) == [KNOWN] * len(again)


async def test_a_new_request_is_reported_with_the_short_queue_before_it(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    requests = [new("r0"), new("r1", valid_for_s=60), new("other", signer=BOB)]
    accepted = await one.accept(requests)
    assert [answer.behind for answer in accepted] == [()] * 3
    shown = [answer.queued for answer in accepted]
    (term,) = await one.acquire([ALICE])
    loaded = [*await one.load_queue(ALICE, limit=9), *await one.load_queue(BOB, limit=9)]
    for queued, found in zip(shown, loaded, strict=True):
        assert queued is not None
        assert queued.changed(valid_until_s=None, received_s=None) == found.changed(
            valid_until_s=None, received_s=None
        )
    assert shown[1] is not None
    assert shown[1].valid_until_s == pytest.approx(loaded[1].valid_until_s, abs=5)

    before = [loaded[0].seq, loaded[1].seq]
    for count in range(2, MAX_BEHIND + 1):
        (behind_few,) = await two.accept([new(f"r{count}")])
        assert behind_few.queued is not None
        assert sorted(behind_few.behind) == before
        before.append(behind_few.queued.seq)
    (behind_many,) = await two.accept([new(f"r{MAX_BEHIND + 1}")])
    assert (behind_many.outcome, behind_many.queued, behind_many.behind) == (CREATED, None, ())
    (known,) = await two.accept([new("r0")])
    assert (known.outcome, known.queued) == (KNOWN, None)

    queue = await one.load_queue(ALICE, limit=MAX_BEHIND + 9)
    steps = [transaction_state.cancel_unsent(tx, "enough") for tx in queue]
    dropped = [TxChange(tx, step.tx, step.entries) for tx, step in zip(queue, steps, strict=True)]
    assert await one.commit(LaneWrite(term, tuple(dropped))) == Written(lease_ok=True, applied=True)
    (alone,) = await two.accept([new("alone")])
    assert alone.behind == ()
    assert alone.queued is not None
    assert alone.queued.seq > loaded[1].seq


async def test_unknown_ids_return_none(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    assert await ledger.get(uuid4()) is None
    assert await ledger.find_by_request(ALICE, "nothing") is None


# ---- operator commands


async def test_operator_commands_stay_open_in_order_until_they_are_answered(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    request = new()
    await ledger.accept([request])
    first = await ledger.add_command(
        ALICE, "cancel", tx_id=request.tx_id, author="eve", reason="why", detail={"a": 1}
    )
    second = await ledger.add_command(ALICE, "pause", tx_id=None, author="eve", reason=None, detail={})
    await ledger.add_command(BOB, "pause", tx_id=None, author="eve", reason=None, detail={})
    commands = await ledger.load_commands(ALICE)
    assert [command.id for command in commands] == [first, second]
    assert (commands[0].command, commands[0].tx_id, commands[0].detail) == ("cancel", request.tx_id, {"a": 1})
    assert (commands[0].author, commands[0].reason) == ("eve", "why")
    (term,) = await ledger.acquire([ALICE])
    await ledger.commit(LaneWrite(term, done_commands=(DoneCommand(first, "done so"),)))
    assert [command.id for command in await ledger.load_commands(ALICE)] == [second]
    assert await lab.outcome(first) == "done so"


async def test_a_lane_answers_only_the_commands_of_its_own_signer(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    command_id = await ledger.add_command(BOB, "pause", tx_id=None, author="eve", reason=None, detail={})
    (term,) = await ledger.acquire([ALICE])
    await ledger.commit(LaneWrite(term, done_commands=(DoneCommand(command_id, "not mine"),)))
    assert [found.id for found in await ledger.load_commands(BOB)] == [command_id]


# ---- leases


async def test_a_lease_has_one_holder_until_it_expires(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    (term,) = await one.acquire([ALICE])
    assert (term.signer, term.duration_s, term.renewed_at_s) == (ALICE, LEASE_S, lab.clock.now_s())
    assert await two.acquire([ALICE]) == []
    await lab.pass_time(LEASE_S + SKEW_S / 2)
    assert await two.acquire([ALICE]) == []  # expired by the holder's clock, but within the skew allowance
    await lab.pass_time(SKEW_S)
    (next_term,) = await two.acquire([ALICE])
    assert next_term.token > term.token
    assert await one.renew([term]) == []
    assert await one.acquire([ALICE]) == []


async def test_a_renewal_extends_the_lease_and_keeps_the_token(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    terms = await one.acquire([ALICE, BOB])
    await lab.pass_time(LEASE_S - 1)
    renewed = await one.renew(terms)
    assert {(t.signer, t.token) for t in renewed} == {(t.signer, t.token) for t in terms}
    assert {t.renewed_at_s for t in renewed} == {lab.clock.now_s()}
    await lab.pass_time(LEASE_S - 1)
    assert await two.acquire([ALICE, BOB]) == []


async def test_an_expired_lease_without_a_new_holder_can_be_renewed(lab: LedgerLab) -> None:
    one = await lab.node("a")
    (term,) = await one.acquire([ALICE])
    await lab.pass_time(LEASE_S * 3)
    assert [t.token for t in await one.renew([term])] == [term.token]


async def test_the_same_process_acquires_again_with_a_new_token(lab: LedgerLab) -> None:
    one = await lab.node("a")
    (first,) = await one.acquire([ALICE])
    (second,) = await one.acquire([ALICE])
    assert second.token > first.token
    assert await one.renew([first]) == []
    assert await one.commit(LaneWrite(first)) == Written(lease_ok=False, applied=False)
    assert await one.commit(LaneWrite(second)) == Written(lease_ok=True, applied=True)


async def test_a_node_with_the_same_name_is_another_holder(lab: LedgerLab) -> None:
    one, twin = await lab.node("a"), await lab.node("a")
    await one.acquire([ALICE])
    assert await twin.acquire([ALICE]) == []


async def test_a_released_lease_is_free_immediately(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    (term,) = await one.acquire([ALICE])
    await one.release([term])
    (taken,) = await two.acquire([ALICE])
    assert taken.token > term.token
    await one.release([term])  # a late release of an old term ends no other lease
    assert await one.acquire([ALICE]) == []


async def test_one_of_many_concurrent_nodes_acquires_a_lease(lab: LedgerLab) -> None:
    nodes = [await lab.node(f"n{i}") for i in range(4)]
    for _ in range(5):
        taken = await asyncio.gather(*(node.acquire([ALICE, BOB]) for node in nodes))
        terms = [term for terms in taken for term in terms]
        assert sorted(term.signer for term in terms) == [ALICE, BOB]
        await nodes[0].release(terms)


# ---- histories


async def test_a_signer_without_a_cursor_may_be_forgotten_while_the_database_history_is_young(
    lab: LedgerLab,
) -> None:
    async def may_be_forgotten(ledger: Ledger, *signers: Signer) -> list[bool]:
        return [(await ledger.load(signer, queue_limit=1)).may_be_forgotten for signer in signers]

    before = await lab.node("before")
    await before.acquire([ALICE])
    assert await may_be_forgotten(before, ALICE) == [False]
    await lab.pass_time(LEASE_S + SKEW_S + 1)
    await lab.begin_history()
    after = await lab.node("after")
    term, _ = sorted(await after.acquire([ALICE, BOB]), key=lambda term: term.signer)
    await after.commit(LaneWrite(term, cursor_after=Cursor(0, 0)))
    assert await may_be_forgotten(after, ALICE, BOB) == [False, True]
    await lab.pass_time(YOUNG_HISTORY_S - 1)
    assert await may_be_forgotten(after, BOB) == [True]
    await after.acquire([BOB])  # a history begins once
    await lab.pass_time(2)
    assert await may_be_forgotten(after, BOB) == [False]


@pytest.mark.parametrize("by_copy", [False, True])
async def test_a_new_database_history_issues_its_own_tokens_and_knows_whether_it_is_a_copy(
    lab: LedgerLab, *, by_copy: bool
) -> None:
    before = await lab.node("before")
    (term,) = await before.acquire([ALICE])
    await before.commit(LaneWrite(term, cursor_after=Cursor(0, 0)))
    assert not (await before.load(ALICE, queue_limit=1)).is_from_copy
    await lab.pass_time(LEASE_S + SKEW_S + 1)
    await lab.begin_history(by_copy=by_copy)
    after = await lab.node("after")
    later, _ = sorted(await after.acquire([ALICE, BOB]), key=lambda term: term.signer)
    assert history_of(later.token) > history_of(term.token)
    found = [await after.load(signer, queue_limit=1) for signer in (ALICE, BOB)]
    assert [state.is_from_copy for state in found] == [by_copy, by_copy]
    assert found[0].cursor_token == term.token
    await after.commit(LaneWrite(later, cursor_before=Cursor(0, 0), cursor_after=Cursor(1, 0)))
    assert not (await after.load(ALICE, queue_limit=1)).is_from_copy  # the cursor moved in the copy itself


# ---- signers with work


async def test_signers_with_live_transactions_or_open_commands_have_work_while_their_lease_is_free(
    lab: LedgerLab,
) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    assert await one.signers_with_work([31_337, 1], limit=10) == []
    await one.accept([new(), new(signer=ON_OTHER_CHAIN)])
    await one.add_command(BOB, "pause", tx_id=None, author="eve", reason=None, detail={})
    assert sorted(await one.signers_with_work([31_337, 1], limit=10)) == [ON_OTHER_CHAIN, ALICE, BOB]
    assert await one.signers_with_work([1], limit=10) == [ON_OTHER_CHAIN]
    assert len(await one.signers_with_work([31_337, 1], limit=2)) == 2
    first, *others = await one.signers_with_work([31_337, 1], limit=10)
    assert await one.signers_with_work([31_337, 1], limit=10, after=first) == others
    assert await one.signers_with_work([31_337, 1], limit=10, after=others[-1]) == []
    await two.acquire([ALICE])
    assert await one.signers_with_work([31_337], limit=10) == [BOB]
    await lab.pass_time(LEASE_S + SKEW_S + 1)
    assert sorted(await one.signers_with_work([31_337], limit=10)) == [ALICE, BOB]


# ---- the fenced write


NO_CURSOR = None


# ---- a write is atomic and names the fencing token


async def test_an_allocation_is_written_atomically(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, queue = await held(ledger, "x", "y")
    before = await lab.events(None)
    write = LaneWrite(
        term,
        (take(queue[0], 7), take(queue[1], 8)),
        cursor_before=NO_CURSOR,
        cursor_after=Cursor(9, 7),
        entries=(JournalEntry("BeginSequence", {"start": 7}),),
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
    command_id = await two.add_command(ALICE, "pause", tx_id=None, author="eve", reason=None, detail={})
    write = LaneWrite(
        term,
        (take(tx, 0),),
        cursor_after=Cursor(1, 0),
        entries=(JournalEntry("Protect"),),
        done_commands=(DoneCommand(command_id, "late"),),
    )
    assert await one.commit(write) == FENCED
    assert (await stored(one, tx)).state is State.QUEUED
    assert (await two.load(ALICE, queue_limit=1)).cursor is None
    assert await lab.outcome(command_id) is None
    assert await lab.events(None) == []
    assert await lab.events(tx.tx_id) == ["Receive"]
    assert await two.commit(write.changed(term=newer)) == APPLIED


async def test_an_expired_term_still_writes_until_another_node_takes_over(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await held(ledger, "x")
    await lab.pass_time(LEASE_S * 5)
    assert await ledger.commit(LaneWrite(term, (take(tx, 0),), cursor_after=Cursor(1, 0))) == APPLIED


async def test_one_changed_row_rejects_the_whole_write(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (x, y) = await held(ledger, "x", "y")
    await apply(ledger, term, y, partial(transaction_state.suspend, by="eve"))
    write = LaneWrite(
        term, (take(x, 0), take(y, 1)), cursor_after=Cursor(2, 0), entries=(JournalEntry("Begin"),)
    )
    assert await ledger.commit(write) == MOVED
    assert (await stored(ledger, x)).state is State.QUEUED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor is None
    assert await lab.events(None) == []


async def test_a_missing_row_rejects_the_write(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await held(ledger, "x")
    ghost = tx.changed(tx_id=new().tx_id)
    assert await ledger.commit(LaneWrite(term, (take(ghost, 0),))) == MOVED


async def test_a_transition_outside_the_state_table_is_rejected(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await held(ledger, "x")
    jump = take(tx, 0).after.changed(state=State.SUBMITTED)
    assert await ledger.commit(LaneWrite(term, (TxChange(tx, jump, ()),))) == MOVED
    ended = await apply(ledger, term, tx, partial(transaction_state.cancel_unsent, reason="no"))
    again = TxChange(ended, ended.changed(state=State.QUEUED), ())
    assert await ledger.commit(LaneWrite(term, (again,))) == MOVED
    assert (await stored(ledger, tx)).state is State.CANCELLED


@pytest.mark.parametrize(
    "expected", [None, Cursor(1, 0), Cursor(3, 0), Cursor(2, 0, CursorState.PROTECT, "why")]
)
async def test_the_cursor_moves_only_from_its_expected_value(lab: LedgerLab, expected: Cursor | None) -> None:
    ledger = await lab.node("a")
    term, _ = await allocated(ledger, "x", "y")
    move = LaneWrite(term, cursor_before=expected, cursor_after=Cursor(9, 0))
    assert await ledger.commit(move) == MOVED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == Cursor(2, 0)
    assert await ledger.commit(move.changed(cursor_before=Cursor(2, 0))) == APPLIED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == Cursor(9, 0)


async def test_a_first_cursor_is_rejected_if_one_exists_or_was_expected(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    (term,) = await ledger.acquire([ALICE])
    assert (
        await ledger.commit(LaneWrite(term, cursor_before=Cursor(0, 0), cursor_after=Cursor(1, 0))) == MOVED
    )
    assert await ledger.commit(LaneWrite(term, cursor_after=Cursor(1, 0))) == APPLIED
    assert await ledger.commit(LaneWrite(term, cursor_after=Cursor(1, 0))) == MOVED


@pytest.mark.parametrize("is_doubted", [True, False])
async def test_the_state_reason_and_doubt_of_the_cursor_are_stored(
    lab: LedgerLab, *, is_doubted: bool
) -> None:
    ledger = await lab.node("a")
    (term,) = await ledger.acquire([ALICE])
    first = Cursor(4, 2, is_doubted=not is_doubted)
    protected = Cursor(
        4, 2, CursorState.PROTECT, "a foreign transaction", is_doubted, "maintenance, 'soon' {over}"
    )
    assert await ledger.commit(LaneWrite(term, cursor_after=first)) == APPLIED
    assert await ledger.commit(LaneWrite(term, cursor_before=first, cursor_after=protected)) == APPLIED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == protected


async def test_a_repeated_nonce_applies_nothing(lab: LedgerLab) -> None:
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


async def test_a_repeated_hash_applies_nothing(lab: LedgerLab) -> None:
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


async def test_lanes_in_one_commit_do_not_affect_each_other(lab: LedgerLab) -> None:
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


# ---- fillers: rows that start with a nonce


def filler(nonce: int, name: str | None = None, *, signer: Signer = ALICE) -> TxChange:
    draft = ManagedTx(uuid4(), signer, seq=0, kind=Kind.FILLER, intent=Intent(Call(to=signer.address)))
    bytes_ = attempt(name or f"{draft.tx_id}", purpose=Purpose.FILLER)
    return change(draft, partial(transaction_state.assign_nonce, nonce=nonce, attempt=bytes_))


async def test_fillers_are_stored_with_nonce_and_bytes(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await held(ledger, "x")
    await ledger.commit(LaneWrite(term, (take(tx, 2),), cursor_after=Cursor(3, 2)))
    command_id = await ledger.add_command(
        ALICE, "unprotect", tx_id=None, author="eve", reason=None, detail={}
    )
    made = (filler(0), filler(1))
    write = LaneWrite(
        term,
        cursor_before=Cursor(3, 2),
        cursor_after=Cursor(3, 0),
        entries=(JournalEntry("Unprotect"),),
        done_commands=(DoneCommand(command_id, "filled"),),
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
    assert await lab.outcome(command_id) == "filled"
    sent = await apply(
        ledger,
        term,
        state.in_flight[0],
        partial(
            transaction_state.record_send,
            attempt_number=1,
            result=ACCEPTED,
            now_s=lab.clock.now_s(),
            due_s=None,
        ),
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
async def test_a_filler_for_a_taken_nonce_applies_nothing(lab: LedgerLab, nonces: tuple[int, int]) -> None:
    ledger = await lab.node("a")
    term, _ = await allocated(ledger, "x")
    made = tuple(filler(nonce) for nonce in nonces)
    write = LaneWrite(term, cursor_before=Cursor(1, 0), cursor_after=Cursor(6, 0), fillers=made)
    assert await ledger.commit(write) == MOVED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == Cursor(1, 0)
    assert [await ledger.get(new_one.after.tx_id) for new_one in made] == [None, None]


async def test_a_filler_with_a_known_id_or_known_bytes_is_rejected(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    again = filler(1)
    assert await ledger.commit(LaneWrite(term, fillers=(again,))) == APPLIED
    known = TxChange(again.before, again.after.changed(nonce=2), again.entries)
    assert await ledger.commit(LaneWrite(term, fillers=(known,))) == MOVED
    assert await ledger.commit(LaneWrite(term, fillers=(filler(3, f"{tx.tx_id}"),))) == MOVED


async def test_a_changed_cursor_rejects_fillers(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, _ = await allocated(ledger, "x")
    late = filler(1)
    write = LaneWrite(term, cursor_before=Cursor(7, 0), cursor_after=Cursor(7, 0), fillers=(late,))
    assert await ledger.commit(write) == MOVED
    assert await ledger.get(late.after.tx_id) is None


# ---- reads


async def test_attempts_and_endpoint_answers_are_read_back(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    said = SendResult(SendCategory.POOL_FULL, "m" * 5_000)
    now_s = lab.clock.now_s()
    tx = await apply(
        ledger,
        term,
        tx,
        partial(
            transaction_state.record_send, attempt_number=1, result=said, now_s=now_s - 3, due_s=now_s + 30
        ),
    )
    assert (tx.latest.sent_count, tx.latest.last_result) == (1, SendCategory.POOL_FULL)
    assert tx.latest.last_message == "m" * 2_000
    tx = await apply(
        ledger,
        term,
        tx,
        partial(transaction_state.give_up, ending=State.FAILED, error="e" * 3_000),
        partial(
            transaction_state.add_attempt,
            attempt=attempt("fill", number=2, purpose=Purpose.FILLER),
            event="Fill",
        ),
    )
    tx = await apply(
        ledger,
        term,
        tx,
        partial(transaction_state.record_send, attempt_number=2, result=ACCEPTED, now_s=now_s, due_s=None),
    )
    assert [a.sent_count for a in tx.attempts] == [1, 1]
    assert [a.purpose for a in tx.attempts] == [Purpose.INTENT, Purpose.FILLER]
    assert tx.attempts[1].last_result is SendCategory.ACCEPTED
    assert (tx.state, tx.sub_state, tx.ending) == (State.SUBMITTED, SubState.REFUSED, State.FAILED)
    assert tx.error == "e" * 2_000
    assert (tx.submit_count, tx.resubmit_due_s) == (2, None)
    assert tx.hash == tx_hash("fill")
    assert await lab.events(tx.tx_id) == [
        "Receive",
        "AssignNonce",
        "SendResult",
        "GiveUp",
        "Fill",
        "SendResult",
    ]


async def test_stored_times_are_read_back_and_age_with_the_clock(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    now_s = lab.clock.now_s()
    tx = await apply(
        ledger,
        term,
        tx,
        partial(
            transaction_state.record_send,
            attempt_number=1,
            result=ACCEPTED,
            now_s=now_s - 4,
            due_s=now_s + 60,
        ),
    )
    await lab.pass_time(25)
    tx = await stored(ledger, tx)
    assert tx.resubmit_due_s is not None
    assert tx.last_submit_s is not None
    assert abs(tx.resubmit_due_s - (now_s + 60)) < 5
    assert abs(tx.last_submit_s - (now_s - 4)) < 5
    tx = await apply(
        ledger, term, tx, partial(transaction_state.add_attempt, attempt=attempt("b", number=2), event="B")
    )
    assert tx.resubmit_due_s is None


async def test_receipts_and_confirmations_are_set_and_cleared(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    receipt = receipt_of(tx, block(5))
    tx = await apply(ledger, term, tx, partial(transaction_state.record_receipt, receipt=receipt))
    assert (tx.state, tx.mined, tx.confirmations) == (State.TRACKING, receipt, ())
    on_top = Confirmations(BlockStatus.CANONICAL, (block(6), block(7)), new_fork=False, is_final=False)
    tx = await apply(ledger, term, tx, partial(transaction_state.record_confirmations, confirmations=on_top))
    assert (tx.mined, tx.confirmations) == (receipt, on_top.blocks)
    tx = await apply(ledger, term, tx, partial(transaction_state.orphan, due_s=lab.clock.now_s()))
    assert (tx.state, tx.mined, tx.confirmations) == (State.SUBMITTED, None, ())
    again = receipt_of(tx, block(6, "b"))
    final = Confirmations(BlockStatus.CANONICAL, (block(7, "b"),), new_fork=False, is_final=True)
    tx = await apply(
        ledger,
        term,
        tx,
        partial(transaction_state.record_receipt, receipt=again),
        partial(transaction_state.finish, confirmations=final, revert_reason="no"),
    )
    assert (tx.state, tx.error, tx.mined) == (State.FAILED, "reverted: no", again)
    assert tx.confirmations == final.blocks


@pytest.mark.parametrize("bloom", ["0x" + "0" * 512, "0x" + "0" * 511 + "8"])
async def test_a_receipt_is_read_back_as_the_endpoint_returned_it(lab: LedgerLab, bloom: str) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "one")
    given = receipt_of(tx, block(5))
    receipt = given.changed(raw={**given.raw, "logsBloom": bloom})
    tx = await apply(ledger, term, tx, partial(transaction_state.record_receipt, receipt=receipt))
    assert tx.mined == receipt


async def test_finished_transactions_are_found_by_nonce_and_by_block(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, txs = await allocated(ledger, "x", "y", "z")
    final = Confirmations(BlockStatus.CANONICAL, (), new_fork=False, is_final=True)
    for tx in txs[:2]:
        await apply(
            ledger,
            term,
            tx,
            partial(transaction_state.record_receipt, receipt=receipt_of(tx, block(10 + tx.held_nonce()))),
            partial(transaction_state.finish, confirmations=final, revert_reason=None),
        )
    ended = await ledger.load_finished(ALICE, from_nonce=0, limit=10)
    assert [tx.nonce for tx in ended] == [0, 1]
    assert ended[0].attempts == txs[0].attempts
    assert [tx.nonce for tx in await ledger.load_finished(ALICE, from_nonce=1, limit=10)] == [1]
    assert [tx.nonce for tx in await ledger.load_finished(ALICE, from_nonce=0, limit=1)] == [0]
    assert await ledger.load_finished(BOB, from_nonce=0, limit=1) == []
    assert await ledger.signers_finished_since(31_337, 11, limit=10) == [ALICE]
    assert await ledger.signers_finished_since(31_337, 11, limit=10, after=ALICE) == []
    assert await ledger.signers_finished_since(31_337, 12, limit=10) == []
    assert await ledger.signers_finished_since(1, 0, limit=10) == []
    assert await ledger.newest_ended_blocks(31_337, limit=10) == [block(11), block(10)]
    assert await ledger.newest_ended_blocks(31_337, limit=1) == [block(11)]
    assert await ledger.newest_ended_blocks(31_337, limit=10, below=11) == [block(10)]
    assert await ledger.newest_ended_blocks(31_337, limit=10, below=10) == []
    assert await ledger.newest_ended_blocks(1, limit=10) == []
    state = await ledger.load(ALICE, queue_limit=10)
    assert [tx.nonce for tx in state.in_flight] == [2]


async def test_a_request_lost_before_it_had_bytes_is_among_the_finished_ones(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (x, y, z) = await held(ledger, "x", "y", "z")
    bare = change(x, partial(transaction_state.assign_nonce, nonce=0, attempt=None))
    write = LaneWrite(term, (bare, take(y, 1), take(z, 2)), cursor_after=Cursor(3, 0))
    assert await ledger.commit(write) == APPLIED
    for tx in (x, y):
        superseded = partial(transaction_state.supersede, error="a foreign transaction has it")
        lost = partial(transaction_state.fail_superseded, seen_at=block(5))
        await apply(ledger, term, await stored(ledger, tx), superseded, lost)
    ended = await ledger.load_finished(ALICE, from_nonce=0, limit=10)
    assert [(tx.tx_id, tx.nonce, len(tx.attempts)) for tx in ended] == [(x.tx_id, 0, 0), (y.tx_id, 1, 1)]
    assert [(tx.mined, tx.lost_at) for tx in ended] == [(None, block(5))] * 2
    assert [tx.nonce for tx in await ledger.load_finished(ALICE, from_nonce=1, limit=10)] == [1]


async def test_a_lost_transaction_is_found_by_the_block_that_showed_the_loss(lab: LedgerLab) -> None:
    """A fork that removes that block may have undone the loss, whether or not the signer has mined transactions."""
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    superseded = partial(transaction_state.supersede, error="a foreign transaction has it")
    lost = partial(transaction_state.fail_superseded, seen_at=block(5))
    tx = await apply(ledger, term, tx, superseded, lost)
    assert await ledger.newest_ended_blocks(31_337, limit=10) == [block(5)]
    assert await ledger.signers_finished_since(31_337, 5, limit=10) == [ALICE]
    assert await ledger.signers_finished_since(31_337, 6, limit=10) == []
    tx = await apply(ledger, term, tx, partial(transaction_state.reopen))
    assert (await stored(ledger, tx)).lost_at is None
    assert await ledger.newest_ended_blocks(31_337, limit=10) == []


async def test_a_finished_transaction_is_live_again_after_a_deep_reorg(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (tx,) = await allocated(ledger, "x")
    final = Confirmations(BlockStatus.CANONICAL, (), new_fork=False, is_final=True)
    tx = await apply(
        ledger,
        term,
        tx,
        partial(transaction_state.record_receipt, receipt=receipt_of(tx, block(3))),
        partial(transaction_state.finish, confirmations=final, revert_reason=None),
    )
    await apply(ledger, term, tx, partial(transaction_state.orphan, due_s=lab.clock.now_s()))
    assert await ledger.load_finished(ALICE, from_nonce=0, limit=9) == []
    (back,) = (await ledger.load(ALICE, queue_limit=9)).in_flight
    assert (back.state, back.mined) == (State.SUBMITTED, None)


async def test_suspended_transactions_leave_the_queue_and_return(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (x, y) = await held(ledger, "x", "y")
    x = await apply(ledger, term, x, partial(transaction_state.suspend, by="eve"))
    assert [tx.request_id for tx in await ledger.load_queue(ALICE, limit=9)] == ["y"]
    await apply(ledger, term, x, partial(transaction_state.resume, by="eve"))
    assert [tx.request_id for tx in await ledger.load_queue(ALICE, limit=9)] == ["x", "y"]
    assert y.seq > x.seq


# ---- rows that can't be read


async def test_an_unreadable_row_is_reported_and_delays_no_other(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (sent, spoiled) = await allocated(ledger, "x", "y")
    queued = new("q")
    last = new("last")
    await ledger.accept([queued, last, new(signer=BOB)])
    await lab.spoil(spoiled.tx_id)
    await lab.spoil(queued.tx_id)
    state = await ledger.load(ALICE, queue_limit=10)
    assert [tx.tx_id for tx in state.in_flight] == [sent.tx_id]
    assert [tx.tx_id for tx in state.queue] == [last.tx_id]
    assert {row.tx.tx_id: row.tx.nonce for row in state.unreadable} == {
        spoiled.tx_id: spoiled.nonce,
        queued.tx_id: None,
    }
    assert str(queued.tx_id) in str(state.unreadable[-1])
    assert len((await ledger.load(BOB, queue_limit=10)).queue) == 1
    for read in (ledger.load_queue(ALICE, limit=10), ledger.get(spoiled.tx_id)):
        with pytest.raises(UnreadableRow):
            await read
    row = next(row for row in state.unreadable if row.tx.tx_id == queued.tx_id)
    dropped = transaction_state.cancel_unsent(row.tx, reason="poisoned")
    assert await ledger.commit(LaneWrite(term, (TxChange(row.tx, dropped.tx, dropped.entries),))) == APPLIED
    assert [tx.tx_id for tx in await ledger.load_queue(ALICE, limit=10)] == [last.tx_id]


async def test_the_cursor_can_be_read_without_the_rows(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    assert (await ledger.load_cursor(ALICE)).cursor is None
    term, (tx,) = await allocated(ledger, "x")
    await lab.spoil(tx.tx_id)
    state = await ledger.load_cursor(ALICE)
    assert state.cursor == (await ledger.load(ALICE, queue_limit=1)).cursor
    assert state.cursor_token == term.token
    assert (state.in_flight, state.queue, state.may_be_forgotten) == ((), (), False)


async def test_unsent_requests_are_read_by_arrival_including_suspended_ones(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, (x, y, z) = await held(ledger, "x", "y", "z")
    await apply(ledger, term, y, partial(transaction_state.suspend, by="eve"))
    assert (await ledger.commit(LaneWrite(term, (take(x, 0),), cursor_after=Cursor(1, 0)))).applied
    unsent = await ledger.load_unsent(ALICE, after_seq=0, limit=9)
    assert [(tx.request_id, tx.state) for tx in unsent] == [("y", State.SUSPENDED), ("z", State.QUEUED)]
    assert [tx.tx_id for tx in await ledger.load_unsent(ALICE, after_seq=0, limit=1)] == [y.tx_id]
    assert [tx.tx_id for tx in await ledger.load_unsent(ALICE, after_seq=y.seq, limit=9)] == [z.tx_id]
    assert await ledger.load_unsent(BOB, after_seq=0, limit=9) == []


# ---- any text is stored unchanged, although columns travel as joined, quoted array literals


NASTY = [
    "",
    " ",
    "NULL",
    "null",
    "{}",
    '{"a",NULL}',
    'a "quoted" word',
    "back\\slash",
    "\\x00ff",
    "a,b;c'd''e",
    "line\nline\r\ttab",
    "unit\x1fseparator, \x1e, \x7f and \x01",
    "ключ 鍵 🔑 é",
    "$1 %s {0} -- /* */",
]


@pytest.mark.parametrize("text", NASTY)
async def test_texts_are_read_back_unchanged(lab: LedgerLab, text: str) -> None:
    ledger = await lab.node("a")
    # Between two plain rows, so that a text split in two would shift its neighbours' values.
    term, queue = await held(ledger, "x", "y", "z")
    protect = Cursor(3, 0, CursorState.PROTECT, text)
    changes = tuple(take(tx, nonce) for nonce, tx in enumerate(queue))
    assert await ledger.commit(LaneWrite(term, changes, cursor_after=protect)) == APPLIED
    assert (await ledger.load(ALICE, queue_limit=1)).cursor == protect
    at = block(9)
    ends = []
    for tx, said in zip((c.after for c in changes), ("plain", text, "plain"), strict=True):
        raw = {"status": "0x1", "gasUsed": "0x5208", "logs": [], said: {"deep": [said, None]}}
        mined = Receipt(tx.latest.signed.hash, at, succeeded=True, gas_used=21_000, raw=raw)
        sent = ACCEPTED.changed(message=said)
        ends.append(
            change(
                tx.changed(version=2),
                partial(
                    transaction_state.record_send,
                    attempt_number=1,
                    result=sent,
                    now_s=lab.clock.now_s(),
                    due_s=None,
                ),
                partial(transaction_state.mark_stuck, reason=said),
                partial(transaction_state.record_receipt, receipt=mined),
            )
        )
    assert await ledger.commit(LaneWrite(term, tuple(ends))) == APPLIED
    for end in ends:
        found = await stored(ledger, end.after)
        assert found.mined == end.after.mined
        assert (found.error or "") == (end.after.error or "")
        assert found.attempts == end.after.attempts
        assert found.hash == end.after.hash


async def test_a_row_without_a_receipt_between_two_with_one_is_stored(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    term, queue = await held(ledger, "x", "y", "z")
    changes = tuple(take(tx, nonce) for nonce, tx in enumerate(queue))
    assert await ledger.commit(LaneWrite(term, changes, cursor_after=Cursor(3, 0))) == APPLIED
    x, y, z = (c.after.changed(version=2) for c in changes)
    receipts = [
        Receipt(tx.latest.signed.hash, block(4), True, 21_000, {"status": "0x1", "gasUsed": "0x5208"})
        for tx in (x, z)
    ]
    first = change(x, partial(transaction_state.record_receipt, receipt=receipts[0]))
    other = change(y, partial(transaction_state.suspend, by="eve"))
    last = change(z, partial(transaction_state.record_receipt, receipt=receipts[1]))
    assert await ledger.commit(LaneWrite(term, (first, other, last))) == APPLIED
    assert [(await stored(ledger, tx)).mined for tx in (x, y, z)] == [receipts[0], None, receipts[1]]
