"""PostgreSQL plans a statement once per connection, perhaps on empty tables, and keeps the plan: it must still be right later.

So the test plans every statement on an empty database. Each lookup in a growing table must use a key, and more of it than the
chain id, which all rows may share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from fencepost.adapters.postgres.database import PLANNING
from fencepost.adapters.postgres.lane_writer import MAX_ROWS_BY_VALUE
from fencepost.adapters.postgres.queries import compose, load_all
from fencepost.adapters.postgres.sources import COMMIT_SOURCES

GROWING = {"managed_tx", "tx_attempt", "journal_batch", "signer_lease", "signer_nonce_cursor", "signer_use"}

READS_ALL = {
    "all_signers": "every signer is what `fencepost restore` compares, once, by hand",
    "history_begins": "all leases, once in the life of a copy",
    "read_signers": "a page of all signers",
    "read_tx_page": "planned anew each time",
    "read_tx_page_tagged": "planned anew each time",
    "sample_cluster": "all live rows and all signers are what is counted",
    "sample_live": "all live rows are what is asked for",
    "signers_with_work": "hops from signer to signer",
    "soonest_expiry": "all leases are what is asked for",
}


# The fenced write with rows by value is planned differently from the one with arrays.
async def test_the_fenced_write_of_few_rows_finds_them_by_key(dsn: str) -> None:
    for count in (1, MAX_ROWS_BY_VALUE):
        sources, first = [], 1
        for source in COMMIT_SOURCES:
            sources.append(source.from_values(first, count))
            first += count * len(source.arguments)
        assert not await careless(dsn, compose("commit_lanes", sources, load_all()["commit_lanes"].parts))


@pytest.mark.parametrize("name", sorted(load_all()))
async def test_rows_are_found_by_key(dsn: str, name: str) -> None:
    assert name in READS_ALL or not await careless(dsn, load_all()[name].sql)


async def test_no_statement_uses_custom_types(dsn: str) -> None:
    """The driver would look each type up on every connection, which takes milliseconds."""
    connection = await asyncpg.connect(dsn, server_settings=PLANNING)
    try:
        unknown = {}
        for name, query in load_all().items():
            statement = await connection.prepare(query.sql)
            types = [*statement.get_parameters(), *(column.type for column in statement.get_attributes())]
            unknown[name] = {found.name for found in types if found.schema != "pg_catalog"}
    finally:
        await connection.close()
    assert {name: types for name, types in unknown.items() if types} == {}


async def careless(dsn: str, statement: str) -> list[dict[str, Any]]:
    """Return what it would not look up by a key."""
    parameters = len(set(re.findall(r"\$\d+", statement)))
    connection = await asyncpg.connect(dsn, server_settings=PLANNING)
    try:
        await connection.execute(f"PREPARE it AS {statement}")
        values = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
        shown = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE it{values}")
    finally:
        await connection.close()
    return [scan for scan in _scans(json.loads(shown)[0]["Plan"]) if not _is_by_key(scan)]


def _scans(plan: dict[str, Any], table: str = "") -> Iterator[dict[str, Any]]:
    table = plan.get("Relation Name", table)
    if plan["Node Type"] != "Bitmap Heap Scan" and plan["Node Type"].endswith("Scan") and table in GROWING:
        yield {"table": table, **plan}
    for part in plan.get("Plans", ()):
        yield from _scans(part, table if plan["Node Type"].startswith("Bitmap") else "")


def _is_by_key(scan: dict[str, Any]) -> bool:
    columns = set(re.findall(r"[a-z_]+", scan.get("Index Cond", ""))) & _KEYS
    return scan["Node Type"] == "Tid Scan" or bool(columns)


_KEYS = {"tx_id", "signer", "tx_hash", "block_number", "incarnation", "xid", "seq", "id_prefix"}
