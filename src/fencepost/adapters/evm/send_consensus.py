"""Merge the responses of several endpoints to the same bytes into one verdict.

A response that shows that the transaction was sent has precedence over one that leaves it open, and both have precedence
over every rejection: acting on a rejection while other endpoints spread the bytes could get a request mined twice. Among
rejections the one with the mildest consequence wins: a request fails only if every endpoint that was called agrees. An
endpoint that keeps failing does not hide the rejections of the others for long, because it is not called while it backs off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.domain.send_result import SendCategory, SendResult

# Strongest first, each with its reason.
PRECEDENCE: Final[tuple[tuple[SendCategory, str], ...]] = (
    (SendCategory.ACCEPTED, "an endpoint accepted it under its hash: it was sent"),
    (SendCategory.ALREADY_KNOWN, "an endpoint has it in its pool: it was sent"),
    (SendCategory.ALREADY_MINED, "an endpoint has it in a block: the receipt decides"),
    (
        SendCategory.NONCE_TOO_LOW,
        "the nonce is consumed, perhaps by these bytes: fetch the receipts of all attempts",
    ),
    (SendCategory.UNKNOWN, "it may have been sent: keep the nonce, fetch the receipt, send the same bytes"),
    (SendCategory.NODE_NOT_READY, "probably not sent, but a gateway's 502 proves nothing"),
    (SendCategory.FEE_CAP_EXCEEDED, "this endpoint's own limit: another endpoint may have accepted it"),
    (
        SendCategory.REPLACEMENT_UNDERPRICED,
        "a pool holds another transaction at this nonce, ours or foreign",
    ),
    (SendCategory.TYPE_CONFLICT, "a pool holds the account for another transaction type"),
    (SendCategory.DELEGATED_LIMIT, "a smaller window resolves it"),
    (SendCategory.UNDERPRICED, "a new quote at the same nonce resolves it"),
    (SendCategory.TYPE_NOT_SUPPORTED, "the same transaction as type 0 resolves it"),
    (SendCategory.INSUFFICIENT_FUNDS, "a higher balance resolves it; the lane continues by itself"),
    (SendCategory.POOL_FULL, "waiting resolves it"),
    (
        SendCategory.NONCE_TOO_HIGH,
        "lower nonces are missing, or the endpoint lags, so every more specific reason has precedence",
    ),
    (
        SendCategory.TERMINALLY_STUCK,
        "the request is replaced by a filler: only if no endpoint gives a milder reason",
    ),
    (SendCategory.FATAL, "the request fails: only if every endpoint says so"),
)
_RANK: Final = {category: rank for rank, (category, _) in enumerate(PRECEDENCE)}


def merge(results: Sequence[SendResult]) -> SendResult:
    """Return the strongest of at least one result; of two equal ones, the one with the higher chain nonce."""
    if len(results) == 1:
        return results[0]
    return min(results, key=lambda result: (_RANK[result.category], -(result.chain_nonce or 0)))
