"""Define the states of a managed transaction and the legal transitions.

QUEUED → ALLOCATED → SUBMITTED → TRACKING → CONFIRMED
   │         │            │          │  └──→ FAILED      (reverted, at depth)
   │         └────────────┴──────────┴─────→ CANCELLED / FAILED   (a filler consumed the nonce, at depth)
   └→ CANCELLED / FAILED   (never had a nonce)
ALLOCATED / SUBMITTED → FAILED   (a foreign transaction consumed the nonce, at depth, and an operator decided to continue)
ALLOCATED / SUBMITTED → CONFIRMED / CANCELLED   (final when its receipt was first read: both steps in one commit)
TRACKING → SUBMITTED       (reorged out: the receipt is cleared, the stored bytes go out again)
any live state ⇄ SUSPENDED (by an operator)
CONFIRMED / FAILED / CANCELLED → TRACKING or SUBMITTED   (a reorg deeper than the required depth took its block away,
                                                          or the block of the foreign transaction that had its nonce)

The database has a copy of the table (`may_follow`) and rejects everything else.
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

    STALE = "STALE"  # no receipt for longer than `stale_receipt_timeout`
    STUCK = "STUCK"  # a limit was reached: number of resubmits, or the fee cap
    BELOW_MARKET = "BELOW_MARKET"  # endpoints reject its price, and its limits allow no higher one
    PENDING_IN_POOL = (
        "PENDING_IN_POOL"  # the endpoint has it in its pool, and blocks with room did not include it
    )
    UNFUNDED = "UNFUNDED"  # the account can't pay for it yet
    PROTECT = "PROTECT"  # its signer waits for an operator
    REFUSED = "REFUSED"  # an endpoint rejects it permanently: a filler consumes its nonce
    SUPERSEDED = "SUPERSEDED"  # a foreign transaction has its nonce: it fails once that is final


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
    {(old, new) for old, targets in _FORWARD.items() for new in targets}
    | {(state, state) for state in LIVE}
    | {(state, State.SUSPENDED) for state in LIVE}
)


def is_legal(old: State, new: State) -> bool:
    return (old, new) in TRANSITIONS


class IllegalTransition(ValueError):
    """Report a bug in Fencepost: code tried a transition that is not in the table."""

    def __init__(self, old: State, new: State) -> None:
        super().__init__(f"{old} can't become {new}")


class CursorState(StrEnum):
    """The state of a signer. PAUSED is not stored here: a pause is a separate column, which outlasts PROTECT."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"  # by an operator: no request gets a nonce; transactions that have one continue
    PROTECT = "PROTECT"  # a precondition is broken: nothing is sent until an operator decides
