"""The checker names each kind of violation, and has nothing to say about a clean history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencepost.lab.checker import INVARIANTS, check
from fencepost.lab.history import (
    Acknowledged,
    AttemptRow,
    ChainBlock,
    ChainTx,
    CursorRow,
    FencedNote,
    History,
    Line,
    Sent,
    Snapshot,
    TermRow,
    TxRow,
    effect_of,
)

ALICE = "0x" + "a1" * 20
VICTIM = "0x" + "b2" * 20
TO = "0x" + "cc" * 20
FIRST, SECOND = effect_of(to=TO, value_wei=1, data=""), effect_of(to=TO, value_wei=2, data="")
DEPTH = 2


def lines_of(tx_id: str, nonce: int, *, start_id: int, xid: int, token: int, at_s: float) -> list[Line]:
    """From the request to its end, as a lane writes it."""

    def line(offset: int, event: str, state: str, **detail: Any) -> Line:
        fenced = None if event == "Receive" else token
        return Line(
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
    """Two requests of one signer, a take-over between them, both mined and confirmed."""
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


def more_lines(*lines: Line) -> Change:
    return lambda h: replace(h, lines=(*h.lines, *lines))


def blocks(*added: ChainBlock) -> Change:
    return lambda h: replace(h, blocks=(*h.blocks, *added))


def cursor(**changes: Any) -> Change:
    return lambda h: replace(h, cursors=(replace(h.cursors[0], **changes),))


PROTECTED = Line(11, 60, ALICE, "Protect", token=2, committed_s=40.0)

VIOLATIONS: list[tuple[int, str, Change]] = [
    (1, "t1 and to t0", tx_0(nonce=1)),
    (1, "nonce 5 and nonce 0", line_at(1, detail={"nonce": 5, "hash": "h0"})),
    (1, "request r1 has 2", tx_0(request_id="r1")),
    (2, "nonce 2 belongs to nobody", cursor(next_nonce=3)),
    (2, "nonce 1 lies outside", cursor(next_nonce=1)),
    (
        2,
        "nonce 2 belongs to nobody",
        lambda h: more_lines(Line(11, 60, ALICE, "AdoptChainNonce", detail={"from": 2, "to": 3}, token=2))(
            cursor(next_nonce=3)(h)
        ),
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
    (9, "no fork was told", line_at(2, event="ReceiveReceipt", detail={"blockHash": "other"})),
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
    (12, "a stranger used its key", lambda h: replace(h, victims=frozenset({VICTIM}))),
    (
        13,
        "token 1 wrote after token 2",
        more_lines(Line(11, 29, ALICE, "Stale", "t0", token=1, committed_s=20.5)),
    ),
    (13, "wrote after it was fenced", lambda h: replace(h, fenced=(FencedNote(1.05, ALICE, 1),))),
    (14, "did not become quiet", lambda h: replace(h, quiet_within_s=None)),
    (14, "still SUBMITTED", tx_0(state="SUBMITTED")),
    (14, "it is PROTECT, though", cursor(state="PROTECT")),
]


def test_a_clean_history_has_no_violation() -> None:
    assert check(clean()) == []


def test_there_is_a_violation_of_every_invariant_here() -> None:
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
        Line(4, 13, ALICE, "ReceiveReceipt", "t0", "TRACKING", {"blockHash": "old"}, 1, 1.3),
        Line(5, 14, ALICE, "Fork", "t0", "SUBMITTED", {"newFork": True, "was": "TRACKING"}, 1, 1.4),
        *(replace(line, id=line.id + 2) for line in history.lines[3:]),
    ]
    assert check(replace(history, lines=tuple(forked))) == []


def as_filler(history: History) -> History:
    """The first transaction, made to fill a hole: nobody asked for it, and it began with a nonce."""
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


def test_a_filler_of_a_hole_begins_with_a_nonce_and_is_mined_once() -> None:
    history = as_filler(clean())
    assert check(history) == []
    unmined = replace(history, blocks=(history.blocks[0], ChainBlock(1, "b1"), *history.blocks[2:]))
    assert 8 in {violation.invariant for violation in check(unmined)}


def test_a_victim_may_wait_for_ever_and_its_stranger_is_known() -> None:
    history = clean()
    stranger = on_chain(0, FIRST, signer=VICTIM, tx_hash="s0")
    waiting = TxRow("v0", VICTIM, "rv", "SUBMITTED", SECOND, 0, "hv", token=3, xid=50)
    told = [
        Line(11, 49, VICTIM, "Receive", "v0", "QUEUED"),
        Line(12, 50, VICTIM, "AssignNonce", "v0", "ALLOCATED", {"nonce": 0, "hash": "hv"}, 3, 35.0),
        Line(13, 50, VICTIM, "SendResult", "v0", "SUBMITTED", {"attempt": 1}, 3, 36.0),
        Line(14, 51, VICTIM, "Protect", token=3, committed_s=40.0),
    ]
    attacked = replace(
        history,
        terms=(*history.terms, TermRow(VICTIM, 3, "n1", 34.0, Snapshot(48, 48))),
        lines=(*history.lines, *told),
        txs=(*history.txs, waiting),
        attempts=(*history.attempts, AttemptRow("v0", 1, VICTIM, 0, "intent", SECOND, 1, 1, "hv", 3, 50)),
        cursors=(*history.cursors, CursorRow(VICTIM, 0, 1, "PROTECT", 3, 51)),
        blocks=(*history.blocks, ChainBlock(5, "b5", (stranger,))),
        victims=frozenset({VICTIM}),
        strangers=frozenset({"s0"}),
    )
    assert check(attacked) == []
