"""Merge the responses of several endpoints to the same bytes into one verdict.

The rule: what says that the transaction is out beats what says that it may be out; that beats every refusal, because
acting on a refusal while other nodes spread the bytes is how a request is mined twice. Among refusals the one with the
mildest consequence wins: nothing fails a request unless every node that was asked agrees. An endpoint that keeps failing
doesn't hide the others' refusals for long, since it is left out while it rests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.domain.send_result import SendCategory, SendResult

# Strongest first, each with its reason.
PRECEDENCE: Final[tuple[tuple[SendCategory, str], ...]] = (
    (SendCategory.ACCEPTED, "a node took it under our hash: it is out"),
    (SendCategory.ALREADY_KNOWN, "a node has it in its pool: it is out"),
    (SendCategory.ALREADY_MINED, "a node has it in a block: the receipt will tell"),
    (
        SendCategory.NONCE_TOO_LOW,
        "the nonce is consumed, perhaps by these bytes: fetch the receipts of all attempts",
    ),
    (SendCategory.UNKNOWN, "it may have been sent: keep the nonce, fetch the receipt, send the same bytes"),
    (SendCategory.NODE_NOT_READY, "probably not out, but a gateway's 502 proves nothing"),
    (SendCategory.FEE_CAP_EXCEEDED, "this node's own limit: another one may have taken it before"),
    (
        SendCategory.REPLACEMENT_UNDERPRICED,
        "a pool holds another transaction at this nonce, ours or foreign",
    ),
    (SendCategory.TYPE_CONFLICT, "a pool holds the account for another transaction type"),
    (SendCategory.DELEGATED_LIMIT, "a narrower window mends it"),
    (SendCategory.UNDERPRICED, "a new quote at the same nonce mends it"),
    (SendCategory.TYPE_NOT_SUPPORTED, "the same transaction as type 0 mends it"),
    (SendCategory.INSUFFICIENT_FUNDS, "a higher balance resolves it; the lane continues by itself"),
    (SendCategory.POOL_FULL, "waiting mends it"),
    (
        SendCategory.NONCE_TOO_HIGH,
        "lower nonces first; or just a node that is behind, so a better reason goes first",
    ),
    (SendCategory.TERMINALLY_STUCK, "the request is replaced by a filler: only if no node says less"),
    (SendCategory.FATAL, "the request fails: only if every node says so"),
)
_RANK: Final = {category: rank for rank, (category, _) in enumerate(PRECEDENCE)}


def merge(results: Sequence[SendResult]) -> SendResult:
    """Return the strongest of at least one result; of two equal ones, the one with the higher chain nonce."""
    if len(results) == 1:
        return results[0]
    return min(results, key=lambda result: (_RANK[result.category], -(result.chain_nonce or 0)))
