"""Open what `fencepost restore` needs: the ledger and the chains of a node, without its loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.postgres.database import DatabaseHistory
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.signers import KeyRing, load_keys
from fencepost.application.chain_view import ChainView
from fencepost.application.lane import Lane
from fencepost.application.lane_parts import LanePorts
from fencepost.bootstrap.chains import open_chains
from fencepost.bootstrap.database import build_ledger, open_database, require_schema
from fencepost.bootstrap.lane_settings import decode_raw, lane_settings_for, mark_stuck
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.errors import FencepostError
from fencepost.runtime.clock import MonotonicClock
from fencepost.runtime.metrics import Metrics
from fencepost.runtime.observer import NodeObserver
from fencepost.settings import Settings

T = TypeVar("T")

NAME = "restore"


class SignerHeld(FencepostError):
    """Report that a node holds the signer's lease."""

    code = "signer_held"


@dataclass(slots=True)
class RestoreTools:
    """Hold the ledger and the chains, and make lanes for `application/restore.py`."""

    settings: Settings
    pool: Pool
    ledger: PostgresLedger
    chains: dict[int, EvmChain]
    keys: KeyRing
    clock: MonotonicClock
    observer: NodeObserver

    async def signers(self) -> list[Signer]:
        """Return all signers of the configured chains that have a cursor or live transactions."""
        found = await self.pool.fetch(sql("all_signers"), list(self.chains))
        return [Signer(row["chain_id"], Address(row["signer"])) for row in found]

    def reading_lane(self, signer: Signer) -> Lane:
        """Return a lane without a lease: PostgreSQL rejects its writes."""
        return self._lane(Term(signer, token=0, renewed_at_s=0.0, duration_s=0.0))

    async def with_lease(self, signer: Signer, use: Callable[[Lane], Awaitable[T]]) -> T:
        """Acquire the signer's lease, renew it while `use` runs, and release it.

        Raises `SignerHeld` if a node holds the lease.
        """
        terms = await self.ledger.acquire([signer])
        if not terms:
            raise SignerHeld(
                "a node holds the signer's lease: stop all nodes, wait until the leases expire, and try again"
            )
        lane = self._lane(terms[0])
        renewing = asyncio.create_task(self._keep(lane))
        try:
            return await use(lane)
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
            lane.stop_awaiting_blocks()
            await self.ledger.release([lane.term])

    async def _keep(self, lane: Lane) -> None:
        while True:
            await asyncio.sleep(self.settings.lease.renew_interval_s)
            renewed = await self.ledger.renew([lane.term])
            if not renewed:
                return  # PostgreSQL rejects the next write, and the command reports it
            lane.on_renewed(renewed[0])

    def _lane(self, term: Term) -> Lane:
        chain = self.chains[term.signer.chain_id]
        return Lane(
            term=term,
            settings=lane_settings_for(self.settings, self.settings.signer_settings(term.signer.address)),
            ports=LanePorts(
                ledger=self.ledger,
                chain=chain,
                chain_view=ChainView(chain),
                keys=self.keys,
                clock=self.clock,
                observer=self.observer,
                stuck_hook=mark_stuck,
                handlers={},
                decode=decode_raw,
            ),
        )


@asynccontextmanager
async def open_restore(settings: Settings, *, dsn: str) -> AsyncIterator[RestoreTools]:
    """Open the database and the chains of the settings until the body ends."""
    await require_schema(settings, dsn)
    metrics = Metrics(signer_labels=False)
    async with AsyncExitStack() as stack:
        keys = await load_keys(
            private_keys=(), key_file=None, keystore_dir=None, password_file=None, remote_url=None
        )
        stack.push_async_callback(keys.aclose)
        pools = await open_database(settings, stack, dsn=dsn, name=NAME, history=DatabaseHistory())
        chains, _, _ = await open_chains(settings, stack, metrics, pools.work)
        clock = MonotonicClock()
        ledger = build_ledger(settings, pools, clock, name=NAME, incarnation=uuid4())
        observer = NodeObserver(NAME, metrics)
        yield RestoreTools(settings, pools.work, ledger, chains, keys, clock, observer)
        await ledger.drain()
