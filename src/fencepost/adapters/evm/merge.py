"""One verdict out of what several nodes said to the same bytes.

The rule: what says that the transaction is out beats what says that it may be out; that beats every refusal, because
acting on a refusal while the bytes travel elsewhere is how a request is mined twice. Among refusals the one with the
mildest consequence wins: nothing fails a request unless every node that was asked agrees. An endpoint that keeps failing
doesn't hide the others' refusals for long, since it is left out while it rests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.domain.send import SendCategory, SendResult

# Strongest first, each with its reason.
PRECEDENCE: Final[tuple[tuple[SendCategory, str], ...]] = (
    (SendCategory.ACCEPTED, "a node took it under our hash: it is out"),
    (SendCategory.ALREADY_KNOWN, "a node has it in its pool: it is out"),
    (SendCategory.ALREADY_MINED, "a node has it in a block: the receipt will tell"),
    (SendCategory.NONCE_TOO_LOW, "the nonce is consumed, perhaps by these bytes: look up all attempts"),
    (SendCategory.UNKNOWN, "it may be out: keep the nonce, look it up, send the same bytes"),
    (SendCategory.NODE_NOT_READY, "probably not out, but a gateway's 502 proves nothing"),
    (SendCategory.FEE_CAP_EXCEEDED, "this node's own limit: another one may have taken it before"),
    (
        SendCategory.REPLACEMENT_UNDERPRICED,
        "a pool holds another transaction at this nonce: ours or a stranger's",
    ),
    (SendCategory.TYPE_CONFLICT, "a pool holds the account for another transaction type"),
    (SendCategory.DELEGATED_LIMIT, "a narrower window mends it"),
    (SendCategory.UNDERPRICED, "a new quote at the same nonce mends it"),
    (SendCategory.INSUFFICIENT_FUNDS, "a top-up mends it; it goes on by itself"),
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
    """The strongest of at least one; of two alike, the one that places the chain further on."""
    if len(results) == 1:
        return results[0]
    return min(results, key=lambda result: (_RANK[result.category], -(result.chain_nonce or 0)))
