"""What a node said to a send, as a value. The texts that lead here stand in `adapters/evm/node_errors.py`."""

from __future__ import annotations

from enum import StrEnum

from fencepost.domain.ids import TxHash
from fencepost.domain.value import Value


class SendCategory(StrEnum):
    ACCEPTED = "accepted"
    ALREADY_KNOWN = "already_known"
    ALREADY_MINED = "already_mined"
    NONCE_TOO_LOW = "nonce_too_low"
    NONCE_TOO_HIGH = "nonce_too_high"
    REPLACEMENT_UNDERPRICED = "replacement_underpriced"
    UNDERPRICED = "underpriced"
    POOL_FULL = "pool_full"
    DELEGATED_LIMIT = "delegated_limit"
    TYPE_CONFLICT = "type_conflict"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    FEE_CAP_EXCEEDED = "fee_cap_exceeded"
    FATAL = "fatal"
    TERMINALLY_STUCK = "terminally_stuck"
    NODE_NOT_READY = "node_not_ready"
    UNKNOWN = "unknown"


# After these the bytes may be out; everything else is a plain refusal by a node that looked at them.
POSSIBLY_SENT = frozenset(
    {
        SendCategory.ACCEPTED,
        SendCategory.ALREADY_KNOWN,
        SendCategory.ALREADY_MINED,
        SendCategory.NONCE_TOO_LOW,
        SendCategory.FEE_CAP_EXCEEDED,
        SendCategory.NODE_NOT_READY,
        SendCategory.UNKNOWN,
    }
)


class SendResult(Value, frozen=True):
    """`message` is what the node said, shortened and without secrets; `returned_hash` what it answered, if anything."""

    category: SendCategory
    message: str = ""
    returned_hash: TxHash | None = None
    chain_nonce: int | None = None  # "nonce too low: next nonce 82" says where the chain is
