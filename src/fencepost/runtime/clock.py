"""The process's own clock: monotonic, for deadlines only."""

from __future__ import annotations

import asyncio
import time


class MonotonicClock:
    now_s = staticmethod(time.monotonic)  # read some twenty times a transaction

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
