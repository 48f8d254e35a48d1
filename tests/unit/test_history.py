"""A journal folds into a short history, however long it is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fencepost.application.history import MOST_STRETCHES, JournalRow, fold

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def journal(*entries: tuple[str, str] | tuple[str, str, Mapping[str, Any]]) -> list[JournalRow]:
    return [
        JournalRow(
            id=number,
            at=BEGAN + timedelta(seconds=number),
            event=entry[0],
            state=entry[1],
            detail=entry[2] if len(entry) == 3 else {},
        )
        for number, entry in enumerate(entries)
    ]


SIGNED = {"nonce": 7, "hash": "0xab", "feeCapWei": "9", "tipWei": "1"}


def test_one_row_may_stand_for_several_actions() -> None:
    history = fold(journal(("Receive", "QUEUED"), ("AssignNonce", "ALLOCATED", SIGNED)))
    assert [stretch.sub_status for stretch in history.stretches] == ["Received", "Allocated"]
    actions = history.stretches[1].actions
    assert [action.action for action in actions] == ["AssignNonce", "RetrieveGasPrice", "Sign"]
    assert [action.last_info for action in actions] == [None, "fee cap 9 wei, tip 1 wei", "0xab"]


def test_repeats_are_counted_with_their_first_and_last_time_and_the_last_error() -> None:
    sends: list[tuple[str, str, Mapping[str, Any]]] = []
    for number in range(500):
        sends += [
            ("Resubmit", "SUBMITTED", {"count": number + 2}),
            ("SendResult", "SUBMITTED", {"result": "unknown", "message": f"no answer {number}"}),
        ]
    history = fold(journal(*sends, ("SendResult", "SUBMITTED", {"result": "accepted"})))
    (stretch,) = history.stretches
    resubmit, result = stretch.actions
    assert (resubmit.count, resubmit.first_at, resubmit.last_at) == (
        500,
        BEGAN,
        BEGAN + timedelta(seconds=998),
    )
    assert resubmit.last_info == "send 501"
    assert (result.count, result.last_info, result.last_error) == (501, "accepted", "no answer 499")
    assert result.last_error_at == BEGAN + timedelta(seconds=999)
    assert {line.name: line.count for line in history.summary} == {
        "Submitted": 1,
        "Resubmit": 500,
        "SendResult": 501,
    }


def test_stale_is_a_stretch_that_sending_again_does_not_end_and_a_receipt_does() -> None:
    history = fold(
        journal(
            ("SubmitTransaction", "SUBMITTED"),
            ("Stale", "SUBMITTED"),
            ("Resubmit", "SUBMITTED"),
            ("SendResult", "SUBMITTED", {"result": "already_known"}),
            ("ReceiveReceipt", "TRACKING", {"block": 5}),
            ("Fork", "SUBMITTED", {"block": 5}),
            ("ReceiveReceipt", "TRACKING", {"block": 6}),
            ("Finish", "FAILED", {"count": 3, "error": "reverted: no"}),
        )
    )
    names = [stretch.sub_status for stretch in history.stretches]
    assert names == ["Submitted", "Stale", "Tracking", "Submitted", "Tracking", "Failed"]
    assert history.stretches[3].actions[0].last_info == "block 5 left the chain"
    assert history.stretches[5].actions[0].last_error == "reverted: no"


def test_a_history_has_a_bound_and_says_what_it_left_out() -> None:
    turns = 4 * MOST_STRETCHES
    rows = [("Suspend", "SUSPENDED", {"by": "x" * 9_000}), ("Resume", "SUBMITTED", {"by": "y"})] * turns
    history = fold(journal(*rows))
    assert len(history.stretches) == MOST_STRETCHES
    assert history.left_out == 2 * turns - MOST_STRETCHES
    assert {line.name: line.count for line in history.summary} == {
        "Suspended": turns,
        "Submitted": turns,
        "Suspend": turns,
        "Resume": turns,
    }
    assert all(len(action.last_info or "") <= 600 for one in history.stretches for action in one.actions)


def test_nothing_folds_into_nothing() -> None:
    assert fold([]).stretches == ()
