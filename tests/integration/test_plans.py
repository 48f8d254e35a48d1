"""A plan is made once a connection, perhaps while the tables are empty, and kept: it must be right when they have grown.

So every statement is planned on an empty database, and what it looks up in a table that grows must be found by a key, and
by more of it than the chain, which all rows may share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from fencepost.adapters.postgres.database import PLANNING
from fencepost.adapters.postgres.queries import load_all

GROWING = {"managed_tx", "tx_attempt", "journal_sheet", "signer_lease", "signer_nonce_cursor", "signer_use"}

READS_ALL = {
    "newest_ended_blocks": "from the newest on, as many as are asked for",
    "read_signers": "a page of all signers",
    "read_tx_page": "planned anew each time",
    "read_tx_page_tagged": "planned anew each time",
    "sample_live": "all live rows are what is asked for",
    "signers_with_work": "hops from signer to signer",
    "soonest_expiry": "all leases are what is asked for",
}


@pytest.mark.parametrize("name", sorted(load_all()))
async def test_rows_are_found_by_their_keys(dsn: str, name: str) -> None:
    statement = load_all()[name].sql
    count = len(set(re.findall(r"\$\d+", statement)))
    connection = await asyncpg.connect(dsn, server_settings=PLANNING)
    try:
        await connection.execute(f"PREPARE it AS {statement}")
        values = f"({', '.join(['NULL'] * count)})" if count else ""
        shown = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE it{values}")
    finally:
        await connection.close()
    careless = [scan for scan in _scans(json.loads(shown)[0]["Plan"]) if not _is_by_key(scan)]
    assert name in READS_ALL or not careless


def _scans(plan: dict[str, Any], table: str = "") -> Iterator[dict[str, Any]]:
    table = plan.get("Relation Name", table)
    if plan["Node Type"] != "Bitmap Heap Scan" and plan["Node Type"].endswith("Scan") and table in GROWING:
        yield {"table": table, **plan}
    for part in plan.get("Plans", ()):
        yield from _scans(part, table if plan["Node Type"].startswith("Bitmap") else "")


def _is_by_key(scan: dict[str, Any]) -> bool:
    columns = set(re.findall(r"[a-z_]+", scan.get("Index Cond", ""))) & _KEYS
    return scan["Node Type"] == "Tid Scan" or bool(columns)


_KEYS = {"tx_id", "signer", "tx_hash", "block_number", "incarnation", "xid", "seq", "moment"}
