"""Compute the privileges that a node's database role needs if another role applies the migrations.

The privileges are derived from the statements themselves, so that a new statement can't be forgotten here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import asyncpg

from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import CONNECT_ERRORS, unusable
from fencepost.adapters.postgres.queries import load_all, sql
from fencepost.errors import DatabaseUnusable

MAX_ROLE_BYTES = 63  # PostgreSQL truncates longer names
_MAX_NAMED = 5  # privileges named in one message

_COMMENT_OR_LITERAL = re.compile(r"--[^\n]*|'[^']*'")
_DRAWN_FROM = re.compile(r"\bnextval\('([a-z_]+)'\)")
_WRITES = (
    ("INSERT", re.compile(r"\bINSERT INTO ([a-z_]+)")),
    ("UPDATE", re.compile(r"(?<!FOR )(?<!DO )(?<!KEY )\bUPDATE ([a-z_]+)")),
    ("UPDATE", re.compile(r"\bINSERT INTO ([a-z_]+)(?=(?:(?!\bINSERT INTO\b).)*\bDO UPDATE\b)")),
    ("DELETE", re.compile(r"\bDELETE FROM ([a-z_]+)")),
)


@cache
def needed_rights() -> Mapping[str, tuple[str, ...]]:
    """Return the privileges on each table and view: SELECT on all of them, and what the statements write."""
    texts = [migration.sql for migration in migrate.available()]
    granted = [name for text in texts for name in re.findall(r"\bCREATE (?:TABLE|VIEW) ([a-z_]+)", text)]
    rights = {name: ["SELECT"] for name in [*granted, "schema_migration"]}
    functions = [body for text in texts for body in re.findall(r"\$\$(.*?)\$\$", text, flags=re.DOTALL)]
    for statement in [*functions, *(query.sql for query in load_all().values())]:
        bare = " ".join(_COMMENT_OR_LITERAL.sub(" ", statement).split())
        for privilege, pattern in _WRITES:
            for name in pattern.findall(bare):
                if privilege not in rights.get(name, (privilege,)):
                    rights[name].append(privilege)
    return {name: tuple(privileges) for name, privileges in rights.items()}


@cache
def drawn_sequences() -> tuple[str, ...]:
    """Return the sequences that statements draw from by name; those of an INSERT's own columns need no privilege."""
    found = {name for query in load_all().values() for name in _DRAWN_FROM.findall(query.sql)}
    return tuple(sorted(found))


def grants(role: str) -> list[str]:
    """Return the statements that give a role what a node needs; the owner of the tables runs them."""
    if not role or "\0" in role or len(role.encode()) > MAX_ROLE_BYTES:
        raise DatabaseUnusable(f"a role name must have 1 to {MAX_ROLE_BYTES} bytes")
    to = '"' + role.replace('"', '""') + '"'
    functions = [
        name
        for migration in migrate.available()
        for name in re.findall(r"\bCREATE FUNCTION ([a-z_]+)", migration.sql)
    ]
    return [
        f"GRANT USAGE ON SCHEMA public TO {to};",
        *(
            f"GRANT {', '.join(privileges)} ON TABLE {name} TO {to};"
            for name, privileges in needed_rights().items()
        ),
        *(f"GRANT USAGE ON SEQUENCE {name} TO {to};" for name in drawn_sequences()),
        *(f"GRANT EXECUTE ON FUNCTION {name} TO {to};" for name in functions),
    ]


async def missing_rights(connection: asyncpg.Connection[asyncpg.Record]) -> str | None:
    """Return one line that names what the connection's role lacks, and what to do; None if it lacks nothing."""
    wanted = [(name, privilege) for name, privileges in needed_rights().items() for privilege in privileges]
    names, privileges = zip(*wanted, strict=True)
    missing = await connection.fetch(
        sql("rights_missing"), list(names), list(privileges), list(drawn_sequences())
    )
    if not missing:
        return None
    role = missing[0]["role"]
    named = [f"{row['privilege']} on {row['name']}" for row in missing[:_MAX_NAMED]]
    if len(missing) > _MAX_NAMED:
        named.append(f"{len(missing) - _MAX_NAMED} more")
    return (
        f"the role {role} lacks {', '.join(named)}: run what `fencepost migrate grants {role}` prints,"
        " as the owner of the tables"
    )


async def require_rights(dsn: str, *, timeout_s: float) -> None:
    """Raise `DatabaseUnusable` with one line if the role of this DSN lacks anything that a node needs."""
    try:
        connection = await asyncpg.connect(dsn, timeout=timeout_s)
    except CONNECT_ERRORS as error:
        raise unusable(error) from error
    try:
        missing = await missing_rights(connection)
    except CONNECT_ERRORS as error:
        raise unusable(error) from error
    finally:
        connection.terminate()
    if missing is not None:
        raise DatabaseUnusable(f"database: {missing}")
