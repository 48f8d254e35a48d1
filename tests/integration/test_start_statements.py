"""The statements of a node's start stay fast with millions of finished transactions.

The test uses the statistics of a grown table and counts the rows that the plans read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import asyncpg

from fencepost.adapters.postgres.database import PLANNING
from fencepost.adapters.postgres.queries import load_all
from fencepost.runtime.head_follower import ENDED_BLOCKS_PAGE

CHAIN_ID = 31_337
ENDED = 30_000
MAX_ROWS_READ = 2_000

ARGUMENTS: dict[str, tuple[object, ...]] = {
    "history_current": (),
    "young_history": (10_800.0,),
    "keys_exist": (),
    "newest_ended_blocks": (CHAIN_ID, ENDED_BLOCKS_PAGE, 2**62),
    "nodes_live": (),
    "policies_list": (),
    "sample_live": (),
    "signers_with_work": ([CHAIN_ID], 2.0, 200, 0, ""),
    "soonest_expiry": (UUID(int=0),),
}


async def _grow(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    await connection.execute(
        "INSERT INTO managed_tx (tx_id, chain_id, signer, request_id, kind, payload, payload_digest, state, is_live,"
        "  nonce, tx_hash, block_number, block_hash, finished_at)"
        " SELECT gen_random_uuid(), $1, '0x' || lpad(to_hex(n % 50), 40, '0'), n::text, 'intent', '{}', sha256(''),"
        "  'CONFIRMED', false, n / 50, '0x' || lpad(to_hex(n), 64, '0'), n / 3, '0x' || lpad(to_hex(n / 3), 64, '0'),"
        "  clock_timestamp()"
        "  FROM generate_series(1, $2::bigint) n",
        CHAIN_ID,
        ENDED,
    )
    await connection.execute(
        "INSERT INTO managed_tx (tx_id, chain_id, signer, request_id, kind, payload, payload_digest)"
        " SELECT gen_random_uuid(), $1, '0x' || lpad(to_hex(n % 5), 40, '0'), 'live' || n, 'intent', '{}', sha256('')"
        "  FROM generate_series(1, 20) n",
        CHAIN_ID,
    )
    await connection.execute("VACUUM ANALYZE managed_tx")


async def test_no_start_statement_reads_finished_transactions(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, server_settings=PLANNING)
    try:
        await _grow(connection)
        read = {name: await _rows_read(connection, name, values) for name, values in ARGUMENTS.items()}
    finally:
        await connection.close()
    assert {name: rows for name, rows in read.items() if rows > MAX_ROWS_READ} == {}
    assert read["newest_ended_blocks"] >= ENDED_BLOCKS_PAGE  # the count includes what is read


async def test_the_count_sees_a_statement_that_reads_everything(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, server_settings=PLANNING)
    try:
        await _grow(connection)
        plan = await _explained(connection, "SELECT max(seq) FROM managed_tx", ())
    finally:
        await connection.close()
    assert sum(_reads(plan)) >= ENDED


async def _rows_read(
    connection: asyncpg.Connection[asyncpg.Record], name: str, values: tuple[object, ...]
) -> int:
    return sum(_reads(await _explained(connection, load_all()[name].sql, values)))


async def _explained(
    connection: asyncpg.Connection[asyncpg.Record], statement: str, values: tuple[object, ...]
) -> dict[str, Any]:
    shown = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
    plan: dict[str, Any] = json.loads(shown)[0]["Plan"]
    return plan


def _reads(plan: dict[str, Any]) -> Iterator[int]:
    if plan["Node Type"].endswith("Scan") and plan.get("Relation Name") == "managed_tx":
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield int(rows * plan["Actual Loops"])
    for part in plan.get("Plans", ()):
        yield from _reads(part)
