"""After a fail-over that lost commits every violation is named, and unavoidable loss is only counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.checker.history import (
    Acknowledged,
    AttemptRow,
    ChainBlock,
    ChainTx,
    CursorRow,
    History,
    JournalLine,
    Sent,
    Snapshot,
    TermRow,
    TxRow,
    effect_of,
)
from lab.checker.lost_commits import FailOver, check_lost_commits

ALICE, BOB = "0x" + "a1" * 20, "0x" + "b2" * 20
TO = "0x" + "cc" * 20
KEPT, WAITING, GONE = (effect_of(to=TO, value_wei=value, data="") for value in (1, 2, 3))
OLD, NEW = 5, (2 << 40) + 1
UNSYNCED_S, CRASHED_S, BACK_S = 10.0, 12.0, 13.0

FAIL_OVER = FailOver(
    unsynced_s=UNSYNCED_S,
    crashed_s=CRASHED_S,
    back_s=BACK_S,
    issued=(TermRow(ALICE, OLD, "n1", 0.0, Snapshot(5, 5)), TermRow(BOB, OLD, "n1", 0.0, Snapshot(5, 5))),
    late_s=1.0,
)
FORGOTTEN = ChainTx("forgotten", ALICE, 1, GONE)
PROTECT = JournalLine(30, 60, ALICE, "Protect", token=NEW, committed_s=18.0)
ALICES_TERM = TermRow(ALICE, NEW, "n2", 14.0, Snapshot(30, 30))


def clean() -> History:
    """Return a history: Alice's first request is confirmed, her second waits under PROTECT, her third was sent and lost."""

    def line(number: int, event: str, state: str, **detail: object) -> JournalLine:
        token = None if event == "Receive" else OLD
        return JournalLine(number, 10 + number, ALICE, event, "t0", state, detail, token, 1.0 + number / 10)

    return History(
        required_depth=2,
        terms=(FAIL_OVER.issued[0], ALICES_TERM),
        lines=(
            line(1, "Receive", "QUEUED"),
            line(2, "AssignNonce", "ALLOCATED", nonce=0, hash="h0"),
            line(3, "SendResult", "SUBMITTED", attempt=1),
            line(4, "ReceiveReceipt", "TRACKING", blockHash="b1"),
            line(5, "Finish", "CONFIRMED", count=2),
            JournalLine(6, 17, ALICE, "Receive", "t1", "QUEUED", committed_s=9.0),
            PROTECT,
        ),
        txs=(
            TxRow("t0", ALICE, "r0", "CONFIRMED", KEPT, 0, "h0", 1, "b1", OLD, 15),
            TxRow("t1", ALICE, "r1", "QUEUED", WAITING),
        ),
        attempts=(AttemptRow("t0", 1, ALICE, 0, "intent", KEPT, 100, 10, "h0", OLD, 12),),
        cursors=(CursorRow(ALICE, 0, 1, "PROTECT", NEW, 60),),
        blocks=(
            ChainBlock(0, "b0"),
            ChainBlock(1, "b1", (ChainTx("h0", ALICE, 0, KEPT),)),
            ChainBlock(2, "b2", (FORGOTTEN,)),
            ChainBlock(3, "b3"),
        ),
        sent=(Sent(1.25, ChainTx("h0", ALICE, 0, KEPT)), Sent(11.0, FORGOTTEN)),
        acknowledged=(
            Acknowledged(1.2, ALICE, "r0", "t0", KEPT),
            Acknowledged(9.0, ALICE, "r1", "t1", WAITING),
            Acknowledged(10.5, ALICE, "r2", "t2", GONE),
        ),
        all_must_mine=True,
        quiet_within_s=1.0,
    )


def test_lost_requests_are_counted_and_are_no_violation() -> None:
    found = check_lost_commits(clean(), FAIL_OVER)
    assert [str(violation) for violation in found.violations] == []
    assert (found.requests_lost, found.forgotten, found.protected) == (1, 1, 1)


def mined_too(history: History, tx: ChainTx) -> History:
    return replace(history, blocks=(*history.blocks, ChainBlock(4, "b4", (tx,))))


def unprotected(history: History) -> History:
    return replace(
        history,
        lines=tuple(line for line in history.lines if line is not PROTECT),
        cursors=(CursorRow(ALICE, 0, 1, "ACTIVE", NEW, 60),),
        txs=history.txs[:1],
        acknowledged=history.acknowledged[:1],
    )


def token_below(history: History) -> History:
    low = TermRow(ALICE, OLD - 1, "n2", 14.0, Snapshot(30, 30))
    return replace(history, terms=(*history.terms, low))


def token_twice(history: History) -> History:
    return replace(history, terms=(replace(history.terms[0], began_s=14.0), ALICES_TERM))


def two_intents(history: History) -> History:
    """Give the next request the nonce at which a forgotten transaction is on the chain."""
    given = replace(unprotected(history).txs[0], tx_id="t1", request_id="r1", effect=WAITING, nonce=1)
    return replace(unprotected(history), txs=(*history.txs[:1], given), cursors=(CursorRow(ALICE, 0, 2),))


def two_intents_in_the_pool(history: History) -> History:
    return replace(two_intents(history), blocks=history.blocks[:2], pool=(FORGOTTEN,))


def effect_twice(history: History) -> History:
    """Send again what had been sent and forgotten."""
    again = mined_too(history, ChainTx("h9", ALICE, 2, WAITING))
    first = ChainTx("forgotten", ALICE, 1, WAITING)
    blocks = (*again.blocks[:2], ChainBlock(2, "b2", (first,)), *again.blocks[3:])
    return replace(again, blocks=blocks, sent=(again.sent[0], Sent(11.0, first)))


