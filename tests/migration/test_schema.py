"""The schema that the migrations produce, stored in `schema.txt` so that a review shows each change.

FENCEPOST_UPDATE_SCHEMA=1 ./dev test tests/migration/test_schema.py    writes the file again
"""

from __future__ import annotations

import os
from pathlib import Path

import asyncpg

from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import Connection
from fencepost.domain.states import TRANSITIONS, State

RECORDED = Path(__file__).with_name("schema.txt")

_TABLES = """
SELECT c.relname AS name, array_to_string(c.reloptions, ', ') AS options
  FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p')
 ORDER BY c.relname
"""

_COLUMNS = """
SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS is_required,
       pg_get_expr(d.adbin, d.adrelid) AS value, a.attidentity::text AS identity
  FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
"""

# From PostgreSQL 18 on, NOT NULL is a named constraint; this listing shows it with the column.
_CONSTRAINTS = """
SELECT conname AS name, pg_get_constraintdef(oid) AS definition
  FROM pg_constraint WHERE conrelid = $1::text::regclass AND contype <> 'n'
 ORDER BY conname
"""

_INDEXES = """
SELECT pg_get_indexdef(i.indexrelid) AS definition
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = $1::text::regclass AND NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = i.indexrelid)
 ORDER BY c.relname
"""

_DOMAINS = """
SELECT t.typname AS name, format_type(t.typbasetype, t.typtypmod) AS type, pg_get_constraintdef(k.oid) AS definition
  FROM pg_type t LEFT JOIN pg_constraint k ON k.contypid = t.oid
 WHERE t.typnamespace = 'public'::regnamespace AND t.typtype = 'd'
 ORDER BY t.typname
"""

_OTHERS = """
SELECT p.proname AS name FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
 UNION ALL
SELECT t.tgname FROM pg_trigger t WHERE NOT t.tgisinternal
 ORDER BY name
"""


async def described(connection: Connection) -> str:
    lines: list[str] = []
    for table in await connection.fetch(_TABLES):
        lines += [f"table {table['name']}" + (f" with ({table['options']})" if table["options"] else "")]
        for column in await connection.fetch(_COLUMNS, table["name"]):
            words = [
                f"  {column['name']} {column['type']}",
                "not null" if column["is_required"] else "",
                {"a": "identity always", "d": "identity by default"}.get(column["identity"], ""),
                f"default {column['value']}" if column["value"] else "",
            ]
            lines.append(" ".join(word for word in words if word))
        lines += [
            f"  constraint {row['name']}: {row['definition']}"
            for row in await connection.fetch(_CONSTRAINTS, table["name"])
        ]
        lines += [f"  {row['definition']}" for row in await connection.fetch(_INDEXES, table["name"])]
        lines.append("")
    lines += [
        f"domain {row['name']} {row['type']}: {row['definition']}" for row in await connection.fetch(_DOMAINS)
    ]
    lines += [f"function or trigger {row['name']}" for row in await connection.fetch(_OTHERS)]
    return "\n".join(lines)


async def schema_of(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return await described(connection)
    finally:
        await connection.close()


async def test_the_migrations_produce_the_stored_schema(empty_dsn_of_each: str) -> None:
    await migrate.apply(empty_dsn_of_each)
    schema = await schema_of(empty_dsn_of_each)
    if os.environ.get("FENCEPOST_UPDATE_SCHEMA") == "1":
        RECORDED.write_text(schema, encoding="utf-8")
    assert schema == RECORDED.read_text(encoding="utf-8"), (
        "see the head of this file for how to write it anew"
    )


async def test_the_database_allows_exactly_the_transitions_of_the_domain(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT old_state, new_state FROM unnest($1::text[]) AS o (old_state)"
            " CROSS JOIN unnest($1::text[]) AS n (new_state) WHERE may_follow(old_state, new_state)",
            list(State),
        )
    finally:
        await connection.close()
    assert {(row["old_state"], row["new_state"]) for row in rows} == {
        (old.value, new.value) for old, new in TRANSITIONS
    }


_LIVE_WITH = {  # live or not, with a nonce, in a block: None where either is right
    State.QUEUED: (True, False, None),
    State.ALLOCATED: (True, True, None),
    State.SUBMITTED: (True, True, None),
    State.TRACKING: (True, True, True),
    State.SUSPENDED: (True, None, None),
    State.CONFIRMED: (False, True, True),
    State.FAILED: (False, None, None),
    State.CANCELLED: (False, None, None),
}


async def test_the_database_enforces_the_required_columns_of_each_state(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT s.state, l.is_live, n.nonce IS NOT NULL, b.block IS NOT NULL AND h.hash IS NOT NULL"
            "  FROM unnest($1::text[]) s (state), (VALUES (true), (false)) l (is_live),"
            "       (VALUES (NULL::bigint), (7)) n (nonce), (VALUES (NULL::bigint), (9)) b (block),"
            "       (VALUES (NULL), ('0x')) h (hash), (VALUES (NULL), (now())) f (finished_at)"
            " WHERE managed_tx_is_consistent(s.state, l.is_live, n.nonce, b.block, h.hash, f.finished_at)",
            [*State, "UNKNOWN"],
        )
    finally:
        await connection.close()
    # Each combination once: a finishing time unless it is live, a whole block or none.
    assert sorted(map(tuple, rows)) == sorted(
        (state.value, is_live, has_nonce, has_block)
        for state, (is_live, nonce, block) in _LIVE_WITH.items()
        for has_nonce in (True, False)
        for has_block in (True, False)
        if nonce in (None, has_nonce) and block in (None, has_block)
    )
