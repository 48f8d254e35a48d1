"""A clock that a test moves. Sleepers wake when it has moved far enough."""

from __future__ import annotations

import asyncio


class FakeClock:
    def __init__(self, start_s: float = 1_000.0) -> None:
        self._now_s = start_s
        self._moved = asyncio.Event()

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now_s += seconds
        self._moved.set()

    async def sleep(self, seconds: float) -> None:
        until_s = self._now_s + seconds
        while self._now_s < until_s:  # ends when a test has moved the clock far enough
            self._moved.clear()
            await self._moved.wait()
