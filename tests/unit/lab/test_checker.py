"""The checker finds each kind of violation, and none in a clean history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lab.checker.history import (
    Acknowledged,
    AttemptRow,
    ChainBlock,
    ChainTx,
    CursorRow,
    FencedNote,
    History,
    JournalLine,
    Sent,
    Snapshot,
    TermRow,
    TxRow,
    effect_of,
)
from lab.checker.invariants import INVARIANTS, check

ALICE = "0x" + "a1" * 20
VICTIM = "0x" + "b2" * 20
TO = "0x" + "cc" * 20
FIRST, SECOND = effect_of(to=TO, value_wei=1, data=""), effect_of(to=TO, value_wei=2, data="")
DEPTH = 2


def lines_of(
    tx_id: str, nonce: int, *, start_id: int, xid: int, token: int, at_s: float
) -> list[JournalLine]:
    """Return the journal of a request from its arrival to its end."""

    def line(offset: int, event: str, state: str, **detail: Any) -> JournalLine:
        fenced = None if event == "Receive" else token
        return JournalLine(
            start_id + offset, xid + offset, ALICE, event, tx_id, state, detail, fenced, at_s + offset / 10
        )

    return [
        line(0, "Receive", "QUEUED"),
        line(1, "AssignNonce", "ALLOCATED", nonce=nonce, hash=f"h{nonce}"),
        line(2, "SendResult", "SUBMITTED", attempt=1, result="accepted"),
        line(3, "ReceiveReceipt", "TRACKING", blockHash=f"b{nonce + 1}"),
        line(4, "Finish", "CONFIRMED", count=DEPTH, newFork=False),
    ]


def attempt(tx_id: str, nonce: int, effect: str, *, token: int, xid: int) -> AttemptRow:
    return AttemptRow(tx_id, 1, ALICE, nonce, "intent", effect, 100, 10, f"h{nonce}", token, xid)


def row(tx_id: str, nonce: int, effect: str, *, token: int, xid: int) -> TxRow:
    block = nonce + 1
    return TxRow(
        tx_id, ALICE, f"r{nonce}", "CONFIRMED", effect, nonce, f"h{nonce}", block, f"b{block}", token, xid
    )


def on_chain(nonce: int, effect: str, *, signer: str = ALICE, tx_hash: str = "") -> ChainTx:
    return ChainTx(tx_hash or f"h{nonce}", signer, nonce, effect)


def clean() -> History:
    """Return a history with two requests of one signer and a take-over between them, both confirmed."""
    return History(
        required_depth=DEPTH,
        terms=(
            TermRow(ALICE, 1, "n1", 0.0, Snapshot(5, 5)),
            TermRow(ALICE, 2, "n2", 20.0, Snapshot(30, 30)),
        ),
        lines=(
            *lines_of("t0", 0, start_id=1, xid=10, token=1, at_s=1.0),
            *lines_of("t1", 1, start_id=6, xid=40, token=2, at_s=30.0),
        ),
        txs=(row("t0", 0, FIRST, token=1, xid=14), row("t1", 1, SECOND, token=2, xid=44)),
        attempts=(attempt("t0", 0, FIRST, token=1, xid=12), attempt("t1", 1, SECOND, token=2, xid=42)),
        cursors=(CursorRow(ALICE, 0, 2, "ACTIVE", 2, 41),),
        blocks=(
            ChainBlock(0, "b0"),
            ChainBlock(1, "b1", (on_chain(0, FIRST),)),
            ChainBlock(2, "b2", (on_chain(1, SECOND),)),
            ChainBlock(3, "b3"),
            ChainBlock(4, "b4"),
        ),
        sent=(Sent(1.15, on_chain(0, FIRST)), Sent(30.15, on_chain(1, SECOND))),
        acknowledged=(
            Acknowledged(1.0, ALICE, "r0", "t0", FIRST),
            Acknowledged(30.0, ALICE, "r1", "t1", SECOND),
        ),
        fenced=(FencedNote(21.0, ALICE, 1),),
        quiet_within_s=1.0,
    )


Change = Callable[[History], History]


def tx_0(**changes: Any) -> Change:
    return lambda h: replace(h, txs=(replace(h.txs[0], **changes), *h.txs[1:]))


def line_at(position: int, **changes: Any) -> Change:
    def change(h: History) -> History:
        lines = list(h.lines)
        lines[position] = replace(lines[position], **changes)
        return replace(h, lines=tuple(lines))

    return change


def attempt_0(**changes: Any) -> Change:
    return lambda h: replace(h, attempts=(replace(h.attempts[0], **changes), *h.attempts[1:]))


def another_attempt(**changes: Any) -> Change:
    bumped = replace(clean().attempts[0], number=2, hash="h0b", fee_cap_wei=120, tip_wei=12)
    return lambda h: replace(h, attempts=(*h.attempts, replace(bumped, **changes)))


def more_lines(*lines: JournalLine) -> Change:
    return lambda h: replace(h, lines=(*h.lines, *lines))


def blocks(*added: ChainBlock) -> Change:
    return lambda h: replace(h, blocks=(*h.blocks, *added))


def cursor(**changes: Any) -> Change:
    return lambda h: replace(h, cursors=(replace(h.cursors[0], **changes),))


PROTECTED = JournalLine(11, 60, ALICE, "Protect", token=2, committed_s=40.0)

VIOLATIONS: list[tuple[int, str, Change]] = [
    (1, "t1 and to t0", tx_0(nonce=1)),
    (1, "nonce 5 and nonce 0", line_at(1, detail={"nonce": 5, "hash": "h0"})),
    (1, "request r1 has 2", tx_0(request_id="r1")),
    (2, "nonce 2 has no transaction", cursor(next_nonce=3)),
    (2, "nonce 1 lies outside", cursor(next_nonce=1)),
    (
        2,
        "nonce 2 has no transaction",
        lambda h: more_lines(
            JournalLine(11, 60, ALICE, "AdoptChainNonce", detail={"from": 2, "to": 3}, token=2)
        )(cursor(next_nonce=3)(h)),
    ),
    (3, "journal 3 SendResult was written by token 1 after token 2", line_at(2, xid=31)),
    (3, "transaction t0 was written by token 1 after token 2", tx_0(xid=30)),
    (
        4,
        "issued twice",
        lambda h: replace(h, terms=(h.terms[0], h.terms[1], replace(h.terms[1], began_s=25.0))),
    ),
    (4, "token 1 came after 2", lambda h: replace(h, terms=(replace(h.terms[0], began_s=50.0), h.terms[1]))),
    (4, "never issued", attempt_0(token=7)),
    (5, "which is gone", lambda h: replace(h, acknowledged=(Acknowledged(1.0, ALICE, "r9", "t9", FIRST),))),
    (
        5,
        "not what was acknowledged",
        lambda h: replace(h, acknowledged=(replace(h.acknowledged[0], effect="x"),)),
    ),
    (6, "never stored", lambda h: replace(h, pool=(on_chain(9, FIRST, tx_hash="h9"),))),
    (6, "before it was stored", line_at(1, committed_s=1.2)),
    (6, "no journal line", line_at(1, detail={"nonce": 0})),
    (7, "something else than was asked", another_attempt(effect=SECOND)),
    (7, "is not what is stored", lambda h: replace(h, pool=(on_chain(0, SECOND),))),
    (8, "t0 is mined 2 times", blocks(ChainBlock(5, "b5", (on_chain(0, FIRST),)))),
    (8, "mined 2 times", blocks(ChainBlock(5, "b5", (on_chain(2, FIRST, tx_hash="h9"),)))),
    (8, "no block has it", lambda h: replace(h, blocks=(h.blocks[0], ChainBlock(1, "b1"), *h.blocks[2:]))),
    (8, "nothing was wrong with it", lambda h: tx_0(state="FAILED")(replace(h, all_must_mine=True))),
    (9, "not canonical", tx_0(block_hash="gone")),
    (9, "at depth 1", lambda h: replace(h, blocks=h.blocks[:4])),
    (9, "the journal has no fork", line_at(2, event="ReceiveReceipt", detail={"blockHash": "other"})),
    (9, "with 1 blocks on top", line_at(4, detail={"count": 1})),
    (
        10,
        "nonce 0 is not consumed",
        lambda h: tx_0(state="FAILED")(replace(h, blocks=(h.blocks[0], ChainBlock(1, "b1"), *h.blocks[2:]))),
    ),
    (11, "from QUEUED to CONFIRMED", line_at(1, state="CONFIRMED")),
    (11, "began as ALLOCATED", line_at(0, state="ALLOCATED")),
    (11, "its journal ends with CONFIRMED", tx_0(state="TRACKING")),
    (11, "does not pay more", another_attempt(fee_cap_wei=100)),
    (11, "not numbered", another_attempt(number=3)),
    (11, "older attempt", line_at(3, event="SendResult", detail={"attempt": 0})),
    (
        12,
        "SendResult of t1 under PROTECT",
        lambda h: replace(h, lines=(*h.lines[:6], replace(PROTECTED, id=7, xid=40), *h.lines[6:])),
    ),
    (
        12,
        "was sent under PROTECT",
        lambda h: more_lines(PROTECTED)(replace(h, sent=(*h.sent, Sent(45.0, on_chain(1, SECOND))))),
    ),
    (12, "PROTECT was left", more_lines(PROTECTED)),
    (12, "its key was used outside", lambda h: replace(h, victims=frozenset({VICTIM}))),
    (
        13,
        "token 1 wrote after token 2",
        more_lines(JournalLine(11, 29, ALICE, "Stale", "t0", token=1, committed_s=20.5)),
    ),
    (13, "wrote after it was fenced", lambda h: replace(h, fenced=(FencedNote(1.05, ALICE, 1),))),
    (14, "did not become quiet", lambda h: replace(h, quiet_within_s=None)),
    (14, "still SUBMITTED", tx_0(state="SUBMITTED")),
    (14, "it is PROTECT, though", cursor(state="PROTECT")),
]


def test_a_clean_history_has_no_violation() -> None:
    assert check(clean()) == []


def test_these_cases_violate_every_invariant() -> None:
    assert {number for number, _, _ in VIOLATIONS} == set(INVARIANTS) == set(range(1, 15))


@pytest.mark.parametrize(
    ("invariant", "words", "change"), VIOLATIONS, ids=[f"{n}-{words}" for n, words, _ in VIOLATIONS]
)
def test_each_violation_is_named(invariant: int, words: str, change: Change) -> None:
    found = check(change(clean()))
    assert [v for v in found if v.invariant == invariant and words in v.what], [str(v) for v in found]


def test_a_bump_and_a_fork_are_no_violations() -> None:
    history = another_attempt(xid=13)(clean())
    forked = [
        *history.lines[:3],
        JournalLine(4, 13, ALICE, "ReceiveReceipt", "t0", "TRACKING", {"blockHash": "old"}, 1, 1.3),
        JournalLine(5, 14, ALICE, "Fork", "t0", "SUBMITTED", {"newFork": True, "was": "TRACKING"}, 1, 1.4),
        *(replace(line, id=line.id + 2) for line in history.lines[3:]),
    ]
    assert check(replace(history, lines=tuple(forked))) == []


def retyped(*, tx_type: int = 0, fee_cap_wei: int = 100, event: str = "Retype") -> History:
    """Change the first transaction: its type was rejected, and it was signed again."""
    history = another_attempt(xid=13, tx_type=tx_type, fee_cap_wei=fee_cap_wei, tip_wei=fee_cap_wei)(clean())
    again = JournalLine(4, 13, ALICE, event, "t0", "SUBMITTED", {"attempt": 2, "hash": "h0b"}, 1, 1.25)
    later = (replace(line, id=line.id + 1) for line in history.lines[3:])
    sent = (history.sent[0], Sent(1.3, on_chain(0, FIRST, tx_hash="h0b")), history.sent[1])
    return replace(history, lines=(*history.lines[:3], again, *later), sent=sent)


@pytest.mark.parametrize("fee_cap_wei", [100, 90])
def test_a_rejected_type_is_signed_again_as_type_0_for_the_same_price_or_less(fee_cap_wei: int) -> None:
    assert [str(violation) for violation in check(retyped(fee_cap_wei=fee_cap_wei))] == []


@pytest.mark.parametrize(
    "history",
    [
        retyped(event="Bump"),
        retyped(tx_type=2),
        replace(retyped(), attempts=tuple(replace(one, tx_type=0) for one in retyped().attempts)),
    ],
    ids=["a bump", "the same type", "type 0 again"],
)
def test_no_other_attempt_may_pay_the_same(history: History) -> None:
    assert [violation.invariant for violation in check(history)] == [11]


def as_filler(history: History) -> History:
    """Change the first transaction into a filler: it has no request, and began with a nonce."""
    own = effect_of(to=ALICE, value_wei=0, data="")
    assigned = replace(history.lines[1], detail={**history.lines[1].detail, "purpose": "filler"})
    mined = on_chain(0, own)
    return replace(
        history,
        lines=(assigned, *history.lines[2:]),
        txs=(replace(history.txs[0], request_id=None, effect=own), history.txs[1]),
        attempts=(replace(history.attempts[0], purpose="filler", effect=own), history.attempts[1]),
        blocks=(history.blocks[0], replace(history.blocks[1], txs=(mined,)), *history.blocks[2:]),
        sent=(Sent(1.15, mined), history.sent[1]),
        acknowledged=history.acknowledged[1:],
    )


def test_a_filler_of_a_gap_begins_with_a_nonce_and_is_mined_once() -> None:
    history = as_filler(clean())
    assert check(history) == []
    unmined = replace(history, blocks=(history.blocks[0], ChainBlock(1, "b1"), *history.blocks[2:]))
    assert 8 in {violation.invariant for violation in check(unmined)}


def test_a_request_whose_nonce_a_foreign_transaction_used_may_stay_open() -> None:
    history = clean()
    stranger = on_chain(0, FIRST, signer=VICTIM, tx_hash="s0")
    waiting = TxRow("v0", VICTIM, "rv", "SUBMITTED", SECOND, 0, "hv", token=3, xid=50)
    added = [
        JournalLine(11, 49, VICTIM, "Receive", "v0", "QUEUED"),
        JournalLine(12, 50, VICTIM, "AssignNonce", "v0", "ALLOCATED", {"nonce": 0, "hash": "hv"}, 3, 35.0),
        JournalLine(13, 50, VICTIM, "SendResult", "v0", "SUBMITTED", {"attempt": 1}, 3, 36.0),
        JournalLine(14, 51, VICTIM, "Protect", token=3, committed_s=40.0),
    ]
    attacked = replace(
        history,
        terms=(*history.terms, TermRow(VICTIM, 3, "n1", 34.0, Snapshot(48, 48))),
        lines=(*history.lines, *added),
        txs=(*history.txs, waiting),
        attempts=(*history.attempts, AttemptRow("v0", 1, VICTIM, 0, "intent", SECOND, 1, 1, "hv", 3, 50)),
        cursors=(*history.cursors, CursorRow(VICTIM, 0, 1, "PROTECT", 3, 51)),
        blocks=(*history.blocks, ChainBlock(5, "b5", (stranger,))),
        victims=frozenset({VICTIM}),
        foreign=frozenset({"s0"}),
    )
    assert check(attacked) == []
