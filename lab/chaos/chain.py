"""The chain of a chaos run: the lab mines its blocks, and all calls share one lock with reorgs.

Blocks are mined at the lab's own pace, never during a reorg. After each block the lab checks that the chain's node still
has it, because a lost block would look like a fault of Fencepost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.errors import EmbeddedError, RpcError
from lab.proxies.shared_lock import SharedLock

_MAX_FAILURES = 10  # in a row


@dataclass(slots=True)
class LabChain:
    """The chain's node, its lock and its miner."""

    rpc: JsonRpc
    chain_lock: SharedLock = field(default_factory=SharedLock)
    blocks_mined: int = 0
    holds_blocks: bool = False  # no block is mined; transactions wait in the pool

    async def call(self, method: str, params: Sequence[Any] = ()) -> Any:
        """Call a method, sharing the lock."""
        async with self.chain_lock.shared():
            return await self.rpc.call(method, params)

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[JsonRpc]:
        """Hold the lock exclusively: no other call is answered and no block is mined meanwhile."""
        async with self.chain_lock.exclusive():
            yield self.rpc

    async def mine_for_ever(self, every_s: float) -> None:
        due_s = time.monotonic()
        failures = 0
        while True:
            due_s = max(due_s + every_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            if self.holds_blocks:
                continue
            try:
                await self.call("evm_mine")
                await self._require_whole()
            except RpcError as error:
                failures += 1
                if failures >= _MAX_FAILURES:
                    raise EmbeddedError(f"the chain's node has stopped answering: {error}") from error
            else:
                failures = 0
                self.blocks_mined += 1

    async def _require_whole(self) -> None:
        async with self.chain_lock.shared():
            head = int(await self.rpc.call("eth_blockNumber"), 16)
            if await self.rpc.call("eth_getBlockByNumber", [hex(head), False]) is None:
                raise EmbeddedError(f"the chain's node has lost its own block {head}")
