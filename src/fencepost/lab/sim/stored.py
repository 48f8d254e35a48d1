"""What the ledger in memory takes over from a change into its rows: only what the real statement writes."""

from __future__ import annotations

from fencepost.application.ports import TxChange
from fencepost.domain.managed import Attempt, ManagedTx

MOST_TEXT = 2_000


class Refused(Exception):
    """A constraint holds: the write does nothing."""


def shifted(at_s: float | None, by_s: float) -> float | None:
    return None if at_s is None else at_s + by_s


def merged(row: ManagedTx, change: TxChange) -> tuple[Attempt, ...]:
    """Attempts are added, and their counters move in a later write: bytes are stored before they are sent."""
    before = {attempt.number: attempt for attempt in change.before.attempts}
    stored = {attempt.number: attempt for attempt in row.attempts}
    for attempt in change.after.attempts:
        known = before.get(attempt.number)
        if known is None:
            if attempt.number in stored:
                raise Refused
            if not 0 <= attempt.fees.tip_wei <= attempt.fees.fee_cap_wei or attempt.gas <= 0:
                raise Refused
            stored[attempt.number] = attempt.changed(sent_count=0, last_result=None, last_message="")
        elif attempt.sent_count != known.sent_count:
            stored[attempt.number] = stored[attempt.number].changed(
                sent_count=attempt.sent_count,
                last_result=attempt.last_result,
                last_message=attempt.last_message[:MOST_TEXT],
            )
    return tuple(stored[number] for number in sorted(stored))
