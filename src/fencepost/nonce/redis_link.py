"""Redis as something that may fail: a client made on demand, and a switch that turns away from it and back.

`redis` is an optional package, imported here only and only when a scheme asks for it. `command` and `pipeline` give
answers, or raise `RedisDown`. After `failures_max` failures in a row it does not try any more; `probe` asks from time to
time whether Redis is back, and then the switch closes by itself.

`generation` grows with every failure: whoever keeps something in Redis looks at it again after that, because a server
that was away may have forgotten. A connection that meets another server than the last one did counts as such a failure,
once, before anything is asked of it: the client connects again by itself, and a fail-over would go unnoticed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from fencepost.errors import Unready

if TYPE_CHECKING:
    from redis.asyncio import Redis

MOST_CONNECTIONS = 64


class RedisDown(Exception):
    """No answer from Redis; what was asked may have been done."""


class RedisLink:
    def __init__(
        self,
        url: str,
        *,
        failures_max: int = 3,
        probe_every_s: float = 5.0,
        timeout_s: float = 1.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._errors = _connect(url, timeout_s, self._meet)
        self._server: str | None = None  # whom we met last
        self.generation = 0
        self._failures_max = failures_max
        self._probe_every_s = probe_every_s
        self._timeout_s = timeout_s
        self._now_s = now_s
        self._failures = 0
        self._probe_at_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether it is worth a try."""
        return self._failures < self._failures_max

    async def command(self, *command: Any) -> Any:
        return (await self.pipeline([command]))[0]

    async def pipeline(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Answers in order; one that Redis refuses fails them all."""
        if not self.is_up:
            raise RedisDown("Redis has failed too often; it is probed")
        return await self._ask(commands)

    async def _ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                pipe = self._client.pipeline(transaction=False)
                for command in commands:
                    pipe.execute_command(*command)
                answers: list[Any] = await pipe.execute()
        except self._errors as error:
            self._failures += 1
            self.generation += 1
            self._probe_at_s = self._now_s() + self._probe_every_s
            raise RedisDown(f"Redis gave no answer ({type(error).__name__})") from error
        self._failures = 0
        return answers

    async def _meet(self, connection: Any) -> None:
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        told = str(await connection.read_response())
        met = next((line for line in told.splitlines() if line.startswith("run_id:")), None)
        known, self._server = self._server, met
        if known not in (None, met):
            self.generation += 1
            raise ConnectionResetError("this is another server than before")

    async def probe(self) -> bool:
        """Whether Redis is up; asks only if it was down and the time has come."""
        if self.is_up:
            return True
        if self._now_s() < self._probe_at_s:
            return False
        try:
            await self._ask([("PING",)])
        except RedisDown:
            return False
        return True

    async def close(self) -> None:
        await self._client.aclose()


def _connect(
    url: str, timeout_s: float, meet: Callable[[Any], Awaitable[None]]
) -> tuple[Redis, tuple[type[Exception], ...]]:
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.exceptions import RedisError
    except ImportError as error:
        raise Unready('this nonce scheme needs Redis: pip install "fencepost[redis]"') from error
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MOST_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            decode_responses=True,
            retry=None,
            redis_connect_func=meet,
        )
    except ValueError as error:
        raise Unready("nonce_service.redis_url is not a Redis address (redis://host:6379/0)") from error
    # uvloop says RuntimeError when a connection that was just cut is written to.
    return Redis.from_pool(pool), (RedisError, OSError, TimeoutError, RuntimeError)
