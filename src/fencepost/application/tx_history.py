"""Fold a transaction's journal into its history: periods of one sub-status, with the actions of each.

A transaction that is resubmitted for days has thousands of journal rows and a history of a few lines: an action that
repeats inside a period is one line with a count, its first and last time, and its last info. The summary counts over
the whole life. Both are bounded: the newest periods are kept, and the summary has one line per name, of which there
are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

MAX_PERIODS = 50
MAX_INFO_CHARS = 500

# A journal row may stand for several actions: the nonce is committed together with price and signature.
_SIGNED_WITH = frozenset({"AssignNonce", "Bump", "Fill"})
_FAILED_SENDS = frozenset(
    {
        "nonce_too_high",
        "replacement_underpriced",
        "underpriced",
        "pool_full",
        "delegated_limit",
        "type_conflict",
        "insufficient_funds",
        "fee_cap_exceeded",
        "type_not_supported",
        "fatal",
        "terminally_stuck",
        "node_not_ready",
        "unknown",
    }
)
_SUB_STATUS = {
    "QUEUED": "Received",
    "ALLOCATED": "Allocated",
    "SUBMITTED": "Submitted",
    "TRACKING": "Tracking",
    "SUSPENDED": "Suspended",
    "CONFIRMED": "Confirmed",
    "FAILED": "Failed",
    "CANCELLED": "Cancelled",
}
_OF_EVENT = {
    "Stale": "Stale",
    "Stuck": "Stuck",
    "BelowMarket": "BelowMarket",
    "PendingInPool": "PendingInPool",
}


@dataclass(frozen=True, slots=True)
class JournalRow:
    """Hold one row of a transaction's journal."""

    id: int
    at: datetime
    event: str
    state: str | None
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Totals:
    """Hold the counters of a transaction's row: all its events, including repeats that the journal does not hold."""

    events: int
    sends: int
    resubmits: int
    last_send_at: datetime | None
    last_result: str | None
    last_message: str | None
    changed_at: datetime


@dataclass(slots=True)
class Action:
    """Count the repeats of one action inside a period."""

    action: str
    first_at: datetime
    last_at: datetime
    count: int = 1
    last_info: str | None = None
    last_error: str | None = None
    last_error_at: datetime | None = None


@dataclass(slots=True)
class Period:
    """Hold the actions of a period that a transaction spent in one sub-status."""

    sub_status: str
    at: datetime
    actions: list[Action] = field(default_factory=list)


@dataclass(slots=True)
class SummaryLine:
    """Count one name over the whole life; `kind` is "subStatus" or "action"."""

    kind: str
    name: str
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class TxHistory:
    """Hold the folded history of a transaction."""

    periods: tuple[Period, ...]
    summary: tuple[SummaryLine, ...]
    left_out: int  # older periods that are only counted in the summary


def fold(rows: Sequence[JournalRow], totals: Totals | None = None) -> TxHistory:
    """Fold rows in the order in which they were written, and add the repeats that only `totals` counts."""
    periods: list[Period] = []
    summary: dict[tuple[str, str], SummaryLine] = {}
    for row in rows:
        sub_status = _sub_status(row, periods[-1].sub_status if periods else "Received")
        if not periods or periods[-1].sub_status != sub_status:
            periods.append(Period(sub_status, row.at))
            _count(summary, "subStatus", sub_status, row.at)
        for action, info, error in _actions(row):
            _add(periods[-1].actions, action, row.at, info=info, error=error)
            _count(summary, "action", action, row.at)
    if totals is not None and periods:
        _add_unwritten(rows, totals, periods, summary)
    kept = periods[-MAX_PERIODS:]
    return TxHistory(tuple(kept), tuple(summary.values()), left_out=len(periods) - len(kept))


