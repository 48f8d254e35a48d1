"""The nonce service of one process: a scheme for each signer, and the loops that keep them going.

It is a port itself: whoever calls it need not know which scheme a signer has. `run` goes on until it is cancelled:
schemes are tended, holds whose time is over are reclaimed, what is mined is closed. A loop that fails logs why and
turns again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fencepost.adapters.postgres.database import is_failure
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.errors import InvalidRequest
from fencepost.nonce.closing import Closing
from fencepost.nonce.port import Hold, NoncePort, SignerStatus
from fencepost.runtime.looping import Trouble

RECLAIMED_A_TURN = 100


@dataclass(slots=True)
class NonceService:
    schemes: Mapping[str, NoncePort]
    scheme_of: Callable[[Address], str]
    pool: Pool
    chain_ids: Sequence[int]
    closings: Sequence[Closing]
    default_hold_s: float
    tend_every_s: float
    reclaim_every_s: float
    close_every_s: float
    _reclaimed_to: dict[int, str] = field(default_factory=dict)

    def of(self, signer: Signer) -> NoncePort:
        return self.schemes[self.scheme_of(signer.address)]

    async def allocate(
        self, signer: Signer, *, count: int = 1, hold_for_s: float | None = None
    ) -> Sequence[Hold]:
        if signer.chain_id not in self.chain_ids:
            raise InvalidRequest(f"chain {signer.chain_id} is not configured", field="chainId")
        held_s = self.default_hold_s if hold_for_s is None else hold_for_s
        return await self.of(signer).allocate(signer, count=count, hold_for_s=held_s)

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        await self.of(hold.signer).mark_submitted(hold, tx_hash)

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        await self.of(hold.signer).mark_used(hold, tx_hash)

    async def mark_recyclable(self, hold: Hold) -> None:
        await self.of(hold.signer).mark_recyclable(hold)

    async def reclaim_expired(self, signer: Signer) -> int:
        return await self.of(signer).reclaim_expired(signer)

    async def status(self, signer: Signer) -> SignerStatus | None:
        return await self.of(signer).status(signer)

    async def close(self) -> None:
        for scheme in self.schemes.values():
            await scheme.close()

    # ---- the loops

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for scheme in self.schemes.values():
                group.create_task(_loop(scheme.tend_once, self.tend_every_s, "tending"))
            group.create_task(_loop(self.reclaim_once, self.reclaim_every_s, "reclaiming"))
            for closing in self.closings:
                group.create_task(_loop(closing.run_once, self.close_every_s, "closing"))

    async def tend_once(self) -> int:
        return sum([await scheme.tend_once() for scheme in self.schemes.values()])

    async def reclaim_once(self) -> int:
        """One page of signers a chain; the next turn goes on behind it. How many nonces were released."""
        released = 0
        for chain_id in self.chain_ids:
            after = self._reclaimed_to.get(chain_id, "")
            rows = await self.pool.fetch(sql("nonce_signers"), chain_id, after, RECLAIMED_A_TURN)
            for row in rows:
                released += await self.reclaim_expired(Signer(chain_id, Address(row["signer"])))
            self._reclaimed_to[chain_id] = rows[-1]["signer"] if len(rows) == RECLAIMED_A_TURN else ""
        return released


async def _loop(once: Callable[[], Awaitable[int]], every_s: float, name: str) -> None:
    trouble = Trouble(f"nonce service, {name}", is_failure)
    task = asyncio.current_task()
    while task is not None and not task.cancelling():  # asyncio.wait_for of 3.11 may swallow one
        try:
            await once()
        except Exception as error:  # noqa: BLE001 - a loop's edge: the cause is logged, the next turn tries again
            trouble.met(error)
        else:
            trouble.over()
        await asyncio.sleep(every_s)
