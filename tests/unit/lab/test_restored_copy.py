"""After a restore from an older copy nothing may be lost or done twice; what the copy can't know is no violation."""

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
    FencedNote,
    History,
    JournalLine,
    Sent,
    Snapshot,
    TermRow,
    TxRow,
    effect_of,
)
from lab.checker.restored_copy import Restored, check_restored_copy, known_history

ALICE = "0x" + "a1" * 20
TO = "0x" + "cc" * 20
DONE, NEXT = (effect_of(to=TO, value_wei=value, data="") for value in (1, 2))
OWN = effect_of(to=ALICE, value_wei=0, data="")
COPIED_S, STOPPED_S = 10.0, 15.0
RESTORED = Restored(COPIED_S, STOPPED_S, frozenset({(ALICE, 1)}), frozenset({"t0", "t1"}))


def line(number: int, event: str, tx_id: str | None, state: str | None, **detail: object) -> JournalLine:
    token = None if event == "Receive" else 2
    at_s = 9.0 if event == "Receive" else 20.0 + number / 10
    return JournalLine(number, 10 + number, ALICE, event, tx_id, state, detail, token, at_s)


def carried_out(first: int, tx_id: str, nonce: int, **detail: object) -> list[JournalLine]:
    return [
        line(first, "AssignNonce", tx_id, "ALLOCATED", nonce=nonce, hash=f"h{nonce}", **detail),
        line(first + 1, "SendResult", tx_id, "SUBMITTED", attempt=1),
        line(first + 2, "ReceiveReceipt", tx_id, "TRACKING", blockHash=f"b{nonce + 1}"),
        line(first + 3, "Finish", tx_id, "CONFIRMED", count=2),
    ]


def clean() -> History:
    """Return a history: Alice's first request was sent in the lost time and attached, a filler followed, then her second."""
    effects = (DONE, OWN, NEXT)
    mined = [ChainTx(f"h{nonce}", ALICE, nonce, effect) for nonce, effect in enumerate(effects)]
    ids = ("t0", "f0", "t1")
    return History(
        required_depth=2,
        terms=(
            TermRow(ALICE, 1, "n1", 0.0, Snapshot(5, 5)),
            TermRow(ALICE, 2, "n2", 16.0, Snapshot(13, 13)),
        ),
        lines=(
            line(1, "Receive", "t0", "QUEUED"),
            line(2, "Receive", "t1", "QUEUED"),
            line(3, "Attach", "t0", "ALLOCATED", nonce=0, hash="h0", block=1, blockHash="b1"),
            line(4, "ReceiveReceipt", "t0", "TRACKING", blockHash="b1"),
            line(5, "Finish", "t0", "CONFIRMED", count=2),
            line(6, "FillDoubt", None, None, **{"from": 1, "to": 1}),
            *carried_out(7, "f0", 1, purpose="filler"),
            *carried_out(11, "t1", 2),
        ),
        txs=tuple(
            TxRow(
                tx_id,
                ALICE,
                request,
                "CONFIRMED",
                effect,
                nonce,
                f"h{nonce}",
                nonce + 1,
                f"b{nonce + 1}",
                2,
                20,
            )
            for nonce, (tx_id, request, effect) in enumerate(
                zip(ids, ("r0", None, "r1"), effects, strict=True)
            )
        ),
        attempts=tuple(
            AttemptRow(tx_id, 1, ALICE, nonce, purpose, effect, 100, 10, f"h{nonce}", 2, 20)
            for nonce, (tx_id, purpose, effect) in enumerate(
                zip(ids, ("intent", "filler", "intent"), effects, strict=True)
            )
        ),
        cursors=(CursorRow(ALICE, 0, 3, "ACTIVE", 2, 30),),
        blocks=(
            ChainBlock(0, "b0"),
            *(ChainBlock(tx.nonce + 1, f"b{tx.nonce + 1}", (tx,)) for tx in mined),
            ChainBlock(4, "b4"),
            ChainBlock(5, "b5"),
        ),
        sent=(Sent(12.0, mined[0]), Sent(20.75, mined[1]), Sent(21.15, mined[2])),
        acknowledged=(
            Acknowledged(9.0, ALICE, "r0", "t0", DONE),
            Acknowledged(9.0, ALICE, "r1", "t1", NEXT),
        ),
        fenced=(FencedNote(14.0, ALICE, 2),),  # a term of the lost time: its token is issued again
        all_must_mine=True,
        quiet_within_s=1.0,
    )


def test_writes_after_the_copy_are_no_violation() -> None:
    found = check_restored_copy(clean(), RESTORED)
    assert [str(violation) for violation in found.violations] == []
    assert (found.attached, found.filled) == (1, 1)


def test_evidence_outside_the_lost_time_is_kept() -> None:
    early, known = FencedNote(9.0, ALICE, 2), FencedNote(14.0, ALICE, 1)
    history = replace(clean(), fenced=(early, known, *clean().fenced))
    kept = known_history(history, RESTORED)
    assert kept.fenced == (early, known)
    assert [sent.tx.hash for sent in kept.sent] == ["h1", "h2"]


def mined_again(history: History) -> History:
    """Send the attached request again at another nonce."""
    again = ChainTx("h9", ALICE, 3, DONE)
    return replace(history, blocks=(*history.blocks, ChainBlock(6, "b6", (again,))))


def not_attached(history: History) -> History:
    return replace(
        history, attempts=history.attempts[1:], txs=history.txs[1:], acknowledged=history.acknowledged[1:]
    )


def request_gone(history: History) -> History:
    ack = Acknowledged(9.5, ALICE, "r9", "t9", NEXT)
    return replace(history, acknowledged=(*history.acknowledged, ack))


def protected(history: History) -> History:
    return replace(history, cursors=(replace(history.cursors[0], state="PROTECT"),))


def sent_before_stored(history: History) -> History:
    """Send something on the restored database before it is stored."""
    return replace(history, sent=(*history.sent[:2], replace(history.sent[2], at_s=STOPPED_S + 0.1)))


def still_waits(history: History) -> History:
    return replace(history, txs=(*history.txs[:2], replace(history.txs[2], state="SUBMITTED")))


@pytest.mark.parametrize(
    ("spoil", "invariant", "words"),
    [
        (request_gone, 5, "which is gone"),
        (not_attached, 6, "h0 at nonce 0 was never stored"),
        (sent_before_stored, 6, "before it was stored"),
        (mined_again, 8, "mined 2 times"),
        (protected, 14, "it is PROTECT, though"),
        (still_waits, 14, "t1 is still SUBMITTED"),
    ],
)
def test_each_violation_is_named(spoil: Callable[[History], History], invariant: int, words: str) -> None:
    found = check_restored_copy(spoil(clean()), RESTORED).violations
    assert any(violation.invariant == invariant and words in str(violation) for violation in found), found
