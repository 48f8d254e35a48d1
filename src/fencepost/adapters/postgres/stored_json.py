"""Encode and decode the JSON columns of transactions: receipt, confirmations, and what became of each send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import BlockHash
from fencepost.domain.send_result import SendCategory
from fencepost.domain.transaction_state import Attempt

# Most receipts have no logs and an empty bloom of 514 characters, which every version of the row would repeat.
_BLOOM, _NO_LOGS, _NO_LOGS_STORED = "logsBloom", "0x" + "0" * 512, "0x"


def encode_receipt(receipt: Mapping[str, Any]) -> str | None:
    if receipt.get(_BLOOM) == _NO_LOGS:
        receipt = {**receipt, _BLOOM: _NO_LOGS_STORED}
    return msgspec.json.encode(receipt).decode() if receipt else None


def decode_receipt(text: str) -> dict[str, Any]:
    """Decode a receipt as the endpoint returned it."""
    receipt: dict[str, Any] = msgspec.json.decode(text)
    if receipt.get(_BLOOM) == _NO_LOGS_STORED:
        receipt[_BLOOM] = _NO_LOGS
    return receipt


def encode_confirmations(blocks: Sequence[BlockRef]) -> str | None:
    return msgspec.json.encode([(block.number, block.hash) for block in blocks]).decode() if blocks else None


def decode_confirmations(text: str | None) -> tuple[BlockRef, ...]:
    if text is None:
        return ()
    return tuple(BlockRef(number, BlockHash(block_hash)) for number, block_hash in msgspec.json.decode(text))


def encode_sends(attempts: Sequence[Attempt]) -> str:
    return _encoded_sends(
        tuple(
            [(attempt.sent_count, attempt.last_result, attempt.last_message[:2000]) for attempt in attempts]
        )
    )


@lru_cache(maxsize=256)  # nearly all are the same: sent once, and accepted
def _encoded_sends(sends: tuple[tuple[int, SendCategory | None, str], ...]) -> str:
    return msgspec.json.encode(sends).decode()


def last_send(sends: str | None, attempt: int) -> tuple[int, str | None, str]:
    """Return how often an attempt was sent, its last result, and the message of that result."""
    found = msgspec.json.decode(sends or "[]")
    return tuple(found[attempt - 1]) if attempt <= len(found) else (0, None, "")
