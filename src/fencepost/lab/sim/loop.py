"""An event loop without a real clock: time jumps to the next timer, and the order of everything is reproducible.

Callbacks run in the order in which they became ready; two timers of the same moment run in the order in which they were
set. What makes interleavings differ is how long each call of a port takes, and that is the seed's choice.

Every callback belongs to the process that set it (a context variable, so that tasks inherit it). A process that is
paused runs nothing, timers included, until it is resumed: that is SIGSTOP, not a slow network.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")

# More callbacks than any run of a bounded world has; a loop that turns for ever ends here, with a name.
MOST_CALLBACKS = 2_000_000

# Timers fire a little late, as everywhere: at the very moment, sums and differences of times disagree in the last bit.
LATE_S = 1e-6


class Process:
    """What can be paused and killed as a whole."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.is_gone = False
        self.parked: list[_Callback] = []


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Runaway(Exception):
    """The world does not come to rest."""


class _Callback:
    """A handle as asyncio knows it: it can be cancelled, and the process it belongs to is found once."""

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
        self._set = 0  # timers so far: breaks ties
        self.callbacks = 0
        self.failures: list[dict[str, Any]] = []  # what nobody awaited or caught

    # ---- running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        asyncio._set_running_loop(self)  # noqa: SLF001 - the documented way for those who write loops
        try:
            task: asyncio.Task[T] = self.create_task(main)
            self._turn_until(task)
            return task.result()
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001 - as above

    def _turn_until(self, task: asyncio.Task[Any]) -> None:
        """Everything that a run does passes through here, a callback at a time."""
        ready = self._ready
        while not task.done():
            if not ready:
                self._jump()
            callback = ready.popleft()
            process = callback.process
            if process is not None and process.is_paused:
                process.parked.append(callback)
            elif not callback.is_cancelled:
                self.callbacks += 1
                if self.callbacks > MOST_CALLBACKS:
                    raise Runaway(f"more than {MOST_CALLBACKS} callbacks")
                try:
                    callback.context.run(callback.callback, *callback.args)
                except Exception as error:  # noqa: BLE001 - a callback's error is the loop's to report
                    self.failures.append({"message": "a callback failed", "exception": error})

    def _jump(self) -> None:
        """To the next timer that anybody still wants."""
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

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self._now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # These three are typed wider than asyncio's: its handles are made for its own loops.

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
