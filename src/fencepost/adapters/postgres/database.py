"""Open connection pools, set and check every connection, and record which chains the database was used with.

Time-outs are derived from the lease: a client that is paused inside a transaction must not lock a lease row for long,
because a take-over waits for it. `transaction_timeout` exists from PostgreSQL 17 on; before that, the idle time-out is enough,
because transactions are one message long. The isolation level is READ COMMITTED throughout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import asyncpg

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import BlockHash
from fencepost.errors import DatabaseUnusable, RpcUnavailable

if TYPE_CHECKING:
    # asyncpg's classes are generic for the type checker only.
    Connection = asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
else:
    Connection = asyncpg.Connection

_log = logging.getLogger(__name__)

OLDEST_SERVER = 15
TRANSACTION_TIMEOUT_SINCE = 17

# Every statement finds its rows by keys, so one generic plan is right for all arguments (planning a commit of one row takes
# longer than running it). A plan made while a table was small must not scan the table after it has grown. No statement
# benefits from JIT or parallel workers.
PLANNING = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "max_parallel_workers_per_gather": "0",
}

# Each try sees the histories that other nodes have recorded meanwhile.
_HISTORY_TRIES = 3

LEASE_CONNECTIONS = 2
LEASE_ANSWER_SHARE = 0.5  # of the lease's duration

# The errors of a connection attempt; `unusable` turns each into one line for the operator.
# (A port above 65535 is an OverflowError.)
CONNECT_ERRORS = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncio.TimeoutError,
    ValueError,
    OverflowError,
)

# The database is down, overloaded or restarting: the same call may succeed later. Any other error is a bug in Fencepost
# and must look like one.
_FAILURES = (
    OSError,  # includes TimeoutError and every kind of broken connection
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server closed the connection while a statement was running
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.InvalidTransactionStateError,  # a transaction timed out, or the server became read-only
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time-outs of a connection, derived from the lease's duration."""

    idle_in_transaction_ms: int
    transaction_ms: int
    lock_ms: int

    @classmethod
    def for_lease(cls, duration_s: float) -> Timeouts:
        ms = duration_s * 1000
        return cls(idle_in_transaction_ms=int(ms / 3), transaction_ms=int(ms / 3), lock_ms=int(ms / 4))

    def statements(self, server_major: int) -> str:
        sets = [
            f"SET idle_in_transaction_session_timeout = {self.idle_in_transaction_ms}",
            f"SET lock_timeout = {self.lock_ms}",
        ]
        if server_major >= TRANSACTION_TIMEOUT_SINCE:
            sets.append(f"SET transaction_timeout = {self.transaction_ms}")
        return "; ".join(sets)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The cluster, its timeline and the database: a change means that commits may have been lost."""

    system_id: int
    timeline: int
    database_oid: int


@dataclass(frozen=True, slots=True)
class RecordedHistory:
    """The current history of the database, from the table `database_history`."""

    number: int  # the upper bits of fencing tokens
    epoch: int  # the first key of the journal's order


class DatabaseHistory:
    """Watches the identity of the server: every new connection is checked before its first use."""

    def __init__(self) -> None:
        self.known: ServerIdentity | None = None
        self.on_change: Callable[[ServerIdentity, ServerIdentity], None] = lambda _before, _after: None

    def met(self, identity: ServerIdentity) -> None:
        before, self.known = self.known, identity
        if before is not None and before != identity:
            self.on_change(before, identity)


@asynccontextmanager
async def open_pool(
    dsn: str,
    *,
    size: int,
    connect_timeout_s: float,
    lease_duration_s: float,
    application: str,
    history: DatabaseHistory | None = None,
    answer_within_s: float | None = None,
) -> AsyncIterator[Pool]:
    """Open a pool whose connections are checked and have time-outs; raise `DatabaseUnusable` with one line if that fails.

    A statement may take `answer_within_s`; by default as long as a lease or a connection attempt, whichever is longer.
    """
    timeouts = Timeouts.for_lease(lease_duration_s)

    async def prepare(connection: Connection) -> None:
        major = connection.get_server_version().major
        require_supported(major)
        await connection.execute(timeouts.statements(major))
        if await connection.fetchval("SELECT pg_is_in_recovery()"):
            raise DatabaseUnusable("the server is a read-only replica: set database.dsn to the primary")
        if history is not None:
            history.met(await identify(connection))
            recorded = await current_history(connection)
            # A connection never changes its database, so all that it writes to the journal belongs to this epoch.
            await connection.execute("SELECT set_config('fencepost.epoch', $1, false)", str(recorded.epoch))

    try:
        driver = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=size,
            timeout=connect_timeout_s,
            init=prepare,
            reset=_keep_session,
            command_timeout=answer_within_s or max(lease_duration_s, connect_timeout_s),
            server_settings={"application_name": application, **PLANNING},
        )
    except CONNECT_ERRORS as error:
        raise unusable(error) from error
    pool = Pool(driver)
    try:
        yield pool
    finally:
        await close_pool(pool)


@dataclass(frozen=True, slots=True)
class Pools:
    """The connections of a node. Leases have their own, so that neither load nor a slow statement delays a renewal.

    `renewing` renews leases and sends heartbeats; `moving` finds, acquires and releases leases. Each is a single connection,
    and a statement that hangs there times out while the lease can still be renewed.
    """

    work: Pool
    renewing: Pool
    moving: Pool


@asynccontextmanager
async def open_pools(
    dsn: str,
    *,
    size: int,
    connect_timeout_s: float,
    lease_duration_s: float,
    application: str,
    history: DatabaseHistory,
) -> AsyncIterator[Pools]:
    """Open the pools of a node, with `size` connections in total."""
    opened = partial(
        open_pool,
        dsn,
        connect_timeout_s=connect_timeout_s,
        lease_duration_s=lease_duration_s,
        application=application,
        history=history,
    )
    soon_s = lease_duration_s * LEASE_ANSWER_SHARE
    async with (
        opened(size=size - LEASE_CONNECTIONS) as work,
        opened(size=1, answer_within_s=soon_s) as renewing,
        opened(size=1, answer_within_s=soon_s) as moving,
    ):
        yield Pools(work, renewing, moving)


def require_supported(server_major: int) -> None:
    if server_major < OLDEST_SERVER:
        raise DatabaseUnusable(f"PostgreSQL {server_major} is too old: upgrade to {OLDEST_SERVER} or later")


async def _keep_session(_connection: Connection) -> None:
    """Keep a released connection as it is: asyncpg's own reset would undo its time-outs (RESET ALL).

    No statement changes connection settings after `prepare`, and asyncpg ends an open transaction in any case.
    """


async def close_pool(pool: Pool, within_s: float = 2.0) -> None:
    """Close the pool gracefully; terminate connections that are still open after `within_s`."""
    try:
        async with asyncio.timeout(within_s):
            await pool.close()
    except TimeoutError:
        await pool.terminate()


async def identify(connection: Connection) -> ServerIdentity:
    row = await connection.fetchrow(
        "SELECT (SELECT system_identifier FROM pg_control_system()) AS system_id,"
        " ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint AS timeline,"
        " (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS database_oid"
    )
    if row is None:
        raise DatabaseUnusable("the server does not report its identity: check that it is PostgreSQL")
    return ServerIdentity(row["system_id"], row["timeline"], row["database_oid"])


async def current_history(connection: Connection) -> RecordedHistory:
    """Return the history of this database; record a new one first if the identity differs from the recorded one.

    Any number of nodes may do this at once: one row is written, and all of them return it. A connection never changes
    its server or its database, so the answer stays right for as long as the connection lives.
    """
    for _ in range(_HISTORY_TRIES):
        row = await connection.fetchrow(sql("history_current"))
        if row is not None:
            return RecordedHistory(row["history"], row["epoch"])
        started = await connection.fetchrow(sql("history_begins"))
        if started is not None:
            _log.warning(
                "%s (system identifier %d, timeline %d, database oid %d): commits may be missing, so every signer's"
                " nonces are compared with the chain before new ones are used",
                "this database is a copy of the one that was used before"
                if started["is_copy"]
                else "this database server was promoted",
                started["system_id"],
                started["timeline"],
                started["database_oid"],
            )
    raise DatabaseUnusable(
        "the table database_history keeps changing: if a restore is running, start Fencepost after it has ended"
    )


def is_failure(error: BaseException) -> bool:
    return isinstance(error, _FAILURES)


@contextmanager
def start_failures_explained() -> Iterator[None]:
    """Turn a failure of the database during a node's start into one line for a person."""
    try:
        yield
    except Exception as error:
        if not is_failure(error):
            raise
        raise DatabaseUnusable(
            f"database: the connection was lost or did not answer during the start ({type(error).__name__}):"
            " start the node again when the database answers"
        ) from error


