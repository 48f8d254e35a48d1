"""Batch the calls that several lanes make in the same loop turn, or while requests are in progress.

There is no fixed delay: the items of a single caller are sent at the end of the loop's turn; more callers share requests
of at most `max_items` items, of which `parallel` are in progress at a time. A caller's items are never split, so they
stay in order; more than `max_items` items of one caller form their own request. Each caller gets the answers to its own
items; an error of a request fails every caller in it, because the outcome is unknown for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class RequestBatcher(Generic[Item, Answer]):
    def __init__(
        self,
        ask: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        max_items: int,
        parallel: int,
    ) -> None:
        self._ask = ask
        self._max_items = max_items
        self._free = parallel
        self._waiting: deque[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._is_scheduled = False
        self._is_closed = False

    async def ask(self, items: Sequence[Item]) -> Sequence[Answer]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[Answer]] = loop.create_future()
        self._waiting.append((items, future))
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._start)
        return await future

    def _start(self) -> None:
        self._is_scheduled = False
        while self._free and self._waiting and not self._is_closed:
            group = self._next_group()
            if not group:
                continue
            self._free -= 1
            # The task outlives a cancelled caller, because other callers share its request.
            task = asyncio.get_running_loop().create_task(self._run(group))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _next_group(self) -> list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]]:
        group: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = []
        count = 0
        while self._waiting and (not group or count + len(self._waiting[0][0]) <= self._max_items):
            items, future = self._waiting.popleft()
            if not future.done():  # the caller may have been cancelled before the request was sent
                group.append((items, future))
                count += len(items)
        return group

    async def _run(self, group: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]]) -> None:
        try:
            answers = await self._ask([item for items, _ in group for item in items])
        except BaseException as error:  # noqa: BLE001 - every caller of the group gets it
            for _, future in group:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                    future.exception()  # mark as retrieved: the caller may be cancelled
        else:
            at = 0
            for items, future in group:
                if not future.done():
                    future.set_result(answers[at : at + len(items)])
                at += len(items)
        finally:
            self._free += 1
            self._start()

    async def aclose(self) -> None:
        """Cancel the requests in progress: no caller waits for them any more."""
        self._is_closed = True
        for _, future in self._waiting:
            future.cancel()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running))
