"""The chain of a chaos run, and the way to it: the lab mines its blocks, and everything passes one gate.

Blocks come in the lab's own rhythm, never inside a reorg. That the chain's node still has each block is looked at:
one that has lost some would be blamed on the nodes.
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
from fencepost.lab.passage import Passage

_FAILURES_MOST = 10  # in a row: then it is gone


@dataclass(slots=True)
class LabChain:
    rpc: JsonRpc
    passage: Passage = field(default_factory=Passage)
    blocks_mined: int = 0
    holds_blocks: bool = False  # what is sent waits in the pool meanwhile

    async def call(self, method: str, params: Sequence[Any] = ()) -> Any:
        async with self.passage.shared():
            return await self.rpc.call(method, params)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[JsonRpc]:
        """Nobody else is answered meanwhile, and no block is made: what is read here stays true."""
        async with self.passage.alone():
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
                if failures >= _FAILURES_MOST:
                    raise EmbeddedError(f"the chain's node has stopped answering: {error}") from error
            else:
                failures = 0
                self.blocks_mined += 1

    async def _require_whole(self) -> None:
        async with self.passage.shared():
            head = int(await self.rpc.call("eth_blockNumber"), 16)
            if await self.rpc.call("eth_getBlockByNumber", [hex(head), False]) is None:
                raise EmbeddedError(f"the chain's node has lost its own block {head}")
