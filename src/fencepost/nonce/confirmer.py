"""Mark submitted nonces as consumed once their transactions have enough confirmations.

Each turn reads one page of submitted nonces, by signer and nonce, and starts again after the last page. A receipt counts
if its block is canonical in one consistent view of the chain and has the required confirmations; whether the transaction
succeeded or reverted does not matter, because its nonce is consumed either way. Without a receipt nothing is decided: the
transaction may still wait, or the caller may have replaced it with one that Fencepost does not know; the caller then calls
`mark_used`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.application.chain_view import ChainView
from fencepost.domain.confirmations import MAX_LISTED, confirm
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import HoldLost, NonceConflict, RpcError
from fencepost.nonce.port import Hold

PAGE = 200


@dataclass(slots=True)
class ReceiptConfirmer:
    pool: Pool
    chain_view: ChainView
    required: int | None  # confirmations; None waits for the settled block of the chain view
    mark_used: Callable[[Hold, TxHash], Awaitable[None]]
    _after: tuple[str, int] = ("", -1)

    async def run_once(self) -> int:
        """Check one page of nonces and return how many were confirmed.

        An error of one nonce does not stop the others; the first error is raised after the page is done. The next turn reads
        the next page; failed nonces are read again in the next round.
        """
        chain_id = self.chain_view.chain.chain_id
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
        await self.chain_view.refresh()
        last = rows[-1]
        self._after = (last["signer"], last["nonce"]) if len(rows) == PAGE else ("", -1)
        return await self._confirm_mined(waiting)

    async def _confirm_mined(self, waiting: Sequence[tuple[Hold, TxHash]]) -> int:
        confirmed, failed = 0, None
        found = await self._receipts([tx_hash for _, tx_hash in waiting])
        for (hold, tx_hash), receipt in zip(waiting, found, strict=True):
            try:
                confirmed += await self._confirm(hold, tx_hash, receipt)
            except Exception as error:  # noqa: BLE001 - concerns one nonce; raised below, after the others are done
                failed = failed or error
        if failed is not None:
            raise failed
        return confirmed

    async def _receipts(self, hashes: Sequence[TxHash]) -> Sequence[Receipt | RpcError | None]:
        """Fetch the receipts, with the error in place of one that can't be read. Raises if no endpoint responds."""
        try:
            return await self.chain_view.chain.receipts(hashes)
        except RpcError as error:
            await self.chain_view.refresh()
            if len(hashes) == 1:
                return [error]
        # One unreadable receipt fails the whole call: halve the list until it is alone.
        middle = len(hashes) // 2
        return [*await self._receipts(hashes[:middle]), *await self._receipts(hashes[middle:])]

    async def _confirm(self, hold: Hold, tx_hash: TxHash, receipt: Receipt | RpcError | None) -> int:
        """Mark the nonce as used if its receipt is final; return 1 if the mark was applied, else 0."""
        if isinstance(receipt, RpcError):
            raise receipt
        if receipt is None or not await self._is_final(receipt):
            return 0
        try:
            await self.mark_used(hold, tx_hash)
        except (HoldLost, NonceConflict):
            return 0  # the caller marked it differently first
        return 1

    async def _is_final(self, receipt: Receipt) -> bool:
        depth = MAX_LISTED if self.required is None else self.required
        view = await self.chain_view.view_around(receipt.block.number, above=depth)
        return confirm(receipt.block, view, recorded=(), required=self.required).is_final
