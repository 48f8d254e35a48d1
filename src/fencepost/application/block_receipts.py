"""Read the receipts of whole blocks once for all lanes: if most of a block is ours, one call is cheaper than many.

The head follower reads the block in the background and then notifies the lanes. Without it, the first lane that needs the
block reads it, and the others wait. Receipts that could not be read this way are fetched by hash: this module saves work,
and correctness never depends on it. A block is identified by its hash, so receipts of a fork are not mistaken for its own.
It returns the receipt of a transaction once: a lane that fetches it again gets the current one from the chain.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fencepost.application.ports import Block, Chain
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import TxHash
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import RpcError

# With fewer own transactions than this, or if they are less than half of the block, fetching by hash is cheaper.
MIN_OWN_TXS = 16

# All lanes with a transaction in the block wait for it. After this time receipts are fetched by hash.
READ_TIMEOUT_S = 2.0

# With many lanes, some fetch their receipts long after the block. Beyond this number of receipts that no lane has fetched,
# the oldest are dropped and fetched by hash later.
MAX_AWAITED = 20_000


@dataclass(slots=True, eq=False)
class WholeBlock:
    """A block whose receipts are read together; kept while a lane may still fetch one of them."""

    ref: BlockRef
    receipts: dict[TxHash, Receipt] = field(default_factory=dict)
    _is_asked_for: bool = False
    _has_been_read: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, chain: Chain) -> None:
        """Read the receipts once, however many callers wait. Receipts that can't be read are left out."""
        if self._is_asked_for:
            await self._has_been_read.wait()
            return
        self._is_asked_for = True
        try:
            self.receipts = await _receipts_of(chain, self.ref)
        finally:  # the waiting callers continue even if the reading one is cancelled
            self._has_been_read.set()


@dataclass(slots=True)
class BlockReceipts:
    min_own_txs: int = MIN_OWN_TXS
    _block_of: OrderedDict[TxHash, WholeBlock] = field(default_factory=OrderedDict)  # the oldest first

    def add_block(self, block: Block, ours: Sequence[TxHash]) -> WholeBlock | None:
        """Register a new block that contains the transactions `ours`.

        Returns None if fetching their receipts by hash is cheaper.
        """
        if len(ours) < self.min_own_txs or 2 * len(ours) < len(block.tx_hashes):
            return None
        whole_block = WholeBlock(BlockRef(block.header.number, block.header.hash))
        self._block_of.update(dict.fromkeys(ours, whole_block))
        while len(self._block_of) > MAX_AWAITED:
            self._block_of.popitem(last=False)
        return whole_block

    async def fetch(self, chain: Chain, hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        """Return the receipts as the chain has them; None for a transaction without one."""
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
            fetched = await chain.receipts([hashes[index] for index in missing])
            for index, receipt in zip(missing, fetched, strict=True):
                found[index] = receipt
        return found


async def _receipts_of(chain: Chain, block: BlockRef) -> dict[TxHash, Receipt]:
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            receipts = await chain.block_receipts(block.number)
    except (RpcError, TimeoutError):
        return {}
    if receipts is None or any(receipt.block != block for receipt in receipts):
        return {}
    return {receipt.tx_hash: receipt for receipt in receipts}
