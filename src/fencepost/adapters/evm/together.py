"""Many callers, few requests: what several lanes ask in the same turn, or while requests are under way, goes together.

There is no fixed delay: a lone caller's items go out at the end of the loop's turn, and the others share requests of at
most `most` items, of which `parallel` are under way at a time. A caller's items are never split, so their order holds:
one that brings more than `most` goes alone. Each caller gets the answers to its own items; an error of the request as a
whole reaches everyone in it, because nobody can know what it did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Together(Generic[Item, Answer]):
    def __init__(
        self,
        ask: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        most: int,
        parallel: int,
    ) -> None:
        self._ask = ask
        self._most = most
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
            # The task outlives a caller that goes away: others share its request. It is kept, and it ends by itself.
            task = asyncio.get_running_loop().create_task(self._run(group))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _next_group(self) -> list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]]:
        group: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]] = []
        count = 0
        while self._waiting and (not group or count + len(self._waiting[0][0]) <= self._most):
            items, future = self._waiting.popleft()
            if not future.done():  # whoever asked may have gone away before it went out
                group.append((items, future))
                count += len(items)
        return group

    async def _run(self, group: list[tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]]) -> None:
        try:
            answers = await self._ask([item for items, _ in group for item in items])
        except BaseException as error:  # noqa: BLE001 - it is handed to every caller of the group, none is swallowed
            for _, future in group:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                    future.exception()  # a caller that went away does not make it an unretrieved one
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
        """Give up what is under way: nobody waits for it any more, or nobody should."""
        self._is_closed = True
        for _, future in self._waiting:
            future.cancel()
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running))
