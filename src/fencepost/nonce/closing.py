"""The receipt loop: what was submitted and is mined to depth becomes consumed, by itself.

Each turn looks at one page of submitted nonces, in the order of signer and nonce, and begins again at the end. A
receipt counts when its block is canonical in one consistent view of the chain and as deep as is required; whether the
transaction succeeded or reverted does not matter, its nonce is used either way. Without a receipt nothing is decided:
the transaction may be waiting, or may have been replaced by one that nobody told us of; then its owner says so with
`mark_used`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.application.heads import ChainWatch
from fencepost.domain.confirmations import MOST_LISTED, confirm
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.managed import Receipt
from fencepost.errors import HoldLost, NonceConflict
from fencepost.nonce.port import Hold

PAGE = 200


@dataclass(slots=True)
class Closing:
    pool: Pool
    watch: ChainWatch
    required: int | None  # blocks on top; None waits for the watch's settled block
    mark_used: Callable[[Hold, TxHash], Awaitable[None]]
    _after: tuple[str, int] = ("", -1)

    async def run_once(self) -> int:
        """How many were closed. Raises `RpcError` when the chain can't be asked; the next turn looks again."""
        chain_id = self.watch.chain.chain_id
        rows = await self.pool.fetch(sql("nonce_submitted"), chain_id, *self._after, PAGE)
        if not rows:
            self._after = ("", -1)
            return 0
        waiting = [
            (
                Hold(Signer(chain_id, Address(row["signer"])), row["nonce"], row["hold"]),
                TxHash(row["tx_hash"]),
            )
            for row in rows
        ]
        closed = await self._close_mined(waiting)
        last = rows[-1]
        self._after = (last["signer"], last["nonce"]) if len(rows) == PAGE else ("", -1)
        return closed

    async def _close_mined(self, waiting: Sequence[tuple[Hold, TxHash]]) -> int:
        await self.watch.refresh()
        receipts = await self.watch.chain.receipts([tx_hash for _, tx_hash in waiting])
        closed = 0
        for (hold, tx_hash), receipt in zip(waiting, receipts, strict=True):
            if receipt is None or not await self._is_final(receipt):
                continue
            try:
                await self.mark_used(hold, tx_hash)
            except (HoldLost, NonceConflict):
                continue  # its owner was faster and said something else
            closed += 1
        return closed

    async def _is_final(self, receipt: Receipt) -> bool:
        depth = MOST_LISTED if self.required is None else self.required
        view = await self.watch.view_around(receipt.block.number, above=depth)
        return confirm(receipt.block, view, recorded=(), required=self.required).is_final
