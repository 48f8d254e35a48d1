"""A journal of any length folds into a short history."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from fencepost.application.tx_history import MAX_PERIODS, JournalRow, Totals, fold

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


def test_one_entry_may_stand_for_several_actions() -> None:
    history = fold(journal(("Receive", "QUEUED"), ("AssignNonce", "ALLOCATED", SIGNED)))
    assert [stretch.sub_status for stretch in history.periods] == ["Received", "Allocated"]
    actions = history.periods[1].actions
    assert [action.action for action in actions] == ["AssignNonce", "RetrieveGasPrice", "Sign"]
    assert [action.last_info for action in actions] == [None, "fee cap 9 wei, tip 1 wei", "0xab"]


def test_repeats_are_counted_with_first_and_last_time_and_the_last_error() -> None:
    sends: list[tuple[str, str, Mapping[str, Any]]] = []
    for number in range(500):
        sends += [
            ("Resubmit", "SUBMITTED", {"count": number + 2}),
            ("SendResult", "SUBMITTED", {"result": "unknown", "message": f"no answer {number}"}),
        ]
    history = fold(journal(*sends, ("SendResult", "SUBMITTED", {"result": "accepted"})))
    (stretch,) = history.periods
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


def test_a_stale_phase_ends_with_a_receipt_and_not_with_a_resubmission() -> None:
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
    names = [stretch.sub_status for stretch in history.periods]
    assert names == ["Submitted", "Stale", "Tracking", "Submitted", "Tracking", "Failed"]
    assert history.periods[3].actions[0].last_info == "block 5 left the chain"
    assert history.periods[5].actions[0].last_error == "reverted: no"


def test_a_history_is_bounded_and_reports_what_it_omits() -> None:
    turns = 4 * MAX_PERIODS
    rows = [("Suspend", "SUSPENDED", {"by": "x" * 9_000}), ("Resume", "SUBMITTED", {"by": "y"})] * turns
    history = fold(journal(*rows))
    assert len(history.periods) == MAX_PERIODS
    assert history.left_out == 2 * turns - MAX_PERIODS
    assert {line.name: line.count for line in history.summary} == {
        "Suspended": turns,
        "Submitted": turns,
        "Suspend": turns,
        "Resume": turns,
    }
    assert all(len(action.last_info or "") <= 600 for one in history.periods for action in one.actions)


def test_an_empty_journal_gives_an_empty_history() -> None:
    assert fold([]).periods == ()


def test_repeats_omitted_from_the_journal_are_counted_with_their_last_time() -> None:
    rows = journal(
        ("AssignNonce", "ALLOCATED", SIGNED),
        ("SendResult", "SUBMITTED", {"result": "accepted"}),
        ("Resubmit", "SUBMITTED", {"count": 2}),
        ("SendResult", "SUBMITTED", {"result": "already_known"}),
        ("ReceiveReceipt", "TRACKING", {"block": 3}),
        ("Confirm", "TRACKING", {"count": 1}),
    )
    later = BEGAN + timedelta(days=2)
    totals = Totals(
        events=len(rows) + 2 * 98 + 7,
        sends=100,
        resubmits=99,
        last_send_at=later,
        last_result="unknown",
        last_message="no answer",
        changed_at=later + timedelta(seconds=5),
    )
    history = fold(rows, totals)
    assert {line.name: line.count for line in history.summary if line.kind == "action"} == {
        "AssignNonce": 1,
        "RetrieveGasPrice": 1,
        "Sign": 1,
        "SendResult": 100,
        "Resubmit": 99,
        "ReceiveReceipt": 1,
        "Confirm": 8,
    }
    submitted = history.periods[1]
    sends, resubmits = submitted.actions
    assert (sends.count, sends.first_at, sends.last_at) == (100, rows[1].at, later)
    assert (sends.last_info, sends.last_error) == ("unknown", "no answer")
    assert (resubmits.count, resubmits.last_info, resubmits.last_at) == (99, "send 100", later)
    assert history.periods[2].actions[-1].last_at == later + timedelta(seconds=5)


def test_a_complete_journal_is_folded_unchanged() -> None:
    rows = journal(("AssignNonce", "ALLOCATED", SIGNED), ("SendResult", "SUBMITTED", {"result": "accepted"}))
    at = BEGAN + timedelta(days=1)
    totals = Totals(2, 1, 0, last_send_at=at, last_result="accepted", last_message=None, changed_at=at)
    assert fold(rows, totals) == fold(rows)
