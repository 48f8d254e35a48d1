"""Bound the time of requests, as `asyncio.timeout` does, with one timer for all of them.

All requests of one `DeadlineTimer` have the same limit, so the one that began first is due first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


class DeadlineExceeded(TimeoutError):
    """The work was cancelled because its time was over."""


class DeadlineTimer:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._due_s: dict[asyncio.Future[Any], float] = {}  # in the order in which they are due
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, work: Awaitable[T]) -> T:
        """Return the result of the work, or raise `DeadlineExceeded`."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine is awaited in a task
        self.begin(task)
        cancelled_before = task.cancelling()
        try:
            return await work
        except asyncio.CancelledError:
            # Other code may have cancelled the task too; that cancellation is passed on.
            if task not in self._due_s and task.cancelling() == cancelled_before + 1:
                raise DeadlineExceeded from None
            raise
        finally:
            if not self.end(task):
                task.uncancel()

    def begin(self, work: asyncio.Future[Any]) -> None:
        """Start the deadline: the work is cancelled when its time is over, unless `end` comes first."""
        loop = asyncio.get_running_loop()
        due_s = self._due_s[work] = loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = loop.call_at(due_s, self._cancel_overdue)

    def end(self, work: asyncio.Future[Any]) -> bool:
        """Stop the deadline; return whether the work ended in time."""
        return self._due_s.pop(work, None) is not None

    def _cancel_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._timer = None
        for work, due_s in list(self._due_s.items()):
            if due_s > now_s:
                self._timer = loop.call_at(due_s, self._cancel_overdue)
                return
            del self._due_s[work]
            work.cancel()
