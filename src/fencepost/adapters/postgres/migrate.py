"""Apply migrations: numbered `.sql` files, each applied once, in order, by the first node that starts.

Any number of nodes may start at once: an advisory lock lets one migrate while the others wait and then find it done. Each
file is applied in one transaction with its record and checksum. If an applied file was changed or is missing, the node does
not start: the schema is not the one that this version expects.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import asyncpg

from fencepost.adapters.postgres.database import CONNECT_ERRORS, Connection, require_supported, unusable
from fencepost.errors import DatabaseUnusable, MigrationError

# One lock for all Fencepost processes of a database.
LOCK_KEY = 0x66656E6365  # "fence"
LOCK_WAIT_S = 60

_CUT_OFF = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InterfaceError,
    OSError,
)

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

_RECORD = """
CREATE TABLE IF NOT EXISTS schema_migration (
  number     integer     PRIMARY KEY,
  name       text        NOT NULL,
  checksum   text        NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Status:
    migration: Migration
    is_applied: bool


def available() -> list[Migration]:
    """Return the migrations of this version, numbered from 1 without a gap."""
    found = []
    for file in resources.files(__package__).joinpath("migrations").iterdir():
        match = _FILE_NAME.fullmatch(file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationError("the numbers of the migration files have a gap: reinstall Fencepost")
    return found


async def apply(
    dsn: str, *, migrations: Sequence[Migration] | None = None, timeout_s: float = 10.0
) -> list[Migration]:
    """Apply the missing migrations and return them."""
    wanted = available() if migrations is None else list(migrations)
    connection = await _connect(dsn, timeout_s)
    try:
        if await _is_up_to_date(connection, wanted):
            return []  # this path needs no privilege to create tables
        await connection.execute(f"SET lock_timeout = '{LOCK_WAIT_S}s'")
        await connection.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        await connection.execute(_RECORD)
        missing = _missing(wanted, await _applied(connection))
        for migration in missing:
            await _apply_one(connection, migration)
    except (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError) as error:
        raise DatabaseUnusable(
            f"migrations are missing, and this role may not apply them ({error}): run `fencepost migrate` as the"
            " owner of the schema, then what `fencepost migrate grants ROLE` prints"
        ) from error
    except asyncpg.LockNotAvailableError as error:
        raise MigrationError(
            f"another node has been migrating for more than {LOCK_WAIT_S} s; try again"
        ) from error
    except _CUT_OFF as error:
        raise MigrationError(
            "the connection broke during a migration; each migration is applied completely or not at all: try again"
        ) from error
    finally:
        await connection.close()  # also releases the lock
    return missing


async def status(dsn: str, *, timeout_s: float = 10.0) -> list[Status]:
    connection = await _connect(dsn, timeout_s)
    try:
        wanted = available()
        missing = _missing(wanted, await _recorded(connection))
    except asyncpg.InsufficientPrivilegeError as error:
        raise _unreadable(error) from error
    finally:
        await connection.close()
    return [Status(migration, is_applied=migration not in missing) for migration in wanted]


async def _connect(dsn: str, timeout_s: float) -> asyncpg.Connection[asyncpg.Record]:
    try:
        connection = await asyncpg.connect(dsn, timeout=timeout_s)
    except CONNECT_ERRORS as error:
        raise unusable(error) from error
    try:
        require_supported(connection.get_server_version().major)
    except DatabaseUnusable:
        await connection.close()
        raise
    return connection


async def _is_up_to_date(connection: Connection, wanted: Sequence[Migration]) -> bool:
    try:
        return not _missing(wanted, await _recorded(connection))
    except asyncpg.InsufficientPrivilegeError as error:
        raise _unreadable(error) from error


async def _recorded(connection: Connection) -> dict[int, tuple[str, str]]:
    exists = await connection.fetchval("SELECT to_regclass('schema_migration') IS NOT NULL")
    return await _applied(connection) if exists else {}


def _unreadable(error: asyncpg.InsufficientPrivilegeError) -> DatabaseUnusable:
    return DatabaseUnusable(
        f"database: {error}: run what `fencepost migrate grants ROLE` prints for this role, as the owner of the tables"
    )


async def _applied(connection: Connection) -> dict[int, tuple[str, str]]:
    found = await connection.fetch("SELECT number, name, checksum FROM schema_migration ORDER BY number")
    return {row["number"]: (row["name"], row["checksum"]) for row in found}


def _missing(wanted: Sequence[Migration], applied: dict[int, tuple[str, str]]) -> list[Migration]:
    """Return the migrations that are not applied; raise if the applied ones differ from those of this version."""
    carried = {migration.number: migration for migration in wanted}
    for number, (name, checksum) in applied.items():
        migration = carried.get(number)
        if migration is None:
            raise MigrationError(
                f"the database has migration {number:04}_{name}, which this version does not know: use a newer one"
            )
        if migration.checksum != checksum:
            raise MigrationError(
                f"migration {number:04}_{name} was changed after it was applied to this database: use the Fencepost"
                " version that created the database, or a new database"
            )
    return [migration for migration in wanted if migration.number not in applied]


async def _apply_one(connection: Connection, migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(migration.sql)
            await connection.execute(
                "INSERT INTO schema_migration (number, name, checksum) VALUES ($1, $2, $3)",
                migration.number,
                migration.name,
                migration.checksum,
            )
    except (asyncpg.InsufficientPrivilegeError, *_CUT_OFF):
        raise
    except asyncpg.PostgresError as error:
        raise MigrationError(f"migration {migration.number:04}_{migration.name} failed: {error}") from error
