"""Driving a chain with nothing in between: signed transactions go out in batches, and their receipts are fetched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.domain.transaction import SignedTx
from fencepost.errors import Unready

T = TypeVar("T")

# Calls of a batch, and batches under way. Anvil takes these faster than batches of 100, by 5 to 8 in a hundred.
PART = 20
AT_ONCE = 4

# With none of what is awaited in a block for so long, it never will be: a chain has lost it, or stands still.
STALLED_S = 30.0


async def send_all(rpc: JsonRpc, signed: Sequence[SignedTx], gate: asyncio.Semaphore | None = None) -> None:
    """Those that share a gate share what may be under way."""
    gate = gate or asyncio.Semaphore(AT_ONCE)

    async def send(part: Sequence[SignedTx]) -> None:
        async with gate:
            answers = await rpc.batch([("eth_sendRawTransaction", ["0x" + tx.raw.hex()]) for tx in part])
        refused = [answer for tx, answer in zip(part, answers, strict=True) if answer != tx.hash]
        if refused:
            raise Unready(f"Anvil did not take {len(refused)} of {len(part)} transactions: {refused[0]}")

    await asyncio.gather(*(send(part) for part in _parts(signed)))


async def _nothing_more(_receipts: Sequence[dict[str, Any]]) -> None:
    """Whoever only wants to have them."""


@dataclass(slots=True)
class Receipts:
    """The cheapest way to them: blocks tell which hashes are in, and only those are asked for, a few batches at a time.

    (`eth_getBlockReceipts` costs Anvil more a receipt the larger the block is.)
    """

    rpc: JsonRpc
    wanted: int
    then: Callable[[Sequence[dict[str, Any]]], Awaitable[object]] = _nothing_more  # with each part
    stalled_s: float = STALLED_S
    _found: int = 0
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def fetch(self) -> None:
        number = 1
        async with asyncio.TaskGroup() as group:
            seen = 0
            moved_s = time.monotonic()
            while seen < self.wanted:
                block = await self.rpc.call("eth_getBlockByNumber", [hex(number), False])
                if time.monotonic() - moved_s > self.stalled_s:
                    raise Unready(f"{self.wanted - seen} of {self.wanted} transactions came into no block")
                if block is None:
                    await asyncio.sleep(0.02)
                    continue
                if block["transactions"]:
                    moved_s = time.monotonic()
                number += 1
                seen += len(block["transactions"])
                for part in _parts(block["transactions"]):
                    group.create_task(self._fetch(part))
        if self._found != self.wanted:
            raise Unready(f"Anvil gave {self._found} of {self.wanted} receipts")

    async def _fetch(self, hashes: Sequence[str]) -> None:
        async with self._gate:
            answers = await self.rpc.batch([("eth_getTransactionReceipt", [tx_hash]) for tx_hash in hashes])
        found = [answer for answer in answers if isinstance(answer, dict)]
        self._found += len(found)
        await self.then(found)


def _parts(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + PART] for start in range(0, len(items), PART)]
