"""What the `Ledger` port promises about requests, wishes and leases, over the fake and over PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import uuid4

import pytest

from fakes.ledger_lab import ALICE, BOB, ELSEWHERE, LEASE_S, SKEW_S, LedgerLab, new
from fencepost.application.ports import (
    MOST_BEHIND,
    YOUNG_HISTORY_S,
    AcceptOutcome,
    Cursor,
    LaneWrite,
    Ledger,
    NewRequest,
    TxChange,
    Written,
)
from fencepost.domain import managed
from fencepost.domain.ids import Signer
from fencepost.domain.states import CursorState, State

CREATED, KNOWN = AcceptOutcome.CREATED, AcceptOutcome.KNOWN


async def protect(ledger: Ledger, signer: Signer = ALICE) -> None:
    (term,) = await ledger.acquire([signer])
    cursor = Cursor(0, 0, CursorState.PROTECT, "a stranger")
    assert await ledger.commit(LaneWrite(term, cursor_after=cursor)) == Written(lease_ok=True, applied=True)
    await ledger.release([term])


async def outcomes(ledger: Ledger, *requests: NewRequest) -> list[AcceptOutcome]:
    return [answer.outcome for answer in await ledger.accept(requests)]


# ---- accepting


async def test_a_new_request_is_stored_as_it_was_asked(lab: LedgerLab) -> None:
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


async def test_the_same_request_is_known_and_another_payload_is_a_conflict(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    first = new("order-1")
    await ledger.accept([first])
    (again,) = await ledger.accept([new("order-1")])
    (other,) = await ledger.accept([new("order-1", value_wei=2)])
    assert (again.outcome, again.tx_id) == (KNOWN, first.tx_id)
    assert (other.outcome, other.tx_id) == (AcceptOutcome.CONFLICT, first.tx_id)
    assert await lab.events(first.tx_id) == ["Receive"]


async def test_one_by_itself_is_taken_like_any(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    request = new("order-1")
    first, again = await ledger.accept_one(request), await ledger.accept_one(new("order-1"))
    other = await ledger.accept_one(new("order-1", value_wei=2))
    assert [answer.outcome for answer in (first, again, other)] == [CREATED, KNOWN, AcceptOutcome.CONFLICT]
    assert {answer.tx_id for answer in (first, again, other)} == {request.tx_id}
    assert first.queued is not None


async def test_a_request_id_belongs_to_one_signer_on_one_chain(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    requests = [new("order-1", signer=signer) for signer in (ALICE, BOB, ELSEWHERE)]
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


async def test_a_hundred_at_once_from_two_nodes_make_one(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    answers = await asyncio.gather(*((one, two)[i % 2].accept([new("order-1")]) for i in range(100)))
    assert Counter(a.outcome for (a,) in answers) == {CREATED: 1, KNOWN: 99}
    assert len({a.tx_id for (a,) in answers}) == 1


async def test_batches_with_the_same_ids_in_opposite_order_both_end(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    names = [f"order-{i}" for i in range(200)]
    for turn in range(5):
        forth, back = await asyncio.gather(
            one.accept([new(f"{turn}-{name}") for name in names]),
            two.accept([new(f"{turn}-{name}") for name in reversed(names)]),
        )
        assert [a.tx_id for a in forth] == [a.tx_id for a in reversed(back)]
        assert Counter(a.outcome for a in [*forth, *back]) == {CREATED: 200, KNOWN: 200}


async def test_a_protected_signer_takes_nothing_new_but_knows_what_it_had(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    old = new("old")
    await ledger.accept([old])
    await protect(ledger)
    refused, known, other = await ledger.accept([new("new"), new("old"), new("new", signer=BOB)])
    assert (refused.outcome, refused.detail) == (AcceptOutcome.PROTECTED, "a stranger")
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


async def test_a_new_request_is_told_with_what_waited_before_it_unless_that_is_much(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    requests = [new("r0"), new("r1", valid_for_s=60), new("other", signer=BOB)]
    accepted = await one.accept(requests)
    assert [answer.behind for answer in accepted] == [()] * 3
    told = [answer.queued for answer in accepted]
    (term,) = await one.acquire([ALICE])
    loaded = [*await one.load_queue(ALICE, limit=9), *await one.load_queue(BOB, limit=9)]
    for queued, stored in zip(told, loaded, strict=True):
        assert queued is not None
        assert queued.changed(valid_until_s=None, received_s=None) == stored.changed(
            valid_until_s=None, received_s=None
        )
    assert told[1] is not None
    assert told[1].valid_until_s == pytest.approx(loaded[1].valid_until_s, abs=5)

    before = [loaded[0].seq, loaded[1].seq]
    for count in range(2, MOST_BEHIND + 1):
        (behind_few,) = await two.accept([new(f"r{count}")])
        assert behind_few.queued is not None
        assert sorted(behind_few.behind) == before
        before.append(behind_few.queued.seq)
    (behind_many,) = await two.accept([new(f"r{MOST_BEHIND + 1}")])
    assert (behind_many.outcome, behind_many.queued, behind_many.behind) == (CREATED, None, ())
    (known,) = await two.accept([new("r0")])
    assert (known.outcome, known.queued) == (KNOWN, None)

    queue = await one.load_queue(ALICE, limit=MOST_BEHIND + 9)
    steps = [managed.dropped(tx, "enough") for tx in queue]
    dropped = [TxChange(tx, step.tx, step.entries) for tx, step in zip(queue, steps, strict=True)]
    assert await one.commit(LaneWrite(term, tuple(dropped))) == Written(lease_ok=True, applied=True)
    (alone,) = await two.accept([new("alone")])
    assert alone.behind == ()
    assert alone.queued is not None
    assert alone.queued.seq > loaded[1].seq


async def test_what_is_not_there_is_none(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    assert await ledger.get(uuid4()) is None
    assert await ledger.find_by_request(ALICE, "nothing") is None


# ---- wishes


async def test_wishes_wait_in_order_until_they_are_answered(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    request = new()
    await ledger.accept([request])
    first = await ledger.ask(
        ALICE, "cancel", tx_id=request.tx_id, asked_by="eve", reason="why", detail={"a": 1}
    )
    second = await ledger.ask(ALICE, "pause", tx_id=None, asked_by="eve", reason=None, detail={})
    await ledger.ask(BOB, "pause", tx_id=None, asked_by="eve", reason=None, detail={})
    wishes = await ledger.load_commands(ALICE)
    assert [wish.id for wish in wishes] == [first, second]
    assert (wishes[0].command, wishes[0].tx_id, wishes[0].detail) == ("cancel", request.tx_id, {"a": 1})
    assert (wishes[0].asked_by, wishes[0].reason) == ("eve", "why")
    (term,) = await ledger.acquire([ALICE])
    await ledger.commit(LaneWrite(term, done_commands=((first, "done so"),)))
    assert [wish.id for wish in await ledger.load_commands(ALICE)] == [second]
    assert await lab.outcome(first) == "done so"


async def test_a_lane_answers_only_its_own_signers_wishes(lab: LedgerLab) -> None:
    ledger = await lab.node("a")
    wish = await ledger.ask(BOB, "pause", tx_id=None, asked_by="eve", reason=None, detail={})
    (term,) = await ledger.acquire([ALICE])
    await ledger.commit(LaneWrite(term, done_commands=((wish, "not mine"),)))
    assert [found.id for found in await ledger.load_commands(BOB)] == [wish]


# ---- leases


async def test_a_lease_has_one_holder_until_it_ends(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    (term,) = await one.acquire([ALICE])
    assert (term.signer, term.duration_s, term.renewed_at_s) == (ALICE, LEASE_S, lab.clock.now_s())
    assert await two.acquire([ALICE]) == []
    await lab.pass_time(LEASE_S + SKEW_S / 2)
    assert await two.acquire([ALICE]) == []  # over by its holder's clock, not by the allowance for skew
    await lab.pass_time(SKEW_S)
    (next_term,) = await two.acquire([ALICE])
    assert next_term.token > term.token
    assert await one.renew([term]) == []
    assert await one.acquire([ALICE]) == []


async def test_a_renewal_prolongs_it_and_keeps_the_token(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    terms = await one.acquire([ALICE, BOB])
    await lab.pass_time(LEASE_S - 1)
    renewed = await one.renew(terms)
    assert {(t.signer, t.token) for t in renewed} == {(t.signer, t.token) for t in terms}
    assert {t.renewed_at_s for t in renewed} == {lab.clock.now_s()}
    await lab.pass_time(LEASE_S - 1)
    assert await two.acquire([ALICE, BOB]) == []


async def test_an_expired_lease_that_nobody_took_can_be_renewed(lab: LedgerLab) -> None:
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


async def test_a_node_of_the_same_name_is_another_one(lab: LedgerLab) -> None:
    one, twin = await lab.node("a"), await lab.node("a")
    await one.acquire([ALICE])
    assert await twin.acquire([ALICE]) == []


async def test_a_released_lease_is_free_at_once(lab: LedgerLab) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    (term,) = await one.acquire([ALICE])
    await one.release([term])
    (taken,) = await two.acquire([ALICE])
    assert taken.token > term.token
    await one.release([term])  # late, and of an old term: nobody else's lease ends by it
    assert await one.acquire([ALICE]) == []


async def test_many_take_one_lease_at_once_and_one_gets_it(lab: LedgerLab) -> None:
    nodes = [await lab.node(f"n{i}") for i in range(4)]
    for _ in range(5):
        taken = await asyncio.gather(*(node.acquire([ALICE, BOB]) for node in nodes))
        terms = [term for terms in taken for term in terms]
        assert sorted(term.signer for term in terms) == [ALICE, BOB]
        await nodes[0].release(terms)


# ---- histories


async def test_a_signer_may_be_forgotten_while_the_history_is_young_and_it_has_no_cursor(
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
    await after.acquire([BOB])  # nobody begins a history twice
    await lab.pass_time(2)
    assert await may_be_forgotten(after, BOB) == [False]


# ---- who has work


async def test_signers_with_live_transactions_or_wishes_have_work_while_their_lease_is_free(
    lab: LedgerLab,
) -> None:
    one, two = await lab.node("a"), await lab.node("b")
    assert await one.signers_with_work([31_337, 1], limit=10) == []
    await one.accept([new(), new(signer=ELSEWHERE)])
    await one.ask(BOB, "pause", tx_id=None, asked_by="eve", reason=None, detail={})
    assert sorted(await one.signers_with_work([31_337, 1], limit=10)) == [ELSEWHERE, ALICE, BOB]
    assert await one.signers_with_work([1], limit=10) == [ELSEWHERE]
    assert len(await one.signers_with_work([31_337, 1], limit=2)) == 2
    first, *others = await one.signers_with_work([31_337, 1], limit=10)
    assert await one.signers_with_work([31_337, 1], limit=10, after=first) == others
    assert await one.signers_with_work([31_337, 1], limit=10, after=others[-1]) == []
    await two.acquire([ALICE])
    assert await one.signers_with_work([31_337], limit=10) == [BOB]
    await lab.pass_time(LEASE_S + SKEW_S + 1)
    assert sorted(await one.signers_with_work([31_337], limit=10)) == [ALICE, BOB]
