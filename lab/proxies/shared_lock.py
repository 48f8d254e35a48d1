"""A lock for the chain's node: calls share it, and a reorg has it exclusively.

Anvil aborts when it is asked for a receipt during a reorg, and loses a block that is mined during one. So a reorg waits
until the calls in progress are answered, and new calls wait for the reorg.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedLock:
    """A lock with shared and exclusive holders."""

    def __init__(self) -> None:
        self._exclusive_turn = asyncio.Lock()
        self._is_open = asyncio.Event()
        self._is_empty = asyncio.Event()
        self._holders = 0
        self._is_open.set()
        self._is_empty.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        while not self._is_open.is_set():  # it may close again before this waiter runs
            await self._is_open.wait()
        self._holders += 1
        self._is_empty.clear()
        try:
            yield
        finally:
            self._holders -= 1
            if self._holders == 0:
                self._is_empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._exclusive_turn:
            self._is_open.clear()
            try:
                await self._is_empty.wait()
                yield
            finally:
                self._is_open.set()
