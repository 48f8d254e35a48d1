"""What was read a moment ago is believed for a moment: a call costs no statement for what the one before it asked.

A value is believed for `believe_s` from when its reading *began*, however long that took. However many ask for the same
at once, it is read once: by a task of its own, so that a caller who goes away takes nothing from the others. A reading
that fails is told to everyone who waits for it, and is not remembered.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    def __init__(
        self,
        read: Callable[[Key], Awaitable[Value]],
        *,
        believe_s: float,
        most: int = 1,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._believe_s = believe_s
        self._most = most
        self._now_s = now_s
        self._known: OrderedDict[Key, tuple[float, Value]] = OrderedDict()  # until when, and what
        self._readings: dict[Key, tuple[float, asyncio.Task[Value]]] = {}

    async def get(self, key: Key) -> Value:
        now_s = self._now_s()
        known = self._known.get(key)
        if known is not None and now_s <= known[0]:
            return known[1]
        reading = self._readings.get(key)
        if reading is None or now_s > reading[0]:
            reading = self._begin(key, now_s + self._believe_s)
        return await asyncio.shield(reading[1])

    def _begin(self, key: Key, until_s: float) -> tuple[float, asyncio.Task[Value]]:
        # It is kept until it ends, which it does by itself.
        reading = until_s, asyncio.get_running_loop().create_task(self._learn(key, until_s))
        self._readings[key] = reading

        def ended(task: asyncio.Task[Value]) -> None:
            if self._readings.get(key) is reading:
                del self._readings[key]
            if not task.cancelled():
                task.exception()  # those who wait for it are told; nobody has to

        reading[1].add_done_callback(ended)
        return reading

    async def _learn(self, key: Key, until_s: float) -> Value:
        value = await self._read(key)
        known = self._known.get(key)
        if known is None or known[0] < until_s:  # a slow reading does not undo a later one
            self._known[key] = until_s, value
            self._known.move_to_end(key)
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return value
