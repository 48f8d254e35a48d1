"""The states of a managed transaction, and which may follow which.

QUEUED → ALLOCATED → SUBMITTED → TRACKING → CONFIRMED
   │         │            │          │  └──→ FAILED      (reverted, at depth)
   │         └────────────┴──────────┴─────→ CANCELLED / FAILED   (a filler consumed the nonce, at depth)
   └→ CANCELLED / FAILED   (never had a nonce)
ALLOCATED / SUBMITTED → FAILED   (a stranger consumed the nonce, and a person decided to go on)
ALLOCATED / SUBMITTED → CONFIRMED / CANCELLED   (mined and deep enough when it was first seen: both steps in one commit)
TRACKING → SUBMITTED       (reorged out: the receipt is cleared, the stored bytes go out again)
any live state ⇄ SUSPENDED (by a person)
CONFIRMED / FAILED / CANCELLED → TRACKING or SUBMITTED   (a reorg deeper than the required depth took its block away)

The table is data; the database holds a copy (`may_follow`) and refuses everything else.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    QUEUED = "QUEUED"
    ALLOCATED = "ALLOCATED"
    SUBMITTED = "SUBMITTED"
    TRACKING = "TRACKING"
    SUSPENDED = "SUSPENDED"
    CONFIRMED = "CONFIRMED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class SubState(StrEnum):
    """Why a live transaction waits."""

    STALE = "STALE"  # no receipt for longer than it should take
    STUCK = "STUCK"  # a limit was reached: resubmits, or the fee cap
    UNFUNDED = "UNFUNDED"  # the account can't pay for it yet
    PROTECT = "PROTECT"  # its signer waits for a person
    REFUSED = "REFUSED"  # a node refuses it for good: a filler takes its nonce


TERMINAL = frozenset({State.CONFIRMED, State.FAILED, State.CANCELLED})
LIVE = frozenset(State) - TERMINAL

_FORWARD: dict[State, set[State]] = {
    State.QUEUED: {State.ALLOCATED, State.CANCELLED, State.FAILED},
    State.ALLOCATED: {State.SUBMITTED, State.TRACKING, State.CONFIRMED, State.FAILED, State.CANCELLED},
    State.SUBMITTED: {State.TRACKING, State.CONFIRMED, State.FAILED, State.CANCELLED},
    State.TRACKING: {State.SUBMITTED, State.CONFIRMED, State.FAILED, State.CANCELLED},
    State.SUSPENDED: {State.QUEUED, State.ALLOCATED, State.SUBMITTED, State.TRACKING, State.CANCELLED},
    State.CONFIRMED: {State.TRACKING, State.SUBMITTED},
    State.FAILED: {State.TRACKING, State.SUBMITTED},
    State.CANCELLED: {State.TRACKING, State.SUBMITTED},
}

TRANSITIONS: frozenset[tuple[State, State]] = frozenset(
    {(old, new) for old, news in _FORWARD.items() for new in news}
    | {(state, state) for state in LIVE}
    | {(state, State.SUSPENDED) for state in LIVE}
)


def is_legal(old: State, new: State) -> bool:
    return (old, new) in TRANSITIONS


class IllegalTransition(ValueError):
    """A bug of ours: some code asked for a step that the table does not have."""

    def __init__(self, old: State, new: State) -> None:
        super().__init__(f"{old} can't become {new}")


class CursorState(StrEnum):
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"  # by a person: nothing new gets a nonce, what has one goes on
    PROTECT = "PROTECT"  # a precondition is broken: nothing goes out until a person decides
