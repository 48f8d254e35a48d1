"""Build the nonce service from the settings: its schemes, database, chains and Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.chain_view import ChainView
from fencepost.application.ports import Chain, Clock
from fencepost.domain.ids import Signer
from fencepost.errors import InvalidRequest
from fencepost.nonce.confirmer import ReceiptConfirmer
from fencepost.nonce.leased import LeasedNonces
from fencepost.nonce.port import EventSink, NoncePort, ignore_event
from fencepost.nonce.postgres import PostgresNonces
from fencepost.nonce.redis_authority import MAX_STATUS_AGE_S
from fencepost.nonce.redis_client import RedisClient
from fencepost.nonce.redis_full import RedisFullNonces
from fencepost.nonce.redis_issue import RedisIssueNonces
from fencepost.nonce.redis_lock import RedisLock
from fencepost.nonce.segments import SegmentNonces
from fencepost.nonce.service import NonceService
from fencepost.nonce.store import NonceStore
from fencepost.settings import Settings
from fencepost.tasks.background_task import background_task

CONFIRM_INTERVAL_S = 1.0
STATUS_AGE_IN_TENDS = 2.5


@asynccontextmanager
async def open_nonce_service(
    settings: Settings,
    *,
    pool: Pool,
    chains: Mapping[int, Chain],
    clock: Clock,
    node: str,
    note: EventSink = ignore_event,
) -> AsyncIterator[NonceService]:
    """Run the nonce service while the context is open. It connects to Redis only if a configured scheme needs it."""
    nonce_service = settings.nonce_service
    async with AsyncExitStack() as stack:

        async def chain_nonce(signer: Signer) -> int:
            chain = chains.get(signer.chain_id)
            if chain is None:
                raise InvalidRequest(f"chain {signer.chain_id} is not configured", field="chainId")
            return await chain.nonce(signer.address, "pending")

        store = NonceStore(pool, chain_nonce=chain_nonce, heal_after_s=nonce_service.heal_after_s)
        names = {settings.nonce_scheme(address) for address in settings.signers} | {nonce_service.scheme}
        leases = PostgresLedger(
            pool,
            clock=clock,
            node=node,
            incarnation=uuid4(),  # not the node's: the lanes and this service each have their own terms
            lease_duration_s=settings.lease.duration_s,
            skew_allowance_s=settings.lease.skew_allowance_s,
        )
        redis = _redis_client(settings, names, note)
        if redis is not None:
            stack.push_async_callback(redis.close)
        service = NonceService(
            schemes={
                name: _scheme(name, settings, store=store, leases=leases, redis=redis, clock=clock)
                for name in sorted(names)
            },
            scheme_of=settings.nonce_scheme,
            pool=pool,
            chain_ids=sorted(chains),
            confirmers=(),
            default_hold_s=nonce_service.hold_for_s,
            tend_interval_s=nonce_service.tend_interval_s,
            reclaim_interval_s=nonce_service.reclaim_interval_s,
            confirm_interval_s=CONFIRM_INTERVAL_S,
            note=note,
        )
        service.confirmers = [_confirmer(settings, pool, chain, service) for chain in chains.values()]
        stack.push_async_callback(service.close)
        async with background_task(service.run(), name="nonce service"):
            yield service


def _redis_client(settings: Settings, names: AbstractSet[str], note: EventSink) -> RedisClient | None:
    nonce_service = settings.nonce_service
    if not names & {"redis_issue", "redis_full"} and not (nonce_service.redis_lock and "postgres" in names):
        return None
    return RedisClient(
        nonce_service.redis_url,
        max_failures=nonce_service.redis_failures,
        probe_interval_s=nonce_service.redis_probe_interval_s,
        note=note,
    )


def _scheme(
    name: str,
    settings: Settings,
    *,
    store: NonceStore,
    leases: PostgresLedger,
    redis: RedisClient | None,
    clock: Clock,
) -> NoncePort:
    nonce_service = settings.nonce_service
    match name:
        case "postgres":
            lock = RedisLock(redis) if redis is not None and nonce_service.redis_lock else None
            return PostgresNonces(store, lock=lock)
        case "redis_issue" if redis is not None:
            return RedisIssueNonces(store, redis)
        case "redis_full" if redis is not None:
            # The maintenance loop refreshes the status; it must do so before the status is too old.
            max_status_age_s = max(MAX_STATUS_AGE_S, STATUS_AGE_IN_TENDS * nonce_service.tend_interval_s)
            return RedisFullNonces(store, redis, max_status_age_s=max_status_age_s)
        case "segments":
            return SegmentNonces(
                store,
                clock=clock,
                block_size=nonce_service.block_size,
                unflushed_max=nonce_service.unflushed_max,
                dead_after_s=nonce_service.dead_after_s,
            )
        case _:
            return LeasedNonces(store, leases, clock=clock)


def _confirmer(settings: Settings, pool: Pool, chain: Chain, service: NonceService) -> ReceiptConfirmer:
    required = settings.confirmations.required
    if isinstance(required, int):
        return ReceiptConfirmer(pool, ChainView(chain, keep=2 * required + 128), required, service.mark_used)
    return ReceiptConfirmer(pool, ChainView(chain, settled_tag=required), None, service.mark_used)
