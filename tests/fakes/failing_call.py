"""Ports that fail at one chosen call: the process dies there, or pauses there and continues much later.

All ports wrapped by one object share its count, so "the seventh call" is the seventh call of any of them.
"""

from __future__ import annotations

import asyncio
import inspect
from enum import Enum
from typing import Any, TypeVar, cast

Port = TypeVar("Port")


class FailureMode(Enum):
    DIES_BEFORE = "dies before"  # the call is never made
    DIES_AFTER = "dies after"  # the call is made, its answer is lost
    PAUSED_BEFORE = "paused before"
    PAUSED_AFTER = "paused after"


class Died(BaseException):
    """The process is dead: no code may catch this."""


class FailingCall:
    def __init__(self, at_call: int, how: FailureMode) -> None:
        self._left = at_call
        self._how = how
        self._dead = False
        self.reached = asyncio.Event()  # the chosen call is in progress
        self.resume = asyncio.Event()

    def wrap(self, port: Port) -> Port:
        return cast("Port", _Wrapped(port, self))

    async def around(self, call: Any, args: Any, kwargs: Any) -> Any:
        if self._dead:
            raise Died
        self._left -= 1
        if self._left != 0:
            return await call(*args, **kwargs)
        if self._how in (FailureMode.DIES_AFTER, FailureMode.PAUSED_AFTER):
            answer = await call(*args, **kwargs)
            await self._stop()
            return answer
        await self._stop()
        return await call(*args, **kwargs)

    async def _stop(self) -> None:
        self.reached.set()
        if self._how in (FailureMode.DIES_BEFORE, FailureMode.DIES_AFTER):
            self._dead = True
            raise Died
        await self.resume.wait()


class _Wrapped:
    def __init__(self, port: object, cut: FailingCall) -> None:
        self._port = port
        self._cut = cut

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._cut.around(found, args, kwargs)

        return call
