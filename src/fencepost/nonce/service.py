"""Run the nonce service of one process: select each signer's scheme and run the maintenance loops.

The service implements the port itself, so callers need not know which scheme a signer has. `run` works until it is cancelled:
it maintains the schemes, reclaims expired holds and confirms mined nonces. A loop that fails logs the cause and continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from fencepost.adapters.postgres.database import is_failure
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.errors import FencepostError, InvalidRequest
from fencepost.nonce.confirmer import ReceiptConfirmer
from fencepost.nonce.port import EventSink, Hold, NoncePort, SignerStatus, ignore_event
from fencepost.tasks.service_loop import FailureLog

RECLAIM_PAGE_SIZE = 100

T = TypeVar("T")


@dataclass(slots=True)
class NonceService:
    schemes: Mapping[str, NoncePort]
    scheme_of: Callable[[Address], str]
    pool: Pool
    chain_ids: Sequence[int]
    confirmers: Sequence[ReceiptConfirmer]
    default_hold_s: float
    tend_interval_s: float
    reclaim_interval_s: float
    confirm_interval_s: float
    note: EventSink = ignore_event
    _reclaimed_to: dict[int, str] = field(default_factory=dict)

    def scheme_for(self, signer: Signer) -> NoncePort:
        return self.schemes[self.scheme_of(signer.address)]

    async def allocate(
        self, signer: Signer, *, count: int = 1, hold_for_s: float | None = None
    ) -> Sequence[Hold]:
        if signer.chain_id not in self.chain_ids:
            raise InvalidRequest(f"chain {signer.chain_id} is not configured", field="chainId")
        held_s = self.default_hold_s if hold_for_s is None else hold_for_s
        work = self.scheme_for(signer).allocate(signer, count=count, hold_for_s=held_s)
        holds = await self._with_failure_report(signer, "allocate", work)
        self.note("nonce_allocated", scheme=self.scheme_of(signer.address), signer=signer, count=len(holds))
        return holds

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        await self._mark(hold, "submitted", self.scheme_for(hold.signer).mark_submitted(hold, tx_hash))

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        await self._mark(hold, "used", self.scheme_for(hold.signer).mark_used(hold, tx_hash))

    async def mark_recyclable(self, hold: Hold) -> None:
        await self._mark(hold, "recyclable", self.scheme_for(hold.signer).mark_recyclable(hold))

    async def _mark(self, hold: Hold, state: str, work: Awaitable[None]) -> None:
        await self._with_failure_report(hold.signer, f"mark_{state}", work)
        scheme = self.scheme_of(hold.signer.address)
        self.note("nonce_marked", scheme=scheme, state=state, signer=hold.signer, nonce=hold.nonce)

    async def reclaim_expired(self, signer: Signer) -> int:
        released = await self._with_failure_report(
            signer, "reclaim", self.scheme_for(signer).reclaim_expired(signer)
        )
        if released:
            scheme = self.scheme_of(signer.address)
            self.note("nonce_reclaimed", scheme=scheme, signer=signer, count=released)
        return released

    async def _with_failure_report(self, signer: Signer, operation: str, work: Awaitable[T]) -> T:
        """Await a call of a scheme; if it fails, report it with its error code."""
        try:
            return await work
        except Exception as error:
            code = error.code if isinstance(error, FencepostError) else "error"
            scheme = self.scheme_of(signer.address)
            self.note("nonce_failed", scheme=scheme, operation=operation, code=code, signer=signer)
            raise

    async def status(self, signer: Signer) -> SignerStatus | None:
        return await self.scheme_for(signer).status(signer)

    async def close(self) -> None:
        for scheme in self.schemes.values():
            await scheme.close()

    # ---- the loops

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for scheme in self.schemes.values():
                group.create_task(_loop(scheme.tend_once, self.tend_interval_s, "maintenance"))
            for chain_id in self.chain_ids:
                once = partial(self.reclaim_page, chain_id)
                group.create_task(_loop(once, self.reclaim_interval_s, f"reclaiming on chain {chain_id}"))
            for confirmer in self.confirmers:
                group.create_task(_loop(confirmer.run_once, self.confirm_interval_s, "confirming"))

    async def tend_once(self) -> int:
        return sum([await scheme.tend_once() for scheme in self.schemes.values()])

    async def reclaim_once(self) -> int:
        """Reclaim one page of signers per chain; after all chains are done, raise the first error."""
        return await _run_all([partial(self.reclaim_page, chain_id) for chain_id in self.chain_ids])

    async def reclaim_page(self, chain_id: int) -> int:
        """Reclaim one page of signers and return the number of released nonces; the next call reads the next page.

        A signer that fails (Redis is down, the endpoint does not respond) does not stop the signers after it.
        """
        after = self._reclaimed_to.get(chain_id, "")
        rows = await self.pool.fetch(sql("nonce_signers"), chain_id, after, RECLAIM_PAGE_SIZE)
        self._reclaimed_to[chain_id] = rows[-1]["signer"] if len(rows) == RECLAIM_PAGE_SIZE else ""
        signers = [Signer(chain_id, Address(row["signer"])) for row in rows]
        return await _run_all([partial(self.reclaim_expired, signer) for signer in signers])


async def _run_all(operations: Sequence[Callable[[], Awaitable[int]]]) -> int:
    """Run all of them in order, even if one fails; return the sum, or raise the first error at the end."""
    done, failed = 0, None
    for work in operations:
        try:
            done += await work()
        except Exception as error:  # noqa: BLE001 - raised below: the loop that called logs it
            failed = failed or error
    if failed is not None:
        raise failed
    return done


async def _loop(once: Callable[[], Awaitable[int]], every_s: float, name: str) -> None:
    failure_log = FailureLog(f"nonce service, {name}", is_failure)
    task = asyncio.current_task()
    while task is not None and not task.cancelling():  # asyncio.wait_for of 3.11 may swallow one
        try:
            await once()
        except Exception as error:  # noqa: BLE001 - a loop's edge: the cause is logged, the next turn tries again
            failure_log.failed(error)
        else:
            failure_log.succeeded()
        await asyncio.sleep(every_s)