def sent_under_protect(history: History) -> History:
    return replace(history, sent=(*history.sent, Sent(19.5, FORGOTTEN)))


def protected_for_nothing(history: History) -> History:
    return replace(history, blocks=(*history.blocks[:2], ChainBlock(2, "b2"), ChainBlock(3, "b3")), sent=())


def lost_though_synced(history: History) -> History:
    ack = replace(history.acknowledged[2], at_s=UNSYNCED_S - 0.1)
    return replace(history, acknowledged=(*history.acknowledged[:2], ack))


def acknowledged_from_memory(history: History) -> History:
    ack = replace(history.acknowledged[2], at_s=BACK_S + 1.1)
    return replace(history, acknowledged=(*history.acknowledged[:2], ack))


def never_stored(history: History) -> History:
    """Send something long after the fail-over that was never stored."""
    return replace(history, sent=(history.sent[0], Sent(BACK_S + 1.1, FORGOTTEN)))


def not_finished(history: History) -> History:
    waiting = TxRow("b0", BOB, "rb", "QUEUED", KEPT)
    received = JournalLine(7, 18, BOB, "Receive", "b0", "QUEUED", committed_s=9.5)
    return replace(history, txs=(*history.txs, waiting), lines=(*history.lines[:6], received, PROTECT))


@pytest.mark.parametrize(
    ("spoil", "invariant", "words"),
    [
        (token_below, 4, "was issued after the fail-over, 5 before it"),
        (token_twice, 4, "was issued before the fail-over and after it"),
        (two_intents, 7, "nonce 1 is"),
        (two_intents_in_the_pool, 7, "nonce 1 is"),
        (effect_twice, 8, "was mined 2 times"),
        (unprotected, 12, "the chain's nonce is 2, ours is 1, and it is ACTIVE"),
        (two_intents, 12, "was forgotten and mined, without PROTECT"),
        (sent_under_protect, 12, "forgotten was sent under PROTECT"),
        (protected_for_nothing, 14, "though its key was not used"),
        (lost_though_synced, 5, "was acknowledged as t2, which is gone"),
        (acknowledged_from_memory, 5, "was acknowledged as t2, which is gone"),
        (never_stored, 6, "was never stored"),
        (not_finished, 14, "b0 is still QUEUED"),
    ],
)
def test_each_violation_is_named(spoil: Callable[[History], History], invariant: int, words: str) -> None:
    found = check_lost_commits(spoil(clean()), FAIL_OVER).violations
    assert any(violation.invariant == invariant and words in str(violation) for violation in found), found


def begun_again() -> History:
    """Lose all of Bob's first use: his one request was sent, and is sent again from the chain's nonce."""
    first, again = ChainTx("gone", BOB, 0, KEPT), ChainTx("hb", BOB, 1, KEPT)
    history = clean()

    def line(number: int, event: str, state: str | None, **detail: object) -> JournalLine:
        tx_id = None if event == "BeginSequence" else "tb"
        token = None if event == "Receive" else NEW
        return JournalLine(number, 60 + number, BOB, event, tx_id, state, detail, token, number / 2)

    return replace(
        history,
        terms=(*history.terms, TermRow(BOB, NEW, "n2", 14.0, Snapshot(30, 30))),
        lines=(
            *history.lines,
            line(31, "Receive", "QUEUED"),
            line(32, "BeginSequence", None, start=1),
            line(33, "AssignNonce", "ALLOCATED", nonce=1, hash="hb"),
            line(34, "SendResult", "SUBMITTED", attempt=1),
            line(35, "ReceiveReceipt", "TRACKING", blockHash="b3"),
            line(36, "Finish", "CONFIRMED", count=2),
        ),
        txs=(*history.txs, TxRow("tb", BOB, "rb", "CONFIRMED", KEPT, 1, "hb", 3, "b3", NEW, 96)),
        attempts=(
            *history.attempts,
            AttemptRow("tb", 1, BOB, 1, "intent", KEPT, 100, 10, "hb", NEW, 93),
        ),
        cursors=(*history.cursors, CursorRow(BOB, 1, 2, "ACTIVE", NEW, 93)),
        blocks=(
            *history.blocks[:2],
            ChainBlock(2, "b2", (FORGOTTEN, first)),
            ChainBlock(3, "b3", (again,)),
            ChainBlock(4, "b4"),
            ChainBlock(5, "b5"),
        ),
        sent=(*history.sent, Sent(11.5, first), Sent(16.75, again)),
    )


def test_a_signer_whose_first_use_was_lost_is_not_excused() -> None:
    found = check_lost_commits(begun_again(), FAIL_OVER).violations
    assert any(violation.invariant == 8 and "was mined 2 times" in violation.what for violation in found)
    assert any(violation.invariant == 12 for violation in found)


def test_a_request_acknowledged_at_the_moment_of_a_fail_over_may_be_lost() -> None:
    ack = Acknowledged(4.0, ALICE, "r9", "t9", GONE)
    history = replace(clean(), acknowledged=(*clean().acknowledged, ack))
    assert [violation.invariant for violation in check_lost_commits(history, FAIL_OVER).violations] == [5]
    earlier = FailOver(unsynced_s=3.0, crashed_s=3.9, back_s=4.2, issued=(), late_s=1.0)
    assert not check_lost_commits(history, replace(FAIL_OVER, before=earlier)).violations
