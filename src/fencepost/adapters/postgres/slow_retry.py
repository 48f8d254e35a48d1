"""Retry statements while the database is slow, but not while it is down.

On an overloaded machine a statement can exceed its time-out although the server works: it is retried, up to a time limit. A
server that rejects connections or shuts down is down, and the error is raised at once. Use this only for idempotent work:
reads, and writes that recognize that they were already done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from fencepost.adapters.postgres.pool import Pool

_log = logging.getLogger(__name__)

MAX_SLOW_S = 20.0
RETRY_PAUSE_S = 0.05
# A server time-out may have closed the connection. If the server is down, the next attempt fails to connect.
MAX_BROKEN_CONNECTIONS = 2

_SLOW = (
    TimeoutError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.TransactionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
_BROKEN = (asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.InternalClientError)

Result = TypeVar("Result")


async def repeat_while_slow(work: Callable[[], Awaitable[Result]], *, within_s: float = MAX_SLOW_S) -> Result:
    """Run the work and return its result; repeat it after time-outs, for at most `within_s`."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    broken = 0
    while True:
        try:
            return await work()
        except (*_SLOW, *_BROKEN) as error:
            broken += isinstance(error, _BROKEN)
            took_s = loop.time() - began_s
            if broken > MAX_BROKEN_CONNECTIONS or took_s >= within_s:
                raise
            _log.info("the database is slow (%s after %.1f s): retrying", type(error).__name__, took_s)
        await asyncio.sleep(RETRY_PAUSE_S)


class RetryingReads:
    """The read methods of a pool, retried while the database is slow."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        return await repeat_while_slow(lambda: self._pool.fetch(statement, *values))

    async def fetchrow(self, statement: str, *values: Any) -> asyncpg.Record | None:
        return await repeat_while_slow(lambda: self._pool.fetchrow(statement, *values))

    async def fetchval(self, statement: str, *values: Any) -> Any:
        return await repeat_while_slow(lambda: self._pool.fetchval(statement, *values))
