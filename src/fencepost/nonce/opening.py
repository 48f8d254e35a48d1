"""The nonce service as the settings say: which schemes, on which database, chains and Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.heads import ChainWatch
from fencepost.application.ports import Chain, Clock
from fencepost.domain.ids import Signer
from fencepost.errors import InvalidRequest
from fencepost.nonce.closing import Closing
from fencepost.nonce.leased import LeasedNonces
from fencepost.nonce.port import NoncePort
from fencepost.nonce.postgres import PostgresNonces
from fencepost.nonce.records import Records
from fencepost.nonce.redis_full import RedisFullNonces
from fencepost.nonce.redis_issue import RedisIssueNonces
from fencepost.nonce.redis_link import RedisLink
from fencepost.nonce.redis_lock import RedisLock
from fencepost.nonce.redis_turns import HEARD_WITHIN_S
from fencepost.nonce.segments import SegmentNonces
from fencepost.nonce.service import NonceService
from fencepost.runtime.beside import beside
from fencepost.settings import Settings

CLOSE_EVERY_S = 1.0
HEARD_IN_TENDS = 2.5


@asynccontextmanager
async def open_nonce_service(
    settings: Settings, *, pool: Pool, chains: Mapping[int, Chain], clock: Clock, node: str
) -> AsyncIterator[NonceService]:
    """At work while it is entered. Redis is spoken to only if a scheme that is configured needs it."""
    nonce_service = settings.nonce_service
    async with AsyncExitStack() as stack:

        async def seen_by_chain(signer: Signer) -> int:
            chain = chains.get(signer.chain_id)
            if chain is None:
                raise InvalidRequest(f"chain {signer.chain_id} is not configured", field="chainId")
            return await chain.nonce(signer.address, "pending")

        records = Records(pool, seen_by_chain=seen_by_chain, heal_after_s=nonce_service.heal_after_s)
        names = {settings.nonce_scheme(address) for address in settings.signers} | {nonce_service.scheme}
        leases = PostgresLedger(
            pool,
            clock=clock,
            node=node,
            incarnation=uuid4(),  # not the node's: its lanes and this service each keep their own terms
            lease_duration_s=settings.lease.duration_s,
            skew_allowance_s=settings.lease.skew_allowance_s,
        )
        link = _link(settings, names)
        if link is not None:
            stack.push_async_callback(link.close)
        service = NonceService(
            schemes={
                name: _scheme(name, settings, records=records, leases=leases, link=link, clock=clock)
                for name in sorted(names)
            },
            scheme_of=settings.nonce_scheme,
            pool=pool,
            chain_ids=sorted(chains),
            closings=(),
            default_hold_s=nonce_service.hold_for_s,
            tend_every_s=nonce_service.tend_interval_s,
            reclaim_every_s=nonce_service.reclaim_interval_s,
            close_every_s=CLOSE_EVERY_S,
        )
        service.closings = [_closing(settings, pool, chain, service) for chain in chains.values()]
        stack.push_async_callback(service.close)
        async with beside(service.run(), name="nonce service"):
            yield service


def _link(settings: Settings, names: AbstractSet[str]) -> RedisLink | None:
    nonce_service = settings.nonce_service
    if not names & {"redis_issue", "redis_full"} and not (nonce_service.redis_lock and "postgres" in names):
        return None
    return RedisLink(
        nonce_service.redis_url,
        failures_max=nonce_service.redis_failures,
        probe_every_s=nonce_service.redis_probe_interval_s,
    )


def _scheme(
    name: str,
    settings: Settings,
    *,
    records: Records,
    leases: PostgresLedger,
    link: RedisLink | None,
    clock: Clock,
) -> NoncePort:
    nonce_service = settings.nonce_service
    match name:
        case "postgres":
            lock = RedisLock(link) if link is not None and nonce_service.redis_lock else None
            return PostgresNonces(records, lock=lock)
        case "redis_issue" if link is not None:
            return RedisIssueNonces(records, link)
        case "redis_full" if link is not None:
            # Whoever is tended in time hears in time that Redis is off.
            heard_within_s = max(HEARD_WITHIN_S, HEARD_IN_TENDS * nonce_service.tend_interval_s)
            return RedisFullNonces(records, link, heard_within_s=heard_within_s)
        case "segments":
            return SegmentNonces(
                records,
                clock=clock,
                block_size=nonce_service.block_size,
                unflushed_max=nonce_service.unflushed_max,
                dead_after_s=nonce_service.dead_after_s,
            )
        case _:
            return LeasedNonces(records, leases, clock=clock)


def _closing(settings: Settings, pool: Pool, chain: Chain, service: NonceService) -> Closing:
    required = settings.confirmations.required
    if isinstance(required, int):
        return Closing(pool, ChainWatch(chain, keep=2 * required + 128), required, service.mark_used)
    return Closing(pool, ChainWatch(chain, settled_tag=required), None, service.mark_used)
