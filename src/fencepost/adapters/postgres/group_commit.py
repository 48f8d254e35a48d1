"""Many callers, one statement: what arrives while a batch is on its way becomes the next batch.

There is no fixed delay: a batch closes when the one before returns, or at the end of the loop's turn in which its first
caller came. So a lone caller waits for nobody, and a crowd, which often comes in one turn, shares the cost of a commit.
Each caller gets its own result; an error of the batch reaches everyone in it, because nobody can know what it did.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# What it brought, who waits, and whether for a list: results of one who brought several come together.
_Caller = tuple[Sequence[Item], asyncio.Future[Any], bool]


class GroupCommit(Generic[Item, Result]):
    """Runs `flush` over batches of at most `most_items`, up to `parallel` at a time, while it is entered."""

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        most_items: int,
        parallel: int,
        beside_after_s: float | Callable[[], float] = 0.0,
        few: int = 0,
    ) -> None:
        """A batch begins beside another only when that has taken `beside_after_s`: until then it may grow instead.

        Beside one of a `few` items it begins at once: then nobody comes in crowds, and waiting would gain nothing.
        """
        self._flush = flush
        self._most_items = most_items
        self._parallel = parallel
        self._free = parallel
        self._beside_after_s = beside_after_s if callable(beside_after_s) else lambda: beside_after_s
        self._few = few
        self._begun_s = 0.0  # the youngest batch
        self._begun_items = 0
        self._ended_s = -math.inf  # the last batch
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False  # a batch will begin when this turn of the loop is over
        self._waiting: deque[_Caller[Item]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Result:
        return await self.put(item)

    def put(self, item: Item) -> asyncio.Future[Result]:
        """As `submit`, for whoever does not wait in a task."""
        return self._put((item,), is_several=False)

    async def submit_all(self, items: Sequence[Item]) -> Sequence[Result]:
        """Of one caller, who waits for all of them: they share a batch, which is as large as they need."""
        results: Sequence[Result] = await self._put(items, is_several=True)
        return results

    def _put(self, items: Sequence[Item], *, is_several: bool) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((items, future, is_several))
        if self._free and not self._is_closing:
            self._is_closing = True
            loop.call_soon(self._close)
        return future

    def _close(self) -> None:
        self._is_closing = False
        self._start()

    def _start(self) -> None:
        while self._free and self._waiting and self._may_begin():
            batch = self._take()
            self._free -= 1
            self._begun_items = sum([len(brought) for brought, _, _ in batch])
            # The task outlives a caller that goes away: others share its batch. It is kept, and it ends by itself.
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _take(self) -> list[_Caller[Item]]:
        batch: list[_Caller[Item]] = []
        left = self._most_items
        while self._waiting and (not batch or len(self._waiting[0][0]) <= left):
            caller = self._waiting.popleft()
            left -= len(caller[0])
            batch.append(caller)
        return batch

    def rested_s(self) -> float:
        """How long nothing has been under way."""
        if self._free < self._parallel or self._waiting:
            return 0.0
        return asyncio.get_running_loop().time() - self._ended_s

    def _may_begin(self) -> bool:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        left_s = self._begun_s + self._beside_after_s() - now_s
        if self._free == self._parallel or self._begun_items <= self._few or left_s <= 0:
            self._begun_s = now_s
            return True
        if self._timer is None:
            self._timer = loop.call_later(left_s, self._look_again)
        return False

    def _look_again(self) -> None:
        self._timer = None
        self._start()

    async def _run(self, batch: list[_Caller[Item]]) -> None:
        try:
            items = [item for brought, _, _ in batch for item in brought]
            results = await self._flush(items)
            if len(results) != len(items):
                raise ValueError(f"{len(items)} were written, {len(results)} answered for")  # noqa: TRY301 - as any error
        except BaseException as error:  # noqa: BLE001 - it is handed to every caller of the batch, none is swallowed
            for _, future, _ in batch:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                    future.exception()  # a caller that went away does not make it an unretrieved one
        else:
            place = 0
            for brought, future, is_several in batch:
                if not future.done():
                    future.set_result(results[place : place + len(brought)] if is_several else results[place])
                place += len(brought)
        finally:
            self._free += 1
            self._ended_s = asyncio.get_running_loop().time()
            self._start()

    async def drain(self) -> None:
        """Wait for what is on its way."""
        while self._running or self._waiting:
            await (asyncio.wait(set(self._running)) if self._running else asyncio.sleep(0))
