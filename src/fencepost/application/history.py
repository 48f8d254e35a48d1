"""A transaction's history, folded from its journal: stretches of one sub-status, with what was done in each.

A transaction that is sent again for days has thousands of journal rows and a history of a few lines: an action that
repeats inside a stretch is one line with a count, its first and last time, and what was last said. The summary counts
over the whole life. Both are bounded: of the stretches the newest are kept, and the summary has a line for each name
only, of which there are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

MOST_STRETCHES = 50
MOST_INFO_CHARS = 500

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
_OF_EVENT = {"Stale": "Stale", "Stuck": "Stuck"}


@dataclass(frozen=True, slots=True)
class JournalRow:
    id: int
    at: datetime
    event: str
    state: str | None
    detail: Mapping[str, Any]


@dataclass(slots=True)
class Action:
    action: str
    first_at: datetime
    last_at: datetime
    count: int = 1
    last_info: str | None = None
    last_error: str | None = None
    last_error_at: datetime | None = None


@dataclass(slots=True)
class Stretch:
    """A time that a transaction spent in one sub-status."""

    sub_status: str
    at: datetime
    actions: list[Action] = field(default_factory=list)


@dataclass(slots=True)
class SummaryLine:
    """`kind` is "subStatus" or "action"."""

    kind: str
    name: str
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class History:
    stretches: tuple[Stretch, ...]
    summary: tuple[SummaryLine, ...]
    left_out: int  # older stretches that are only counted in the summary


def fold(rows: Sequence[JournalRow]) -> History:
    """Rows in the order in which they were written."""
    stretches: list[Stretch] = []
    summary: dict[tuple[str, str], SummaryLine] = {}
    for row in rows:
        sub_status = _sub_status(row, stretches[-1].sub_status if stretches else "Received")
        if not stretches or stretches[-1].sub_status != sub_status:
            stretches.append(Stretch(sub_status, row.at))
            _count(summary, "subStatus", sub_status, row.at)
        for action, info, error in _actions(row):
            _add(stretches[-1].actions, action, row.at, info=info, error=error)
            _count(summary, "action", action, row.at)
    kept = stretches[-MOST_STRETCHES:]
    return History(tuple(kept), tuple(summary.values()), left_out=len(stretches) - len(kept))


def _sub_status(row: JournalRow, current: str) -> str:
    if row.event in _OF_EVENT:
        return _OF_EVENT[row.event]
    state = _SUB_STATUS.get(row.state or "", current)
    if current in _OF_EVENT.values() and state == "Submitted" and row.event in ("SendResult", "Resubmit"):
        return current  # sending again does not by itself end what is stale or stuck
    return state


def _actions(row: JournalRow) -> Iterator[tuple[str, str | None, str | None]]:
    """Action, info and error of each thing that a row tells."""
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
            return None  # the nonce itself is told only to those who may see it
        case "ReceiveReceipt":
            return f"block {detail.get('block')}"
        case "Confirm" | "Finish":
            return f"{detail.get('count')} confirmations"
        case "Fork":
            return f"block {detail['block']} left the chain" if "block" in detail else "other blocks on top"
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
    return None if value is None else str(value)[:MOST_INFO_CHARS]


def _add(actions: list[Action], name: str, at: datetime, *, info: str | None, error: str | None) -> None:
    line = next((action for action in actions if action.action == name), None)
    if line is None:
        line = Action(name, at, at)
        actions.append(line)
    else:
        line.count += 1
        line.last_at = at
    line.last_info = info or line.last_info
    if error is not None:
        line.last_error, line.last_error_at = error, at


def _count(summary: dict[tuple[str, str], SummaryLine], kind: str, name: str, at: datetime) -> None:
    line = summary.get((kind, name))
    if line is None:
        summary[(kind, name)] = SummaryLine(kind, name, 1, at, at)
    else:
        line.count += 1
        line.last_at = at
