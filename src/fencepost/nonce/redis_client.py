"""Connect to Redis with a circuit breaker.

`redis` is an optional package, imported only here and only if a scheme needs it. `command` and `pipeline` return results or
raise `RedisDown`. After `max_failures` failures in a row the circuit opens and calls fail at once; `probe` checks at
intervals whether Redis is back, and a success closes the circuit.

`generation` increases with every failure: a scheme that keeps state in Redis checks that state after it changes, because a
restarted server may have lost data. A connection to a different server than the previous one counts as such a failure, once,
before any command is sent: the client reconnects by itself, so a fail-over would otherwise go unnoticed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from fencepost.errors import Unready
from fencepost.nonce.port import EventSink, ignore_event

if TYPE_CHECKING:
    from redis.asyncio import Redis

MAX_CONNECTIONS = 64


class RedisDown(Exception):
    """Redis did not respond; the command may have been executed."""


class RedisClient:
    def __init__(
        self,
        url: str,
        *,
        max_failures: int = 3,
        probe_interval_s: float = 5.0,
        timeout_s: float = 1.0,
        now_s: Callable[[], float] = time.monotonic,
        note: EventSink = ignore_event,
    ) -> None:
        self._client, self._errors, self._script_missing = _connect(url, timeout_s, self._check_server)
        self._server: str | None = None  # run id of the last server
        self.generation = 0
        self._failures_max = max_failures
        self._probe_every_s = probe_interval_s
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._note = note
        self._failures = 0
        self._lost_at_s: float | None = None  # when Redis stopped responding
        self._probe_at_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether the circuit is closed."""
        return self._failures < self._failures_max

    async def command(self, *command: Any) -> Any:
        return (await self.pipeline([command]))[0]

    async def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the results in order; one rejected command fails them all."""
        if not self.is_up:
            raise RedisDown("Redis failed repeatedly; Fencepost probes it until it is back")
        return await self._execute(commands)

    async def _execute(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                pipe = self._client.pipeline(transaction=False)
                for command in commands:
                    pipe.execute_command(*command)
                results: list[Any] = await pipe.execute()
        except self._errors as error:
            self._failures += 1
            self.generation += 1
            self._probe_at_s = self._now_s() + self._probe_every_s
            if isinstance(
                error, self._script_missing
            ):  # a server that restarted responds, without the scripts
                raise RedisDown("Redis has restarted; the scripts are loaded again") from error
            if self._lost_at_s is None:
                self._lost_at_s = self._now_s()
                self._note("redis_lost", error=type(error).__name__)
            raise RedisDown(f"Redis did not respond ({type(error).__name__})") from error
        self._failures = 0
        if self._lost_at_s is not None:
            self._note("redis_found", after_s=round(self._now_s() - self._lost_at_s, 1))
            self._lost_at_s = None
        return results

    async def _check_server(self, connection: Any) -> None:
        """Reject the connection once if it reaches another server than the last one did."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        info = str(await connection.read_response())
        run_id = next((line for line in info.splitlines() if line.startswith("run_id:")), None)
        previous, self._server = self._server, run_id
        if previous not in (None, run_id):
            self.generation += 1
            raise ConnectionResetError("the Redis server has changed")

    async def probe(self) -> bool:
        """Return whether Redis is up; send a PING only if it was down and the probe is due."""
        if self.is_up:
            return True
        if self._now_s() < self._probe_at_s:
            return False
        try:
            await self._execute([("PING",)])
        except RedisDown:
            return False
        return True

    async def close(self) -> None:
        await self._client.aclose()


def _connect(
    url: str, timeout_s: float, on_connect: Callable[[Any], Awaitable[None]]
) -> tuple[Redis, tuple[type[Exception], ...], type[Exception]]:
    """Return the client, the errors that mean that Redis can't be used, and the one for a script that it has not loaded."""
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.exceptions import NoScriptError, RedisError
    except ImportError as error:
        raise Unready('this nonce scheme needs the Redis client: pip install "fencepost[redis]"') from error
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            decode_responses=True,
            retry=None,
            redis_connect_func=on_connect,
        )
    except ValueError as error:
        raise Unready("nonce_service.redis_url is not a Redis address (redis://host:6379/0)") from error
    # uvloop raises RuntimeError on a write to a connection that was just closed.
    return Redis.from_pool(pool), (RedisError, OSError, TimeoutError, RuntimeError), NoScriptError
