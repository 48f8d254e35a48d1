"""Convert rows to domain values. The fields that one column each holds follow from the tables in `columns.py`.

Rows contain times as seconds relative to the database's clock; values contain times of the lane's clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from fencepost.adapters.postgres.columns import (
    ATTEMPT_COLUMNS,
    COMMAND_COLUMNS,
    CURSOR_COLUMNS,
    LOADED_COLUMNS,
    QUEUE_COLUMNS,
    Column,
)
from fencepost.adapters.postgres.stored_json import decode_receipt, last_send
from fencepost.application.ports import Command, Cursor, UnreadableRow
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash, Signer, TxHash
from fencepost.domain.send_result import SendCategory
from fencepost.domain.transaction import Call, Fees, SignedTx
from fencepost.domain.transaction_state import Attempt, Intent, Kind, ManagedTx, Receipt

Row = asyncpg.Record


class _Decoder:
    """Decode the fields that one column each holds."""

    def __init__(self, columns: Sequence[Column]) -> None:
        loaded = [(column.field, column) for column in columns if column.field and column.loaded]
        self._columns = [(field, column.source_name) for field, column in loaded]
        self._conversions = [(field, column.decode) for field, column in loaded if column.decode]

    def fields(self, row: Row, now_s: float = 0.0) -> dict[str, Any]:
        """Return the fields by name; `now_s` is needed only where times are loaded."""
        fields = {field: row[name] for field, name in self._columns}
        for field, convert in self._conversions:
            fields[field] = convert(fields[field], now_s)
        return fields


_TX, _QUEUED_TX = _Decoder(LOADED_COLUMNS), _Decoder(QUEUE_COLUMNS)
_ATTEMPT, _CURSOR, _COMMAND = _Decoder(ATTEMPT_COLUMNS), _Decoder(CURSOR_COLUMNS), _Decoder(COMMAND_COLUMNS)


def signer_of(row: Row) -> Signer:
    return Signer(row["chain_id"], Address(row["signer"]))


def signer_arrays(signers: Sequence[Signer]) -> tuple[list[int], list[str]]:
    return [signer.chain_id for signer in signers], [signer.address for signer in signers]


def rows_by_tx(rows: Iterable[Row]) -> dict[UUID, list[Row]]:
    found: dict[UUID, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["tx_id"]].append(row)
    return found


def cursor(row: Row) -> Cursor:
    return Cursor(**_CURSOR.fields(row))


def command(row: Row) -> Command:
    return Command(**_COMMAND.fields(row))


def managed_tx(row: Row, attempts: Sequence[Row], *, now_s: float) -> ManagedTx:
    """Convert a row and its attempts to a transaction. Raises `UnreadableRow`."""
    try:
        return ManagedTx(
            signer=signer_of(row),
            attempts=tuple(map(_attempt, attempts)),
            mined=_mined(row),
            lost_at=_lost_at(row),
            accepted_at_s=row.get("accepted_at_s"),
            age_s=row.get("age_s"),
            **_TX.fields(row, now_s),
        )
    except Exception as error:  # a bad row may fail in any way; it concerns one request only
        raise _unreadable(signer_of(row), row, row["nonce"], error) from error


def queued_tx(signer: Signer, row: Row, *, now_s: float) -> ManagedTx:
    """Convert a row of `load_queues`. Raises `UnreadableRow`."""
    try:
        return ManagedTx(signer=signer, **_QUEUED_TX.fields(row, now_s))
    except Exception as error:  # as in `managed_tx`
        raise _unreadable(signer, row, None, error) from error


def _unreadable(signer: Signer, row: Row, nonce: int | None, error: Exception) -> UnreadableRow:
    """Return the error with a placeholder for the row: enough to drop the request before it has a nonce."""
    placeholder = ManagedTx(
        tx_id=row["tx_id"],
        signer=signer,
        seq=0,
        kind=Kind.INTENT,
        intent=Intent(call=Call(to=signer.address)),
        version=row["version"],
        nonce=nonce,
        journal_count=row["journal_count"],
    )
    return UnreadableRow(placeholder, f"{type(error).__name__}: {error}")


def _attempt(row: Row) -> Attempt:
    sent_count, last_result, last_message = last_send(row["sends"], row["attempt"])
    return Attempt(
        fees=Fees(fee_cap_wei=int(row["fee_cap_wei"]), tip_wei=int(row["tip_wei"])),
        signed=SignedTx(raw=row["raw"], hash=TxHash(row["tx_hash"])),
        sent_count=sent_count,
        last_result=SendCategory(last_result) if last_result else None,
        last_message=last_message,
        **_ATTEMPT.fields(row),
    )


def _mined(row: Row) -> Receipt | None:
    if row["block_hash"] is None or row["receipt"] is None:
        return None
    receipt = decode_receipt(row["receipt"])
    return Receipt(
        tx_hash=TxHash(row["tx_hash"]),
        block=BlockRef(row["block_number"], BlockHash(row["block_hash"])),
        succeeded=int(receipt.get("status", "0x1"), 16) == 1,
        gas_used=int(receipt.get("gasUsed", "0x0"), 16),
        raw=receipt,
    )


def _lost_at(row: Row) -> BlockRef | None:
    """Return the block of a row without a receipt: it showed the nonce consumed by a foreign transaction."""
    if row["block_hash"] is None or row["receipt"] is not None:
        return None
    return BlockRef(row["block_number"], BlockHash(row["block_hash"]))
