"""Represent an endpoint's answer to a send as a value. `adapters/evm/node_errors.py` maps its error texts to these."""

from __future__ import annotations

from enum import StrEnum

from fencepost.domain.ids import TxHash
from fencepost.domain.struct import Struct


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
    TYPE_NOT_SUPPORTED = "type_not_supported"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    FEE_CAP_EXCEEDED = "fee_cap_exceeded"
    FATAL = "fatal"
    TERMINALLY_STUCK = "terminally_stuck"
    NODE_NOT_READY = "node_not_ready"
    UNKNOWN = "unknown"


# After these the bytes may have been sent. All others are rejections by an endpoint that examined the bytes.
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


class SendResult(Struct, frozen=True):
    """The result of one send.

    `message` is the endpoint's error text, shortened and without secrets. `returned_hash` is the hash that it returned.
    """

    category: SendCategory
    message: str = ""
    returned_hash: TxHash | None = None
    chain_nonce: int | None = None  # the chain's nonce, from texts like "nonce too low: next nonce 82"
