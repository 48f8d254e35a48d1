"""Provide the monotonic clock of the process, for deadlines only."""

from __future__ import annotations

import asyncio
import time


class MonotonicClock:
    """Implement the `Clock` port."""

    now_s = staticmethod(time.monotonic)  # no wrapper: it is read about twenty times per transaction

    async def sleep(self, seconds: float) -> None:
        """Suspend the task for at least this time."""
        await asyncio.sleep(seconds)
