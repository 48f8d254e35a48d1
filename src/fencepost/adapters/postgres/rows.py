"""Between rows and values. Times come as seconds relative to the database's clock, and become the lane's clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from fencepost.application.intents import from_payload
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.managed import Attempt, Kind, ManagedTx, Purpose, Receipt
from fencepost.domain.send import SendCategory
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import Fees, SignedTx, TxType

Row = asyncpg.Record

# Most receipts have no logs, and 514 characters that say so: they would be written with every version of the row.
_BLOOM, _NO_LOGS, _NO_LOGS_STORED = "logsBloom", "0x" + "0" * 512, "0x"


def signer_of(row: Row) -> Signer:
    return Signer(row["chain_id"], Address(row["signer"]))


def signer_arrays(signers: Sequence[Signer]) -> tuple[list[int], list[str]]:
    return [signer.chain_id for signer in signers], [signer.address for signer in signers]


def attempts_by_tx(rows: Iterable[Row]) -> dict[UUID, list[Attempt]]:
    found: dict[UUID, list[Attempt]] = defaultdict(list)
    for row in rows:
        found[row["tx_id"]].append(_attempt(row))
    return found


def _attempt(row: Row) -> Attempt:
    sent_count, last_result, last_message = last_send(row)
    return Attempt(
        number=row["attempt"],
        purpose=Purpose(row["purpose"]),
        type=TxType(row["tx_type"]),
        gas=row["gas"],
        fees=Fees(fee_cap_wei=int(row["fee_cap_wei"]), tip_wei=int(row["tip_wei"])),
        signed=SignedTx(raw=row["raw"], hash=TxHash(row["tx_hash"])),
        sent_count=sent_count,
        last_result=SendCategory(last_result) if last_result else None,
        last_message=last_message,
    )


def managed_tx(row: Row, attempts: Sequence[Attempt], *, now_s: float) -> ManagedTx:
    return ManagedTx(
        tx_id=row["tx_id"],
        signer=signer_of(row),
        seq=row["seq"],
        kind=Kind(row["kind"]),
        intent=from_payload(row["payload"]),
        request_id=row["request_id"],
        origin=row["origin"],
        version=row["version"],
        state=State(row["state"]),
        sub_state=SubState(row["sub_state"]) if row["sub_state"] else None,
        nonce=row["nonce"],
        ending=State(row["ending"]) if row["ending"] else None,
        error=row["error"],
        attempts=tuple(attempts),
        mined=_mined(row),
        confirmations=_confirmations(row["confirmations"]),
        submit_count=row["submit_count"],
        journal_count=row["journal_count"],
        last_submit_s=None if row["submitted_ago_s"] is None else now_s - row["submitted_ago_s"],
        resubmit_due_s=None if row["resubmit_in_s"] is None else now_s + row["resubmit_in_s"],
        valid_until_s=None if row["valid_for_s"] is None else now_s + row["valid_for_s"],
    )


def queued_tx(signer: Signer, columns: Sequence[Any], *, now_s: float) -> ManagedTx:
    """A row of `load_queues`, by position: many are read at once, and names are looked up one by one."""
    tx_id, seq, kind, payload, request_id, origin, version, sub_state, error, journal_count, valid, ago = (
        columns
    )
    return ManagedTx(
        tx_id=tx_id,
        signer=signer,
        seq=seq,
        kind=Kind(kind),
        intent=from_payload(payload),
        request_id=request_id,
        origin=origin,
        version=version,
        sub_state=SubState(sub_state) if sub_state else None,
        error=error,
        journal_count=journal_count,
        valid_until_s=None if valid is None else now_s + valid,
        received_s=now_s - ago,
    )


def _mined(row: Row) -> Receipt | None:
    if row["block_hash"] is None:
        return None
    receipt = decode_receipt(row["receipt"])
    return Receipt(
        tx_hash=TxHash(row["tx_hash"]),
        block=BlockRef(row["block_number"], BlockHash(row["block_hash"])),
        succeeded=int(receipt.get("status", "0x1"), 16) == 1,
        gas_used=int(receipt.get("gasUsed", "0x0"), 16),
        raw=receipt,
    )


def encode_receipt(receipt: Mapping[str, Any]) -> str | None:
    if receipt.get(_BLOOM) == _NO_LOGS:
        receipt = {**receipt, _BLOOM: _NO_LOGS_STORED}
    return msgspec.json.encode(receipt).decode() if receipt else None


def decode_receipt(text: str) -> dict[str, Any]:
    """As the node gave it."""
    receipt: dict[str, Any] = msgspec.json.decode(text)
    if receipt.get(_BLOOM) == _NO_LOGS_STORED:
        receipt[_BLOOM] = _NO_LOGS
    return receipt


def _confirmations(text: str | None) -> tuple[BlockRef, ...]:
    if text is None:
        return ()
    return tuple(BlockRef(number, BlockHash(block_hash)) for number, block_hash in msgspec.json.decode(text))


def encode_confirmations(blocks: Sequence[BlockRef]) -> str | None:
    return msgspec.json.encode([(block.number, block.hash) for block in blocks]).decode() if blocks else None


def encode_sends(attempts: Sequence[Attempt]) -> str:
    return _encoded_sends(
        tuple(
            [(attempt.sent_count, attempt.last_result, attempt.last_message[:2000]) for attempt in attempts]
        )
    )


@lru_cache(maxsize=256)  # nearly all of them say the same: sent once, and accepted
def _encoded_sends(sends: tuple[tuple[int, SendCategory | None, str], ...]) -> str:
    return msgspec.json.encode(sends).decode()


def last_send(row: Row) -> tuple[int, str | None, str]:
    """How often an attempt was sent, and what was said of it last."""
    sends = msgspec.json.decode(row["sends"] or "[]")
    place = row["attempt"] - 1
    return tuple(sends[place]) if place < len(sends) else (0, None, "")
