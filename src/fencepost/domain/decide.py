"""What to do about a send result: one table, from what nodes say to what the lane does next."""

from __future__ import annotations

from enum import StrEnum

from fencepost.domain.send import SendCategory


class Action(StrEnum):
    TRACK = "track"  # it is out: wait for the receipt
    LOOK_UP = "look_up"  # it may be mined: fetch the receipts of all attempts at this nonce
    SEND_LOWER_FIRST = "send_lower_first"  # keep the nonce, send what is below, allocate no more
    OUTBID = "outbid"  # another attempt of ours is in the pool: pay at least ten per cent more
    PROTECT = "protect"  # a stranger uses the key
    REQUOTE = "requote"  # quote again, sign again, same nonce
    SEND_AGAIN = "send_again"  # back off, then the identical bytes
    SHRINK_WINDOW = "shrink_window"  # this account may have one in flight
    WAIT_FOR_FUNDS = "wait_for_funds"  # hold the nonce; go on when the balance is back
    FILL = "fill"  # it will never be mined: a filler takes the nonce


_TABLE: dict[SendCategory, Action] = {
    SendCategory.ACCEPTED: Action.TRACK,
    SendCategory.ALREADY_KNOWN: Action.TRACK,
    SendCategory.ALREADY_MINED: Action.LOOK_UP,
    SendCategory.NONCE_TOO_LOW: Action.LOOK_UP,
    SendCategory.NONCE_TOO_HIGH: Action.SEND_LOWER_FIRST,
    SendCategory.UNDERPRICED: Action.REQUOTE,
    SendCategory.POOL_FULL: Action.SEND_AGAIN,
    SendCategory.DELEGATED_LIMIT: Action.SHRINK_WINDOW,
    SendCategory.TYPE_CONFLICT: Action.SEND_AGAIN,
    SendCategory.INSUFFICIENT_FUNDS: Action.WAIT_FOR_FUNDS,
    SendCategory.FEE_CAP_EXCEEDED: Action.SEND_AGAIN,
    SendCategory.FATAL: Action.FILL,
    SendCategory.TERMINALLY_STUCK: Action.FILL,
    SendCategory.NODE_NOT_READY: Action.SEND_AGAIN,
    SendCategory.UNKNOWN: Action.SEND_AGAIN,
}

_REPLACEMENT_UNDERPRICED = SendCategory.REPLACEMENT_UNDERPRICED  # found once: every send is asked about it


def decide(category: SendCategory, *, attempts_at_nonce: int, is_filler: bool) -> Action:
    if category is _REPLACEMENT_UNDERPRICED:
        # With one attempt there is nothing of ours to outbid: what sits in the pool is a stranger's.
        return Action.OUTBID if attempts_at_nonce > 1 else Action.PROTECT
    action = _TABLE[category]
    if is_filler and action is Action.FILL:
        return Action.SEND_AGAIN  # a filler has no filler of its own; a person sees it as stuck
    return action
