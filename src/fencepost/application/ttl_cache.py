"""Cache values for a short time, so that repeated requests do not repeat a database statement.

A value expires `ttl_s` after its read *started*, however long the read took. Concurrent callers of the same key share
one read, which runs in its own task: a caller that is cancelled does not cancel it for the others. A read that fails
raises in every caller that waits for it, and is not cached.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class TtlCache(Generic[Key, Value]):
    """Read values with `read`, and keep the newest `max_entries` of them for `ttl_s`."""

    def __init__(
        self,
        read: Callable[[Key], Awaitable[Value]],
        *,
        ttl_s: float,
        max_entries: int = 1,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._ttl_s = ttl_s
        self._max_entries = max_entries
        self._now_s = now_s
        self._cached: OrderedDict[Key, tuple[float, Value]] = OrderedDict()  # with its expiry
        self._reads: dict[
            Key, tuple[float, asyncio.Task[Value]]
        ] = {}  # running, with the expiry of the value

    async def get(self, key: Key) -> Value:
        """Return the cached value of a key, or read it."""
        now_s = self._now_s()
        cached = self._cached.get(key)
        if cached is not None and now_s <= cached[0]:
            return cached[1]
        read = self._reads.get(key)
        if read is None or now_s > read[0]:
            read = self._start_read(key, now_s + self._ttl_s)
        return await asyncio.shield(read[1])

    def _start_read(self, key: Key, until_s: float) -> tuple[float, asyncio.Task[Value]]:
        read = until_s, asyncio.get_running_loop().create_task(self._read_and_store(key, until_s))
        self._reads[key] = read

        def on_done(task: asyncio.Task[Value]) -> None:
            if self._reads.get(key) is read:
                del self._reads[key]
            if not task.cancelled():
                task.exception()  # mark it as retrieved: all callers may be gone

        read[1].add_done_callback(on_done)
        return read

    async def _read_and_store(self, key: Key, until_s: float) -> Value:
        value = await self._read(key)
        cached = self._cached.get(key)
        if cached is None or cached[0] < until_s:  # a slow read does not replace a later one
            self._cached[key] = until_s, value
            self._cached.move_to_end(key)
            while len(self._cached) > self._max_entries:
                self._cached.popitem(last=False)
        return value