def unusable(error: BaseException) -> DatabaseUnusable:
    """Describe a connection error in one line, without the password that a DSN may contain."""
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            hint = "the server rejected the user or password: check database.dsn"
        case asyncpg.InvalidCatalogNameError():
            hint = "the database does not exist: create it, or name another one in database.dsn"
        case asyncpg.InsufficientPrivilegeError():
            hint = f"the user lacks a privilege: {error}"
        case asyncpg.TooManyConnectionsError():
            hint = "the server has no connection left: lower database.pool_size or raise max_connections"
        case TimeoutError():
            hint = "the server did not respond in time: check host and port in database.dsn"
        case ConnectionRefusedError():
            hint = "connection refused: check host and port in database.dsn, or leave it empty for an embedded server"
        case OSError():
            hint = f"not reachable ({error.strerror or type(error).__name__}): check host and port in database.dsn"
        case ValueError() | OverflowError() | asyncpg.InterfaceError():
            hint = "database.dsn is not a PostgreSQL address (postgresql://user@host:5432/name)"
        case _:
            hint = f"{type(error).__name__}: {error}"
    return DatabaseUnusable(f"database: {hint}")


async def confirm_genesis(pool: Pool, chain_id: int, genesis: BlockHash) -> BlockHash:
    """Store the first block of a chain if the chain is new to this database; return the stored one."""
    try:
        return BlockHash(await pool.fetchval(sql("chain_genesis"), chain_id, genesis))
    except Exception as error:
        if not is_failure(error):
            raise
        raise RpcUnavailable(
            f"chain {chain_id} can't be used yet: its first block could not be compared with the database"
            f" ({type(error).__name__})"
        ) from error
