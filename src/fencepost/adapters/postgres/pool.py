"""Keep connections acquired between statements.

asyncpg's pool resets a connection each time it is released, in a separate task: two thirds of the client's cost of a small
statement. A statement that succeeded leaves nothing to reset, so this pool keeps its connection for the next statement. After
an error, a time-out, a cancelled caller or a transaction, the connection goes back to asyncpg's pool, which waits, resets or
closes as usual.

`close` serves the callers that wait for a connection, and `terminate` fails them. asyncpg's pool would
open a connection for each of them, one after another, and fail them only then, after the caller of `close` has gone on.

A caller that waits for a connection has priority over keeping one. No connection is kept unused for longer than asyncpg
would keep it. Unlike asyncpg's pool, this one does not close a connection after a number of statements: the memory of the
server process for prepared statements does not grow (6.2 MiB after 1,000 statements of a ledger, 6.6 MiB after 200,000).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

if TYPE_CHECKING:
    # asyncpg's classes are generic for the type checker only.
    DriverPool = asyncpg.Pool[asyncpg.Record]
    _PooledConnection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
else:
    DriverPool = asyncpg.Pool

Result = TypeVar("Result")

_MAX_UNUSED_S: Final = 300.0


class Pool:
    def __init__(self, driver: DriverPool) -> None:
        self._driver = driver
        # With the time of the last use; the most recent comes last.
        self._kept: deque[tuple[float, _PooledConnection]] = deque()
        self._acquiring: set[asyncio.Future[_PooledConnection]] = set()  # of callers that wait
        self._is_closing = False

    async def fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        return await self._run(lambda connection: connection.fetch(statement, *values))

    async def fetchrow(self, statement: str, *values: Any) -> asyncpg.Record | None:
        return await self._run(lambda connection: connection.fetchrow(statement, *values))

    async def fetchval(self, statement: str, *values: Any) -> Any:
        return await self._run(lambda connection: connection.fetchval(statement, *values))

    async def execute(self, statement: str, *values: Any) -> str:
        return await self._run(lambda connection: connection.execute(statement, *values))

    async def _run(self, run: Callable[[_PooledConnection], Awaitable[Result]]) -> Result:
        connection = await self._acquire()
        try:
            result = await run(connection)
        except BaseException:
            await self._driver.release(connection)
            raise
        await self._keep(connection)
        return result

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[_PooledConnection]:
        """Acquire a connection for several statements."""
        connection = await self._acquire()
        try:
            yield connection
        finally:
            await self._driver.release(connection)

    async def _acquire(self) -> _PooledConnection:
        self._end_unused()
        while self._kept:
            _, connection = self._kept.pop()
            if _is_open(connection):
                return connection
            await self._driver.release(connection)
        acquiring = asyncio.ensure_future(self._driver.acquire())
        self._acquiring.add(acquiring)
        try:
            return await acquiring
        except asyncio.CancelledError:
            if not acquiring.cancelled() and acquiring.done() and acquiring.exception() is None:
                await self._driver.release(acquiring.result())  # it came while the caller was cancelled
            elif acquiring not in self._acquiring:  # `terminate` cancelled it, not the caller
                raise asyncpg.InterfaceError("the pool was closed before a connection was free") from None
            raise
        finally:
            self._acquiring.discard(acquiring)

    async def _keep(self, connection: _PooledConnection) -> None:
        if self._acquiring or self._is_closing:
            await self._driver.release(connection)
        else:
            self._kept.append((time.monotonic(), connection))

    def _end_unused(self) -> None:
        oldest_s = time.monotonic() - _MAX_UNUSED_S
        while self._kept and self._kept[0][0] < oldest_s:
            _, connection = self._kept.popleft()
            if _is_open(connection):
                connection.terminate()

    async def close(self) -> None:
        self._is_closing = True
        while self._kept:
            await self._driver.release(self._kept.pop()[1])
        while self._acquiring:
            await asyncio.wait(set(self._acquiring))
            await asyncio.sleep(0)  # the callers go on
        await self._driver.close()

    async def terminate(self) -> None:
        """Close all connections at once; fail the callers that use one, and those that wait for one."""
        acquiring, self._acquiring = self._acquiring, set()
        for waiting in acquiring:
            waiting.cancel()
        if acquiring:
            await asyncio.wait(acquiring)
        self._driver.terminate()

    # ---- sizes

    def get_size(self) -> int:
        return self._driver.get_size()

    def get_idle_size(self) -> int:
        return self._driver.get_idle_size() + len(self._kept)

    def get_max_size(self) -> int:
        return self._driver.get_max_size()


def _is_open(connection: _PooledConnection) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # asyncpg's pool has taken it back, because it was closed meanwhile
        return False
