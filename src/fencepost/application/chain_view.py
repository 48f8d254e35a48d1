"""Keep one consistent view of a chain, shared by all lanes of a node.

`refresh` reads the head and walks back by parents until it meets a known block; the blocks that it replaces were forked out.
Lanes read `view`; no lane ever mixes the results of two refreshes. Nothing here is stored: after a restart the view starts
at the head, and older blocks are read on demand (`view_around`).

Blocks that do not link to the view are a fork, or belong to another chain. So before the view drops a block, the endpoints
are identified (`Chain.check_identity`) and the blocks are read once more.

The view and its settled number change together: a number that was read before a fork does not apply to the blocks after
it. A settled block whose hash differs from the view's is not used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fencepost.application.block_receipts import BlockReceipts
from fencepost.application.ports import Block, BlockTag, Chain, Header
from fencepost.domain.confirmations import View
from fencepost.domain.ids import BlockHash, Signer, TxHash
from fencepost.errors import RpcUnavailable

# If a node missed more blocks than this, its view restarts at the head and its lanes fetch their receipts.
MAX_CATCH_UP_BLOCKS = 500

# A block that used more of its gas limit than this may have had no room for a transaction.
FULL_PERCENT = 90


@dataclass(frozen=True, slots=True)
class HeadChange:
    blocks: tuple[Block, ...] = ()  # new canonical blocks, oldest first
    forked_at: int | None = None  # the lowest number whose block was replaced
    restarted: bool = False  # blocks were skipped: `blocks` is not complete
    old_lowest: int = 0  # the lowest block of the view before the change
    old_head: int = -1  # the head of the view before the change

    def __bool__(self) -> bool:
        return bool(self.blocks) or self.forked_at is not None or self.restarted


@dataclass(frozen=True, slots=True)
class _ViewUpdate:
    """A change of the view: which of its blocks stay, and which are new."""

    keeps_to: int
    fresh: list[Block] = field(default_factory=list)  # oldest first
    forked_at: int | None = None
    restarts: bool = False

    @property
    def gives_up_blocks(self) -> bool:
        return self.restarts or self.forked_at is not None


@dataclass(slots=True)
class ChainView:
    chain: Chain
    keep: int = 256  # how many blocks below the head are kept; a deeper fork is reported as this deep
    settled_tag: BlockTag | None = None
    block_expected: asyncio.Event = field(default_factory=asyncio.Event)  # set after a send
    awaited: dict[TxHash, Signer] = field(
        default_factory=dict
    )  # hashes that lanes wait to see in a block, and their signers
    receipts: BlockReceipts = field(default_factory=BlockReceipts)
    on_change: Callable[[HeadChange], None] = lambda _change: None
    on_failure: Callable[[Exception], None] = lambda _error: None  # the head can't be read
    has_base_fee: bool = True  # whether the head's header has a base fee (EIP-1559)
    rejects_dynamic_fees: bool = False  # an endpoint rejected transaction type 2
    gas_limit: int | None = None  # of the newest block, if its header has it
    base_fee_wei: int | None = None  # the same
    blocks_with_room: int = 0  # how many blocks seen so far were not full
    clock: Callable[[], float] = time.monotonic
    moved_at_s: float | None = None  # by `clock`: when the head last changed, as seen here
    block_interval_s: float | None = None  # the mean over the blocks seen here; None before the second one
    _first: Header | None = None
    _hashes: dict[int, BlockHash] = field(default_factory=dict)
    _head: int = -1
    _settled: int | None = None
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # one task at a time changes the view

    def failed(self, error: Exception) -> None:
        """Report that the head could not be read."""
        self.on_failure(error)

    @property
    def accepts_dynamic_fees(self) -> bool:
        """Return whether this chain accepts transactions of type 2."""
        return self.has_base_fee and not self.rejects_dynamic_fees

    @property
    def has_head(self) -> bool:
        return self._head >= 0

    @property
    def view(self) -> View:
        lowest = next(iter(self._hashes), self._head + 1)
        return View(hashes=self._hashes, lowest=lowest, head=self._head, settled=self._settled)

    async def refresh(self, head: Header | None = None) -> HeadChange:
        """Update the view to the given head, or to the chain's current one."""
        async with self._turn:
            return await self._refresh(head)

    async def _refresh(self, head: Header | None) -> HeadChange:
        if (
            head is None or head.number <= self._head
        ):  # it may be older than the view by now, which is not a fork
            head = await self.chain.head()
        move = await self._read_to(head)
        if self._hashes and move.gives_up_blocks:
            await self.chain.check_identity()
            head = await self.chain.head()
            move = await self._read_to(head)
        settled = None if self.settled_tag is None else await self.chain.head(self.settled_tag)
        self.base_fee_wei, self.gas_limit = head.base_fee_wei, head.gas_limit
        self.has_base_fee = head.base_fee_wei is not None
        return self._apply(move, settled)

    async def _read_to(self, head: Header) -> _ViewUpdate:
        """Read the blocks between the view and this head; change nothing."""
        if self._hashes.get(head.number) == head.hash and head.number == self._head:
            return _ViewUpdate(keeps_to=self._head)
        if not self._hashes or head.number - self._head > MAX_CATCH_UP_BLOCKS:
            return _ViewUpdate(keeps_to=-1, fresh=[await self._block(head.number)], restarts=True)
        return await self._walk_back(head.number)

    async def _walk_back(self, top: int) -> _ViewUpdate:
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
                )  # the next refresh reads it consistently
            fresh.append(block)
            if expected is None and self._hashes.get(number) == block.header.hash:
                fresh.pop()  # the head went back to a known block
                break
            expected = block.header.parent_hash
            number -= 1
        fresh.reverse()
        return _ViewUpdate(
            keeps_to=number, fresh=fresh, forked_at=number + 1 if number < self._head else None
        )

    def _apply(self, move: _ViewUpdate, settled: Header | None) -> HeadChange:
        """Change the view and its settled number, without an await between them."""
        old_lowest, old_head = self.view.lowest, self.view.head
        if move.restarts:
            self._hashes = {}
        else:
            for replaced in range(move.keeps_to + 1, self._head + 1):
                self._hashes.pop(replaced, None)
        for block in move.fresh:
            self._hashes[block.header.number] = block.header.hash
        self._head = move.fresh[-1].header.number if move.fresh else move.keeps_to
        self._forget_old()
        if settled is not None:
            self._settled = self._settled_now(settled, move)
        self.blocks_with_room += sum(_has_room(block.header) for block in move.fresh)
        change = HeadChange(blocks=tuple(move.fresh), forked_at=move.forked_at, restarted=move.restarts)
        if change:
            self._measure(move.fresh[-1].header if move.fresh else None)
            change = replace(change, old_lowest=old_lowest, old_head=old_head)
            self.on_change(change)
        return change

    def _measure(self, newest: Header | None) -> None:
        """Note when the head changed, and how long a block takes."""
        self.moved_at_s = self.clock()
        if newest is None:
            return
        if self._first is None or newest.number <= self._first.number:
            self._first = newest
            return
        blocks = newest.number - self._first.number
        self.block_interval_s = max(0, newest.timestamp_s - self._first.timestamp_s) / blocks

    @property
    def head_still_for_s(self) -> float | None:
        """Return for how many seconds the head has been the same; None before the first block."""
        return None if self.moved_at_s is None else self.clock() - self.moved_at_s

    def _settled_now(self, settled: Header, move: _ViewUpdate) -> int | None:
        """Return the settled number if that block is in the view or below it, else the previous number.

        A block that a fork replaced was not settled, even if an endpoint reported it as such.
        """
        view, before = self.view, self._settled
        if settled.number < view.lowest or view.hashes.get(settled.number) == settled.hash:
            return settled.number
        if before is None or move.restarts or (move.forked_at is not None and move.forked_at <= before):
            return None
        return before

    def _forget_old(self) -> None:
        floor = self._head - self.keep
        while (lowest := next(iter(self._hashes), floor)) < floor:
            del self._hashes[lowest]

    async def view_around(self, number: int, *, above: int) -> View:
        """Return a view that covers `number` and some blocks above it: the shared view, or a separately read range."""
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
            raise RpcUnavailable(f"the endpoint does not have block {number} yet")
        return block


def _has_room(header: Header) -> bool:
    """Return whether a block was not full. A header without gas figures counts as not full."""
    if header.gas_limit is None or header.gas_used is None:
        return True
    return header.gas_used * 100 <= header.gas_limit * FULL_PERCENT
