"""The pool, and what every connection of ours is held to.

Connections carry time-outs derived from the lease: a client that is paused inside a transaction must not hold a lease
row for long, because a take-over waits for it. `transaction_timeout` exists from PostgreSQL 17 on; before that the
idle time-out does it, together with transactions that are one message long. Isolation is READ COMMITTED throughout.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import asyncpg

from fencepost.adapters.postgres.pool import Pool
from fencepost.errors import DatabaseUnusable

if TYPE_CHECKING:
    # asyncpg's classes are generic for the type checker only.
    Connection = asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
else:
    Connection = asyncpg.Connection

OLDEST_SERVER = 15
TRANSACTION_TIMEOUT_SINCE = 17

# Every statement of ours finds its rows by keys, so one plan is right for all its arguments: it is made once and kept
# (planning a commit of one row takes longer than the commit). One that was made while a table was small must not read
# all of it when it has grown. None is worth starting other processes for.
PLANNING = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "max_parallel_workers_per_gather": "0",
}

LEASE_CONNECTIONS = 2
LEASE_ANSWER_SHARE = 0.5  # of the lease's duration

# What a connection attempt can end in, apart from success: each is told to a person in one line.
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

# The database is away, overloaded or about to restart: the same call may succeed later. Everything else that it says
# is a mistake of ours, and must look like one.
_FAILURES = (
    OSError,  # TimeoutError and every kind of broken connection are among them
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server ended the session while a statement was under way
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.InvalidTransactionStateError,  # a transaction's time is over, or the server became read-only
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a connection may hold things up, from the lease's duration."""

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
    """Which cluster, and which of its histories: a change means that commits may have been lost."""

    system_id: int
    timeline: int


class History:
    """Watches which history the connections meet: every new one is asked before it is used for anything else."""

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
    history: History | None = None,
    answer_within_s: float | None = None,
) -> AsyncIterator[Pool]:
    """A pool whose connections are checked and bounded; what is wrong with the server is said in one line.

    A statement may take `answer_within_s`, else as long as a lease or a connection attempt, whichever is longer.
    """
    timeouts = Timeouts.for_lease(lease_duration_s)

    async def prepare(connection: Connection) -> None:
        major = connection.get_server_version().major
        require_supported(major)
        await connection.execute(timeouts.statements(major))
        if await connection.fetchval("SELECT pg_is_in_recovery()"):
            raise DatabaseUnusable("the server is a read-only replica: give the DSN of the primary")
        if history is not None:
            history.met(await identify(connection))

    try:
        driver = await asyncpg.create_pool(
            dsn,
            min_size=1,
            max_size=size,
            timeout=connect_timeout_s,
            init=prepare,
            reset=_as_it_is,
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
    """The connections of a node. Leases have their own, so that no crowd and no slow statement delays a renewal.

    `renewing` says that we live (leases, heartbeats); `moving` seeks, takes and gives back leases. Each is a single
    connection, and a statement that hangs there is given up while the lease can still be renewed.
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
    history: History,
) -> AsyncIterator[Pools]:
    """`size` connections in all."""
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
        raise DatabaseUnusable(f"PostgreSQL {server_major} is too old: {OLDEST_SERVER} or later is needed")


async def _as_it_is(_connection: Connection) -> None:
    """Back in the pool, a connection keeps its time-outs: the driver's own reset would undo them (RESET ALL).

    Nothing here changes a session after it was prepared, and the driver ends an open transaction in any case.
    """


async def close_pool(pool: Pool, within_s: float = 2.0) -> None:
    """Politely first; a connection that hangs is cut."""
    try:
        async with asyncio.timeout(within_s):
            await pool.close()
    except TimeoutError:
        pool.terminate()


async def identify(connection: Connection) -> ServerIdentity:
    row = await connection.fetchrow(
        "SELECT (SELECT system_identifier FROM pg_control_system()) AS system_id,"
        " ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint AS timeline"
    )
    if row is None:
        raise DatabaseUnusable("the server does not say who it is")
    return ServerIdentity(system_id=row["system_id"], timeline=row["timeline"])


def is_failure(error: BaseException) -> bool:
    return isinstance(error, _FAILURES)


def unusable(error: BaseException) -> DatabaseUnusable:
    """One line for a person, without the password that a DSN may carry."""
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            hint = "the server refuses this user or password: check database.dsn"
        case asyncpg.InvalidCatalogNameError():
            hint = "the database does not exist: create it, or name another one in database.dsn"
        case asyncpg.InsufficientPrivilegeError():
            hint = f"this user lacks a right: {error}"
        case asyncpg.TooManyConnectionsError():
            hint = "the server has no connection left: lower database.pool_size or raise max_connections"
        case TimeoutError():
            hint = "no answer in time: check host and port in database.dsn"
        case ConnectionRefusedError():
            hint = "nothing listens there: check host and port in database.dsn, or leave it empty for an embedded server"
        case OSError():
            hint = f"not reachable ({error.strerror or type(error).__name__}): check host and port in database.dsn"
        case ValueError() | OverflowError() | asyncpg.InterfaceError():
            hint = "database.dsn is not a PostgreSQL address (postgresql://user@host:5432/name)"
        case _:
            hint = f"{type(error).__name__}: {error}"
    return DatabaseUnusable(f"database: {hint}")
