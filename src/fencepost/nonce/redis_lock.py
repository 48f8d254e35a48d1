"""A lock a signer in Redis, to keep a crowd away from one row of the database. Nothing rests on it.

SET NX PX with a value that only its owner knows; only who has the value deletes it (in Lua, so that looking and
deleting are one step), and only after the transaction has ended, well or not. The time to live bounds what a dead
owner costs. Without an answer from Redis, or without the lock in time, the caller goes on without it: PostgreSQL alone
keeps order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from fencepost.domain.ids import Signer
from fencepost.nonce.redis_link import RedisDown, RedisLink

_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
_RETRY_S = 0.002
_RETRY_S_MAX = 0.05


class RedisLock:
    def __init__(self, link: RedisLink, *, ttl_s: float = 5.0, wait_s: float = 1.0) -> None:
        self.link = link
        self._ttl_ms = int(ttl_s * 1000)
        self._wait_s = wait_s

    @asynccontextmanager
    async def hold(self, signer: Signer) -> AsyncIterator[bool]:
        """True inside if the lock was had."""
        key, owner = f"fencepost:nonce:lock:{signer}", uuid4().hex
        has_it = await self._take(key, owner)
        try:
            yield has_it
        finally:
            if has_it:
                with suppress(RedisDown):  # then it ends by itself
                    await self.link.command("EVAL", _RELEASE, 1, key, owner)

    async def _take(self, key: str, owner: str) -> bool:
        give_up_s = time.monotonic() + self._wait_s
        pause_s = _RETRY_S
        try:
            while not await self.link.command("SET", key, owner, "NX", "PX", self._ttl_ms):
                if time.monotonic() > give_up_s:
                    return False
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _RETRY_S_MAX)
        except RedisDown:
            return False
        return True
