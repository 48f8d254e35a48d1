"""A plan is made once a connection, perhaps while the tables are empty, and kept: it must be right when they have grown.

So every statement is planned on an empty database, and what it looks up in a table that grows must be found by a key, and
by more of it than the chain, which all rows may share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import asyncpg
import pytest

from fencepost.adapters.postgres import migrate
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


# A server does not tell how it plans what stands in a function: so these are planned by themselves.
_FUNCTION = migrate.available()[0].sql.partition("CREATE FUNCTION commit_lane(")[2]
IN_THE_FUNCTION = [
    found.replace("PERFORM", "SELECT")
    for found in re.findall(r"\b(?:PERFORM|UPDATE) [^;]*\bWHERE [^;]*", _FUNCTION)
]


def test_the_function_of_one_lane_looks_up_lease_cursor_and_transactions() -> None:
    assert [re.findall(r"(?:FROM|UPDATE) ([a-z_]+)", found)[0] for found in IN_THE_FUNCTION] == [
        "signer_lease",
        "signer_nonce_cursor",
        "managed_tx",
    ]


@pytest.mark.parametrize("name", sorted(load_all()))
async def test_rows_are_found_by_their_keys(dsn: str, name: str) -> None:
    assert name in READS_ALL or not await careless(dsn, load_all()[name].sql)


async def test_no_statement_speaks_of_types_of_our_own(dsn: str) -> None:
    """The driver would ask what they are, on each connection that meets the statement, and that takes milliseconds."""
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


@pytest.mark.parametrize("statement", IN_THE_FUNCTION, ids=lambda text: " ".join(text.split()[:2]))
async def test_rows_are_found_by_their_keys_in_the_function_of_one_lane(dsn: str, statement: str) -> None:
    numbers = count(1)
    assert not await careless(dsn, re.sub(r"\b(?:lane|c)\.[a-z_]+", lambda _: f"${next(numbers)}", statement))


async def careless(dsn: str, statement: str) -> list[dict[str, Any]]:
    """What it would not look up by a key."""
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


_KEYS = {"tx_id", "signer", "tx_hash", "block_number", "incarnation", "xid", "seq", "moment"}
