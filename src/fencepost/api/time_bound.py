"""A bound on how long calls may take: what `asyncio.timeout` does, with one timer for all calls instead of one each.

All of them may take equally long, so whoever began first is due first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class OutOfTime(Exception):
    """It took longer than it may, and was cancelled."""


class TimeBound:
    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._due_s: dict[asyncio.Future[Any], float] = {}  # in the order in which they are due
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, work: Awaitable[T]) -> T:
        """What comes of the work, or `OutOfTime`."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - whoever awaits this is one
        self.begin(task)
        cancelled_before = task.cancelling()
        try:
            return await work
        except asyncio.CancelledError:
            # Somebody else may have cancelled it too, and is to be obeyed.
            if task not in self._due_s and task.cancelling() == cancelled_before + 1:
                raise OutOfTime from None
            raise
        finally:
            if not self.end(task):
                task.uncancel()

    def begin(self, work: asyncio.Future[Any]) -> None:
        """From now on it is cancelled when its time is over, until `end`."""
        loop = asyncio.get_running_loop()
        due_s = self._due_s[work] = loop.time() + self._within_s
        if self._timer is None:
            self._timer = loop.call_at(due_s, self._cancel_those_due)

    def end(self, work: asyncio.Future[Any]) -> bool:
        """Whether that was in time."""
        return self._due_s.pop(work, None) is not None

    def _cancel_those_due(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = None
        for work, due_s in list(self._due_s.items()):
            if due_s > now_s:
                self._timer = loop.call_at(due_s, self._cancel_those_due)
                return
            del self._due_s[work]
            work.cancel()
