"""Decide what the lane does after a send: one table from the endpoint's answer to the next action."""

from __future__ import annotations

from enum import StrEnum

from fencepost.domain.send_result import SendCategory


class Action(StrEnum):
    TRACK = "track"  # the endpoint has it: wait for the receipt
    FETCH_RECEIPTS = "fetch_receipts"  # it may be mined: fetch the receipts of all attempts at this nonce
    SEND_LOWER_FIRST = "send_lower_first"  # keep the nonce, send the lower nonces, allocate no more
    OUTBID = "outbid"  # another attempt of ours is in the pool: pay at least ten per cent more
    PROTECT = "protect"  # another program uses the key
    REQUOTE = "requote"  # get a new fee quote and sign again, same nonce
    RETYPE = "retype"  # the chain has no such transaction type: sign again as type 0, same nonce
    SEND_AGAIN = "send_again"  # back off, then send the same bytes
    SHRINK_WINDOW = "shrink_window"  # this account may have one transaction in flight
    WAIT_FOR_FUNDS = "wait_for_funds"  # keep the nonce; continue when the balance suffices
    FILL = "fill"  # it will never be mined: a filler consumes the nonce


_TABLE: dict[SendCategory, Action] = {
    SendCategory.ACCEPTED: Action.TRACK,
    SendCategory.ALREADY_KNOWN: Action.TRACK,
    SendCategory.ALREADY_MINED: Action.FETCH_RECEIPTS,
    SendCategory.NONCE_TOO_LOW: Action.FETCH_RECEIPTS,
    SendCategory.NONCE_TOO_HIGH: Action.SEND_LOWER_FIRST,
    SendCategory.UNDERPRICED: Action.REQUOTE,
    SendCategory.POOL_FULL: Action.SEND_AGAIN,
    SendCategory.DELEGATED_LIMIT: Action.SHRINK_WINDOW,
    SendCategory.TYPE_CONFLICT: Action.SEND_AGAIN,
    SendCategory.TYPE_NOT_SUPPORTED: Action.RETYPE,
    SendCategory.INSUFFICIENT_FUNDS: Action.WAIT_FOR_FUNDS,
    SendCategory.FEE_CAP_EXCEEDED: Action.SEND_AGAIN,
    SendCategory.FATAL: Action.FILL,
    SendCategory.TERMINALLY_STUCK: Action.FILL,
    SendCategory.NODE_NOT_READY: Action.SEND_AGAIN,
    SendCategory.UNKNOWN: Action.SEND_AGAIN,
}

_REPLACEMENT_UNDERPRICED = (
    SendCategory.REPLACEMENT_UNDERPRICED
)  # a module constant, because every send compares with it


def decide(category: SendCategory, *, attempts_at_nonce: int, is_filler: bool) -> Action:
    if category is _REPLACEMENT_UNDERPRICED:
        # With one attempt there is no earlier attempt to outbid: the transaction in the pool is foreign.
        return Action.OUTBID if attempts_at_nonce > 1 else Action.PROTECT
    action = _TABLE[category]
    if is_filler and action is Action.FILL:
        return Action.SEND_AGAIN  # a filler can't be replaced by a filler; the operator sees it as STUCK
    return action
