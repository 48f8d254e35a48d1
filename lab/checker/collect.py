"""Read the history of a quiet system: all database rows, all blocks, and the fenced terms in the nodes' logs.

The server must keep commit times (`track_commit_timestamp`): bytes count as stored when their transaction committed.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.postgres.database import Connection
from fencepost.errors import EmbeddedError
from lab.checker.history import (
    AttemptRow,
    ChainBlock,
    ChainTx,
    CursorRow,
    FencedNote,
    JournalLine,
    Snapshot,
    TermRow,
    TxRow,
    effect_of,
)
from lab.proxies.rpc_proxy import as_chain_tx

_BLOCKS_AT_ONCE = 200


async def terms(connection: Connection) -> tuple[TermRow, ...]:
    rows = await connection.fetch(
        "SELECT signer, fencing_token, owner_node, extract(epoch FROM acquired_at)::float8 AS began_s,"
        " sealed_snapshot::text AS sealed FROM lease_term ORDER BY signer, fencing_token"
    )
    return tuple(
        TermRow(r["signer"], r["fencing_token"], r["owner_node"], r["began_s"], Snapshot.parse(r["sealed"]))
        for r in rows
    )


async def lines(connection: Connection, *, after_xid: int = 0) -> tuple[JournalLine, ...]:
    rows = await connection.fetch(
        "SELECT id, xid::text::bigint AS xid, signer, event, tx_id::text AS tx_id, state, detail, fencing_token,"
        " extract(epoch FROM coalesce(pg_xact_commit_timestamp(xid::xid), at))::float8 AS committed_s"
        " FROM journal WHERE xid > $1::text::xid8 ORDER BY id",
        str(after_xid),
    )
    return tuple(
        JournalLine(
            id=r["id"],
            xid=r["xid"],
            signer=r["signer"],
            event=r["event"],
            tx_id=r["tx_id"],
            state=r["state"],
            detail=json.loads(r["detail"]) if r["detail"] else {},
            token=r["fencing_token"],
            committed_s=r["committed_s"],
        )
        for r in rows
    )


async def txs(connection: Connection) -> tuple[TxRow, ...]:
    rows = await connection.fetch(
        "SELECT tx_id::text AS tx_id, signer, request_id, state, payload, nonce, tx_hash, block_number, block_hash,"
        " fencing_token, xmin::text::bigint AS xid FROM managed_tx ORDER BY seq"
    )
    return tuple(
        TxRow(
            tx_id=r["tx_id"],
            signer=r["signer"],
            request_id=r["request_id"],
            state=r["state"],
            effect=effect_of_payload(json.loads(r["payload"])),
            nonce=r["nonce"],
            tx_hash=r["tx_hash"],
            block_number=r["block_number"],
            block_hash=r["block_hash"],
            token=r["fencing_token"],
            xid=r["xid"],
        )
        for r in rows
    )


def effect_of_payload(payload: dict[str, Any]) -> str:
    return effect_of(
        to=payload.get("to"), value_wei=int(payload.get("value", 0)), data=payload.get("data", "0x")
    )


async def attempts(connection: Connection) -> tuple[AttemptRow, ...]:
    rows = await connection.fetch(
        "SELECT tx_id::text AS tx_id, attempt, signer, nonce, purpose, raw, fee_cap_wei, tip_wei, tx_hash, fencing_token,"
        " tx_type, xmin::text::bigint AS xid FROM tx_attempt ORDER BY tx_id, attempt"
    )
    return tuple(
        AttemptRow(
            tx_id=r["tx_id"],
            number=r["attempt"],
            signer=r["signer"],
            nonce=r["nonce"],
            purpose=r["purpose"],
            effect=as_chain_tx(r["raw"]).effect,
            fee_cap_wei=int(r["fee_cap_wei"]),
            tip_wei=int(r["tip_wei"]),
            hash=r["tx_hash"],
            token=r["fencing_token"],
            xid=r["xid"],
            tx_type=r["tx_type"],
        )
        for r in rows
    )


async def cursors(connection: Connection) -> tuple[CursorRow, ...]:
    rows = await connection.fetch(
        "SELECT signer, start_nonce, next_nonce, state, fencing_token, xmin::text::bigint AS xid FROM signer_nonce_cursor"
    )
    return tuple(
        CursorRow(r["signer"], r["start_nonce"], r["next_nonce"], r["state"], r["fencing_token"], r["xid"])
        for r in rows
    )


async def blocks(rpc: JsonRpc) -> tuple[ChainBlock, ...]:
    head = int(await rpc.call("eth_blockNumber", []), 16)
    found: list[ChainBlock] = []
    for start in range(0, head + 1, _BLOCKS_AT_ONCE):
        numbers = range(start, min(start + _BLOCKS_AT_ONCE, head + 1))
        answers = await rpc.batch([("eth_getBlockByNumber", [hex(number), True]) for number in numbers])
        for number, said in zip(numbers, answers, strict=True):
            if isinstance(said, Exception):
                raise said
            if said is None:
                raise EmbeddedError(f"the chain's node has lost its own block {number}")
            found.append(
                ChainBlock(int(said["number"], 16), said["hash"], tuple(map(_chain_tx, said["transactions"])))
            )
    return tuple(found)


async def pool(rpc: JsonRpc) -> tuple[ChainTx, ...]:
    content = await rpc.call("txpool_content", [])
    return tuple(
        _chain_tx(tx)
        for part in ("pending", "queued")
        for of_sender in content[part].values()
        for tx in of_sender.values()
    )


def _chain_tx(tx: dict[str, Any]) -> ChainTx:
    effect = effect_of(to=tx.get("to"), value_wei=int(tx["value"], 16), data=tx["input"])
    return ChainTx(tx["hash"], tx["from"].lower(), int(tx["nonce"], 16), effect)


def fenced(logs: Path) -> tuple[FencedNote, ...]:
    """Return the terms that nodes logged as fenced; the logs are JSON lines."""
    notes: list[FencedNote] = []
    for log in sorted(logs.glob("*.log*")):
        with log.open(encoding="utf-8", errors="replace") as lines_:
            for line in lines_:
                if '"message":"fenced"' not in line:
                    continue
                try:
                    said = json.loads(line)
                except ValueError:
                    continue  # cut off by a kill
                at_s = datetime.fromisoformat(said["at"]).timestamp()
                notes.append(FencedNote(at_s, _address(said["signer"]), int(said["token"])))
    return tuple(notes)


def _address(signer: str | dict[str, Any]) -> str:
    return signer["address"] if isinstance(signer, dict) else signer.rpartition(":")[2]
