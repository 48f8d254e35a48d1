"""The way to the chain's node: many may ask at once, and whoever changes the chain's past goes alone.

Anvil aborts when it is asked for a receipt while it makes a reorg, and a block that falls into one is lost. So calls
pass `shared`, and a reorg takes the way `alone`: it waits until those under way have their answers, and whoever comes
meanwhile waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Passage:
    def __init__(self) -> None:
        self._one_alone = asyncio.Lock()
        self._is_open = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._inside = 0
        self._is_open.set()
        self._is_empty.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        while not self._is_open.is_set():  # it may close again before a waiter runs
            await self._is_open.wait()
        self._inside += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._is_empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        async with self._one_alone:
            self._is_open.clear()
            try:
                await self._is_empty.wait()
                yield
            finally:
                self._is_open.set()
