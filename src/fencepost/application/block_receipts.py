"""Receipts of whole blocks, read once for all lanes: where most of a block is ours, one question is cheaper than many.

A node that follows the chain reads the block beside its lanes, and tells them when that is done; else whoever asks
first reads it, and the others wait for that. What could not be read so is asked for by hash: this saves work, and is
never needed. A block is known by its hash, so that receipts of a fork are not taken for its own, and answers for a
transaction once: whoever asks again wants to know what has changed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fencepost.application.ports import Block, Chain
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import TxHash
from fencepost.domain.managed import Receipt
from fencepost.errors import RpcError

# With fewer of ours, or more of others than of ours, it is cheaper to ask by hash.
LEAST_OURS = 16

# All lanes with something in the block wait for it. A node that takes longer over a whole one is asked by hash.
READ_WITHIN_S = 2.0

# A crowd comes to its receipts long after the block. With more than so many that nobody has asked for, the oldest are
# left to be asked for by hash.
MOST_WAITING = 20_000


@dataclass(slots=True, eq=False)
class WholeBlock:
    """A block that is worth reading whole; it is kept while anybody may ask for something of it."""

    ref: BlockRef
    receipts: dict[TxHash, Receipt] = field(default_factory=dict)
    _is_asked_for: bool = False
    _has_been_read: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, chain: Chain) -> None:
        """Once, however many want it. Whatever can't be had is just not there."""
        if self._is_asked_for:
            await self._has_been_read.wait()
            return
        self._is_asked_for = True
        try:
            self.receipts = await _receipts_of(chain, self.ref)
        finally:  # whoever waits for it goes on, also when the one who reads it is stopped
            self._has_been_read.set()


@dataclass(slots=True)
class BlockReceipts:
    least_ours: int = LEAST_OURS
    _block_of: OrderedDict[TxHash, WholeBlock] = field(default_factory=OrderedDict)  # the oldest first

    def came(self, block: Block, ours: Sequence[TxHash]) -> WholeBlock | None:
        """The view shows a new block, and these in it are ours. None: its receipts are asked for by hash."""
        if len(ours) < self.least_ours or 2 * len(ours) < len(block.tx_hashes):
            return None
        whole = WholeBlock(BlockRef(block.header.number, block.header.hash))
        self._block_of.update(dict.fromkeys(ours, whole))
        while len(self._block_of) > MOST_WAITING:
            self._block_of.popitem(last=False)
        return whole

    async def of(self, chain: Chain, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        """As the chain gives them; None for one that it has not."""
        blocks = [self._block_of.pop(tx_hash, None) for tx_hash in hashes]
        for block in set(blocks):
            if block is not None:
                await block.read(chain)
        found = [
            block.receipts.pop(tx_hash, None) if block is not None else None
            for block, tx_hash in zip(blocks, hashes, strict=True)
        ]
        missing = [index for index, receipt in enumerate(found) if receipt is None]
        if missing:
            asked = await chain.receipts([hashes[index] for index in missing])
            for index, receipt in zip(missing, asked, strict=True):
                found[index] = receipt
        return found


async def _receipts_of(chain: Chain, block: BlockRef) -> dict[TxHash, Receipt]:
    try:
        async with asyncio.timeout(READ_WITHIN_S):
            receipts = await chain.block_receipts(block.number)
    except (RpcError, TimeoutError):
        return {}
    if receipts is None or any(receipt.block != block for receipt in receipts):
        return {}
    return {receipt.tx_hash: receipt for receipt in receipts}