def _add_unwritten(
    rows: Sequence[JournalRow],
    totals: Totals,
    periods: Sequence[Period],
    summary: dict[tuple[str, str], SummaryLine],
) -> None:
    """Count repeats that were not written, with the last time of each.

    Sends and resubmits have their own counters. All other unwritten events are confirmations.
    """
    written = Counter(row.event for row in rows)
    sends = max(0, totals.sends - written["SendResult"])
    resubmits = max(0, totals.resubmits - written["Resubmit"])
    confirms = max(0, totals.events - len(rows) - sends - resubmits)
    sent_at = totals.last_send_at or totals.changed_at
    failed = totals.last_result in _FAILED_SENDS
    error = _short(totals.last_message or totals.last_result) if failed else None
    for action, count, at, info, last_error in (
        ("SendResult", sends, sent_at, totals.last_result, error),
        ("Resubmit", resubmits, sent_at, f"send {totals.sends}", None),
        ("Confirm", confirms, totals.changed_at, None, None),
    ):
        if not count:
            continue
        period = next(
            (one for one in reversed(periods) if any(a.action == action for a in one.actions)),
            periods[-1],
        )
        _add(period.actions, action, at, info=info, error=last_error, count=count)
        _count(summary, "action", action, at, count=count)


def _sub_status(row: JournalRow, current: str) -> str:
    if row.event in _OF_EVENT:
        return _OF_EVENT[row.event]
    state = _SUB_STATUS.get(row.state or "", current)
    if current in _OF_EVENT.values() and state == "Submitted" and row.event in ("SendResult", "Resubmit"):
        return current  # a send alone does not end a stale or stuck period
    return state


def _actions(row: JournalRow) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield action, info and error of each action that a row stands for."""
    detail = row.detail
    if row.event == "SendResult":
        result, message = str(detail.get("result", "")), _short(detail.get("message"))
        failed = result in _FAILED_SENDS
        yield "SendResult", result, (message or result) if failed else None
        return
    error = _short(detail.get("error"))
    yield row.event, _info(row), error
    if row.event in _SIGNED_WITH and "hash" in detail:
        yield (
            "RetrieveGasPrice",
            f"fee cap {detail.get('feeCapWei')} wei, tip {detail.get('tipWei')} wei",
            None,
        )
        yield "Sign", _short(detail["hash"]), None


def _info(row: JournalRow) -> str | None:
    detail = row.detail
    match row.event:
        case "AssignNonce":
            return None  # callers see the nonce only if `api.expose_nonce` is on
        case "ReceiveReceipt":
            return f"block {detail.get('block')}"
        case "Confirm" | "Finish":
            return f"{detail.get('count')} confirmations"
        case "Fork":
            if "block" in detail:
                return f"block {detail['block']} left the chain"
            return f"other blocks on top: {len(detail.get('replaced', ()))} replaced"
        case "Resubmit" | "SubmitTransaction":
            return f"send {detail.get('count')}"
        case "Suspend" | "Resume":
            return f"by {_short(detail.get('by'))}"
        case "Bump" | "Fill":
            return f"attempt {detail.get('attempt')}"
        case "Sign":
            return _short(detail.get("hash"))
        case _:
            return _short(detail.get("reason") or detail.get("ending"))


def _short(value: object) -> str | None:
    return None if value is None else str(value)[:MAX_INFO_CHARS]


def _add(
    actions: list[Action], name: str, at: datetime, *, info: str | None, error: str | None, count: int = 1
) -> None:
    line = next((action for action in actions if action.action == name), None)
    if line is None:
        line = Action(name, at, at, count)
        actions.append(line)
    else:
        line.count += count
        line.last_at = max(line.last_at, at)
    line.last_info = info or line.last_info
    if error is not None:
        line.last_error, line.last_error_at = error, at


def _count(
    summary: dict[tuple[str, str], SummaryLine], kind: str, name: str, at: datetime, *, count: int = 1
) -> None:
    line = summary.get((kind, name))
    if line is None:
        summary[(kind, name)] = SummaryLine(kind, name, count, at, at)
    else:
        line.count += count
        line.last_at = max(line.last_at, at)
