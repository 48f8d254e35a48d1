"""An event loop in simulated time: time jumps to the next timer, and the order of callbacks is reproducible.

Callbacks run in the order in which they became ready; timers of the same time run in the order in which they were set.
Interleavings differ only through the delays of port calls, which the seed chooses.

Every callback belongs to the process that set it (a context variable, which tasks inherit). A paused process runs no
callback, timers included, until it is resumed: like SIGSTOP.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

# More callbacks than any bounded run has; an endless loop is stopped here.
MAX_CALLBACKS = 2_000_000

# More rounds of cancellation and more callbacks than cancelled tasks need to end.
MAX_CLOSING_ROUNDS = 100
MAX_CLOSING_CALLBACKS = 200_000

# Timers fire slightly late: at the exact time, sums and differences of floats disagree in the last bit.
LATE_S = 1e-6


class Process:
    """A simulated process, which is paused or killed as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.is_dead = False
        self.parked: list[_Callback] = []


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Runaway(Exception):
    """The loop runs more callbacks than any bounded run needs, or has nothing left to run."""


class _Callback:
    """A handle as asyncio expects it: cancellable, with the process that it belongs to."""

    __slots__ = ("args", "callback", "context", "is_cancelled", "process", "when_s")

    def __init__(
        self, when_s: float, callback: Callable[..., Any], args: tuple[Any, ...], context: Context
    ) -> None:
        self.when_s = when_s
        self.callback = callback
        self.args = args
        self.context = context
        self.process = context.get(PROCESS)
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, start_s: float = 1_000.0) -> None:
        self._now_s = start_s
        self._ready: deque[_Callback] = deque()
        self._timers: list[tuple[float, int, _Callback]] = []
        self._set = 0  # number of timers so far, to break ties
        self.callbacks = 0
        self.failures: list[dict[str, Any]] = []  # exceptions that no code awaited or caught
        self._paused: set[Process] = set()  # processes with parked callbacks

    # ---- running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        asyncio._set_running_loop(self)  # noqa: SLF001 - asyncio documents this for authors of loops
        try:
            task: asyncio.Task[T] = self.create_task(main)
            self._run_until(task)
            return task.result()
        finally:
            self._end_tasks()
            asyncio._set_running_loop(None)  # noqa: SLF001 - as above

    def _run_until(self, task: asyncio.Task[Any]) -> None:
        """Run callbacks until the task is done."""
        ready = self._ready
        while not task.done():
            if not ready:
                self._advance_clock()
            if self.callbacks > MAX_CALLBACKS:
                raise Runaway(f"more than {MAX_CALLBACKS} callbacks")
            callback = ready.popleft()
            process = callback.process
            if process is not None and process.is_paused:
                process.parked.append(callback)
                self._paused.add(process)
            elif not callback.is_cancelled:
                self.callbacks += 1
                try:
                    callback.context.run(callback.callback, *callback.args)
                except Exception as error:  # noqa: BLE001 - the loop reports the errors of callbacks
                    self.failures.append({"message": "a callback failed", "exception": error})

    def _end_tasks(self) -> None:
        """Cancel the tasks that the run left behind and let them end, in a bounded number of callbacks.

        The garbage collector would close a suspended coroutine at any later time, inside another test.
        """
        for process in self._paused:
            self.resume(process)
        budget = MAX_CLOSING_CALLBACKS
        for _ in range(MAX_CLOSING_ROUNDS):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            while self._ready and budget > 0:
                budget -= 1
                callback = self._ready.popleft()
                if not callback.is_cancelled:
                    with suppress(
                        Exception
                    ):  # what a cancelled task of an abandoned run raises concerns no check
                        callback.context.run(callback.callback, *callback.args)

    def _advance_clock(self) -> None:
        """Advance the time to the next timer that is not cancelled."""
        while self._timers:
            when, _, callback = heapq.heappop(self._timers)
            if not callback.is_cancelled:
                self._now_s = max(self._now_s, when + LATE_S)
                self._ready.append(callback)
                return
        raise Runaway("nothing is ready and no timer is set")

    def resume(self, process: Process) -> None:
        process.is_paused = False
        self._ready.extend(process.parked)
        process.parked.clear()

    # ---- required by asyncio

    def time(self) -> float:
        return self._now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # These three accept wider types than asyncio's, whose handles only work with its own loops.

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]  # see above
        handle = _Callback(self._now_s, callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]  # see above
        handle = _Callback(when, callback, args, copy_context() if context is None else context)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, handle))
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]  # see above
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)
