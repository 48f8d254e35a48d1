"""Batch the items of many callers into one statement: items that arrive while a batch runs form the next batch.

There is no fixed delay: a batch closes when the previous one returns, or at the end of the event loop iteration in which its
first item arrived. So a single caller does not wait, and callers that arrive together share the cost of a commit. Each
caller gets its own result; an error of the batch is raised to every caller in it, because the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# The items, the caller's future, and whether the future gets a list of results or a single one.
_Caller = tuple[Sequence[Item], asyncio.Future[Any], bool]


class GroupCommit(Generic[Item, Result]):
    """Run `flush` over batches of at most `max_items`, up to `parallel` at a time."""

    def __init__(
        self,
        flush: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        max_items: int,
        parallel: int,
        overlap_after_s: float | Callable[[], float] = 0.0,
        few: int = 0,
    ) -> None:
        """Create it; batches overlap only under these conditions.

        A batch starts while another one runs only after that one has run for `overlap_after_s`: until then the new batch
        grows. If the running batch has at most `few` items, the new one starts at once: load is low, and waiting would
        save nothing.
        """
        self._flush = flush
        self._max_items = max_items
        self._parallel = parallel
        self._free = parallel
        self._overlap_after_s = overlap_after_s if callable(overlap_after_s) else lambda: overlap_after_s
        self._few = few
        self._started_s = 0.0  # start of the latest batch
        self._started_items = 0
        self._ended_s = -math.inf  # end of the last batch
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False  # a batch will start at the end of this event loop iteration
        self._waiting: deque[_Caller[Item]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Result:
        return await self.put(item)

    def put(self, item: Item) -> asyncio.Future[Result]:
        """Submit an item and return a future of its result, for callers that are not coroutines."""
        return self._put((item,), is_several=False)

    async def submit_all(self, items: Sequence[Item]) -> Sequence[Result]:
        """Submit the items of one caller in one batch, however large, and return all results."""
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
        while self._free and self._waiting and self._may_start():
            batch = self._next_batch()
            self._free -= 1
            self._started_items = sum([len(caller_items) for caller_items, _, _ in batch])
            # The task outlives a cancelled caller, because other callers share its batch.
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _next_batch(self) -> list[_Caller[Item]]:
        batch: list[_Caller[Item]] = []
        left = self._max_items
        while self._waiting and (not batch or len(self._waiting[0][0]) <= left):
            caller = self._waiting.popleft()
            left -= len(caller[0])
            batch.append(caller)
        return batch

    def idle_s(self) -> float:
        """Return for how long no batch has been running or waiting."""
        if self._free < self._parallel or self._waiting:
            return 0.0
        return asyncio.get_running_loop().time() - self._ended_s

    def _may_start(self) -> bool:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        left_s = self._started_s + self._overlap_after_s() - now_s
        if self._free == self._parallel or self._started_items <= self._few or left_s <= 0:
            self._started_s = now_s
            return True
        if self._timer is None:
            self._timer = loop.call_later(left_s, self._on_timer)
        return False

    def _on_timer(self) -> None:
        self._timer = None
        self._start()

    async def _run(self, batch: list[_Caller[Item]]) -> None:
        try:
            items = [item for caller_items, _, _ in batch for item in caller_items]
            results = await self._flush(items)
            if len(results) != len(items):
                raise ValueError(f"flush returned {len(results)} results for {len(items)} items")  # noqa: TRY301 - as any error
        except BaseException as error:  # noqa: BLE001 - every caller of the batch gets it, none is swallowed
            for _, future, _ in batch:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                    future.exception()  # avoids asyncio's "exception was never retrieved" if the caller was cancelled
        else:
            position = 0
            for caller_items, future, is_several in batch:
                if not future.done():
                    future.set_result(
                        results[position : position + len(caller_items)] if is_several else results[position]
                    )
                position += len(caller_items)
        finally:
            self._free += 1
            self._ended_s = asyncio.get_running_loop().time()
            self._start()

    async def drain(self) -> None:
        """Wait until all submitted items are flushed."""
        while self._running or self._waiting:
            await (asyncio.wait(set(self._running)) if self._running else asyncio.sleep(0))
