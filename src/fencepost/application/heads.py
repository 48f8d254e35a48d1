"""One consistent view of a chain, shared by all lanes of a node.

`refresh` asks for the head and walks back by parents until it meets what it knew; what it replaces on the way was
forked out. Lanes read `view`; no lane ever mixes answers of two rounds. Nothing here is written down: after a restart
the view begins at the head, and older blocks are read on demand (`view_around`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fencepost.application.block_receipts import BlockReceipts
from fencepost.application.ports import Block, BlockTag, Chain, Header
from fencepost.domain.confirmations import View
from fencepost.domain.ids import BlockHash, Signer, TxHash
from fencepost.errors import RpcUnavailable

# A node that slept through more blocks than this begins its view anew; its lanes then look up their receipts.
MOST_CAUGHT_UP = 500


@dataclass(frozen=True, slots=True)
class HeadChange:
    blocks: tuple[Block, ...] = ()  # new canonical blocks, oldest first
    forked_at: int | None = None  # the lowest number whose block was replaced
    begun_anew: bool = False  # blocks were skipped: `blocks` does not tell everything
    old_lowest: int = 0  # what the view showed before, from here
    old_head: int = -1  # to here

    def __bool__(self) -> bool:
        return bool(self.blocks) or self.forked_at is not None or self.begun_anew


@dataclass(slots=True)
class ChainWatch:
    chain: Chain
    keep: int = (
        256  # how many blocks below the head are remembered; forks deeper than this look as deep as this
    )
    settled_tag: BlockTag | None = None
    block_expected: asyncio.Event = field(default_factory=asyncio.Event)  # set when something was sent
    awaited: dict[TxHash, Signer] = field(
        default_factory=dict
    )  # what lanes wait to see in a block, and whose
    receipts: BlockReceipts = field(default_factory=BlockReceipts)
    on_change: Callable[[HeadChange], None] = lambda _change: None
    _hashes: dict[int, BlockHash] = field(default_factory=dict)
    _head: int = -1
    _settled: int | None = None
    _turn: asyncio.Lock = field(
        default_factory=asyncio.Lock
    )  # one reader of the chain at a time moves the view

    @property
    def has_begun(self) -> bool:
        return self._head >= 0

    @property
    def view(self) -> View:
        lowest = next(iter(self._hashes), self._head + 1)
        return View(hashes=self._hashes, lowest=lowest, head=self._head, settled=self._settled)

    async def refresh(self, head: Header | None = None) -> HeadChange:
        """Bring the view to the head given, or to the one the chain has now."""
        async with self._turn:
            return await self._refresh(head)

    async def _refresh(self, head: Header | None) -> HeadChange:
        if (
            head is None or head.number <= self._head
        ):  # it may be older than the view by now: no fork is seen in that
            head = await self.chain.head()
        if self.settled_tag is not None:
            self._settled = (await self.chain.head(self.settled_tag)).number
        if self._hashes.get(head.number) == head.hash and head.number == self._head:
            return HeadChange()
        old_lowest, old_head = self.view.lowest, self.view.head
        change = replace(await self._moved_to(head), old_lowest=old_lowest, old_head=old_head)
        if change:
            self.on_change(change)
        return change

    async def _moved_to(self, head: Header) -> HeadChange:
        begun_anew = not self._hashes or head.number - self._head > MOST_CAUGHT_UP
        if begun_anew:
            block = await self._block(head.number)
            self._hashes = {block.header.number: block.header.hash}
            self._head = block.header.number
            return HeadChange(blocks=(block,), begun_anew=True)
        return await self._walk_back(head.number)

    async def _walk_back(self, top: int) -> HeadChange:
        lowest = next(iter(self._hashes))
        fresh: list[Block] = []
        number = top
        expected: BlockHash | None = None
        while number >= lowest:
            if expected is not None and self._hashes.get(number) == expected:
                break
            block = await self._block(number)
            if expected is not None and block.header.hash != expected:
                raise RpcUnavailable(
                    "the chain changed while it was being read"
                )  # the next round sees it whole
            fresh.append(block)
            if expected is None and self._hashes.get(number) == block.header.hash:
                fresh.pop()  # the head went back to a block that we know
                break
            expected = block.header.parent_hash
            number -= 1
        forked_at = number + 1 if number < self._head else None
        for replaced in range(number + 1, self._head + 1):
            self._hashes.pop(replaced, None)
        fresh.reverse()
        for block in fresh:
            self._hashes[block.header.number] = block.header.hash
        self._head = fresh[-1].header.number if fresh else number
        self._forget_old()
        return HeadChange(blocks=tuple(fresh), forked_at=forked_at)

    def _forget_old(self) -> None:
        floor = self._head - self.keep
        while (lowest := next(iter(self._hashes), floor)) < floor:
            del self._hashes[lowest]

    async def view_around(self, number: int, *, above: int) -> View:
        """A view that covers `number` and some blocks above it: the shared one, or a stretch read for the purpose."""
        if self.view.covers(number) or number > self._head:
            return self.view
        hashes: dict[int, BlockHash] = {}
        parent: BlockHash | None = None
        for wanted in range(number, min(number + above, self._head) + 1):
            block = await self._block(wanted)
            if parent is not None and block.header.parent_hash != parent:
                raise RpcUnavailable("the chain changed while it was being read")
            hashes[wanted] = parent = block.header.hash
        return View(hashes=hashes, lowest=number, head=max(hashes), settled=self._settled)

    async def _block(self, number: int) -> Block:
        block = await self.chain.block(number)
        if block is None:
            raise RpcUnavailable(f"block {number} is not there yet")
        return block
