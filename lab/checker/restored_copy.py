"""Check a history after the database was restored from an older copy while the chain kept everything.

No request is accepted between the copy and the restore, so nothing may be lost: every acknowledged request is in the
copy, and every transaction on the chain belongs to one of them afterwards. All fourteen invariants hold for what is left.
Two kinds of evidence from the lost time are left out, because the database can't know them: sends, whose journal lines
are gone, and log entries about terms that the copy never had, whose tokens are issued again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lab.checker.history import History
from lab.checker.invariants import Violation, check


@dataclass(frozen=True, slots=True)
class Restored:
    """When the copy was made and restored, and what it contained."""

    copied_s: float  # the copy has everything that was committed before
    stopped_s: float  # no node ran after this, until the copy was in place
    terms: frozenset[tuple[str, int]]  # signer and token
    unsent: frozenset[str]  # ids of the requests that had no nonce

    def is_lost_time(self, at_s: float) -> bool:
        return self.copied_s <= at_s <= self.stopped_s


@dataclass(frozen=True, slots=True)
class Found:
    """What the database learned from the chain, and what is wrong."""

    violations: list[Violation]
    attached: int  # requests that the chain had already executed
    filled: int  # nonces that fillers took because the cursor was in doubt


def known_history(history: History, restored: Restored) -> History:
    """Leave out the evidence of the lost time that the restored database can't know."""
    return replace(
        history,
        sent=tuple(sent for sent in history.sent if not restored.is_lost_time(sent.at_s)),
        fenced=tuple(
            note
            for note in history.fenced
            if (note.signer, note.token) in restored.terms or not restored.is_lost_time(note.at_s)
        ),
    )


def check_restored_copy(history: History, restored: Restored) -> Found:
    """Check the history of the system when it is quiet again, with everything ever sent and acknowledged."""
    later = [line for line in history.lines if line.committed_s > restored.stopped_s]
    return Found(
        violations=check(known_history(history, restored)),
        attached=len({line.tx_id for line in later if line.event == "Attach"}),
        filled=sum(
            int(line.detail["to"]) + 1 - int(line.detail["from"])
            for line in later
            if line.event == "FillDoubt"
        ),
    )
