"""Lock a signer in Redis, so that callers do not queue at one row of the database. Correctness does not depend on it.

The lock is SET NX PX with a random value. Only the owner of the value deletes it (in Lua, so that comparing and deleting are
atomic), and only after the transaction has committed or failed. The TTL bounds how long a dead owner blocks others. If Redis
does not respond, or the lock is not free in time, the caller continues without it: PostgreSQL alone keeps the order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from fencepost.domain.ids import Signer
from fencepost.nonce.redis_client import RedisClient, RedisDown

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_RETRY_INTERVAL_S = 0.002
_MAX_RETRY_INTERVAL_S = 0.05


class RedisLock:
    def __init__(self, redis: RedisClient, *, ttl_s: float = 5.0, wait_s: float = 1.0) -> None:
        self.redis = redis
        self._ttl_ms = int(ttl_s * 1000)
        self._wait_s = wait_s

    @asynccontextmanager
    async def hold(self, signer: Signer) -> AsyncIterator[bool]:
        """Hold the lock while the context is open; yield whether it was acquired."""
        key, owner = f"fencepost:nonce:lock:{signer}", uuid4().hex
        is_acquired = await self._acquire(key, owner)
        try:
            yield is_acquired
        finally:
            if is_acquired:
                with suppress(RedisDown):  # the lock then expires
                    await self.redis.command("EVAL", _RELEASE, 1, key, owner)

    async def _acquire(self, key: str, owner: str) -> bool:
        deadline_s = time.monotonic() + self._wait_s
        pause_s = _RETRY_INTERVAL_S
        try:
            while not await self.redis.command("SET", key, owner, "NX", "PX", self._ttl_ms):
                if time.monotonic() > deadline_s:
                    return False
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _MAX_RETRY_INTERVAL_S)
        except RedisDown:
            return False
        return True
