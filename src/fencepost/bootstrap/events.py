"""Connect the event log to a node: a reader for callers, a loop that removes old events, and the delivery of webhooks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from uuid import UUID

import msgspec

from fencepost.adapters.http.webhooks import WebhookSender
from fencepost.adapters.postgres.api_keys import PostgresKeyStore
from fencepost.adapters.postgres.database import is_failure
from fencepost.adapters.postgres.event_log import PostgresEventLog
from fencepost.adapters.postgres.notifier import Notifier
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.query_reader import PostgresReader
from fencepost.adapters.postgres.stable_blocks import PostgresStableBlocks
from fencepost.api.events import build_events
from fencepost.application.api_keys import Scope
from fencepost.application.chain_view import ChainView
from fencepost.application.ports import Clock
from fencepost.application.ttl_cache import TtlCache
from fencepost.application.tx_events import TxEvents
from fencepost.application.tx_waiter import TxWaiter
from fencepost.domain.confirmations import BlockRef
from fencepost.events.blocks import LinkedBlock, StableBlocks
from fencepost.events.reader import EventReader
from fencepost.events.retention import Retention
from fencepost.events.subscriptions import SubscriptionStore
from fencepost.events.types import Event
from fencepost.events.webhooks import Access, Deliverer, WebhookPolicy, stopping
from fencepost.settings import Settings
from fencepost.tasks.background_task import background_task
from fencepost.tasks.service_loop import FailureLog, run_service_loop

STOP_TIMEOUT_S = 2.0
KEY_CACHE_S = 5.0  # a revoked key stops deliveries after this time
MAX_CACHED_KEYS = 10_000


def build_event_reader(
    pool: Pool, waiter: TxWaiter, *, notifier: Notifier, tx_events: TxEvents
) -> EventReader:
    """Return a reader of the events in PostgreSQL; its waits end when the node stops.

    The commits of this process wake it directly, those of other nodes by a notification.
    """
    log = PostgresEventLog(pool)
    reader = EventReader(
        log, log.tags, is_stopped=lambda: waiter.is_stopped, on_waiting=notifier.readers_wait
    )
    notifier.on_log_growth = reader.hint
    tx_events.subscribe(lambda _: notifier.log_grown())
    return reader


@asynccontextmanager
async def follow_stable_blocks(
    settings: Settings,
    *,
    pool: Pool,
    node: str,
    views: Mapping[int, ChainView],
    on_written: Callable[[], object],
) -> AsyncIterator[None]:
    """Write events about the blocks of the chains that have a stable depth, until the body ends."""
    store = PostgresStableBlocks(pool, node=node)
    depths = {chain.id: chain.stable_depth for chain in settings.chains.values()}
    async with AsyncExitStack() as stack:
        for chain_id, view in views.items():
            if not (depth := depths.get(chain_id, 0)):
                continue
            blocks = StableBlocks(
                chain_id,
                depth,
                store,
                head=partial(_head_of, view),
                read_block=partial(_read_linked, view),
                on_written=on_written,
            )
            loop = run_service_loop(
                blocks.turn, failure_log=FailureLog(f"stable blocks of chain {chain_id}", is_failure)
            )
            task = await stack.enter_async_context(background_task(loop, name="stable-blocks"))
            stack.callback(task.cancel)
        yield


async def _read_linked(view: ChainView, number: int) -> LinkedBlock | None:
    block = await view.chain.block(number)
    if block is None:
        return None
    header = block.header
    return LinkedBlock(BlockRef(header.number, header.hash), header.parent_hash)


def _head_of(view: ChainView) -> int:
    return view.view.head


@asynccontextmanager
async def prune_events(
    events: EventReader, subscriptions: SubscriptionStore, *, keep_s: float
) -> AsyncIterator[None]:
    """Remove old events, and old deliveries that were given up, until the body ends."""
    retention = Retention(events.log, keep_s)

    async def turn() -> float:
        await subscriptions.prune(older_than_s=keep_s)
        return await retention.turn()

    loop = run_service_loop(turn, failure_log=FailureLog("event retention", is_failure))
    async with background_task(loop, name="event-retention") as task:
        try:
            yield
        finally:
            task.cancel()


def build_sender(settings: Settings) -> WebhookSender:
    """Return the sender of webhooks. It opens connections when it is used first."""
    webhook = settings.events.webhook
    return WebhookSender(
        timeout_s=webhook.timeout_s,
        allow_private=webhook.allow_private,
        max_in_flight=webhook.max_in_flight,
    )


@asynccontextmanager
async def deliver_webhooks(
    settings: Settings,
    *,
    pool: Pool,
    events: EventReader,
    subscriptions: SubscriptionStore,
    sender: WebhookSender,
    clock: Clock,
    holder: UUID,
    node: str,
) -> AsyncIterator[None]:
    """Deliver webhooks until the body ends; then release their leases."""
    webhook = settings.events.webhook
    reader, keys = PostgresReader(pool), PostgresKeyStore(pool, node=node)
    found = TtlCache(keys.find, ttl_s=KEY_CACHE_S, max_entries=MAX_CACHED_KEYS)

    async def render(listed: Sequence[Event], shows_nonce: bool) -> Sequence[bytes]:  # noqa: FBT001 - the port has two arguments
        shown = await build_events(
            listed, reader, shows_nonce=shows_nonce, required=settings.confirmations.required
        )
        return [msgspec.json.encode(event) for event in shown]

    async def find_access(owner: str | None) -> Access | None:
        if owner is None:
            return Access(None, settings.api.expose_nonce)
        entry = await found.get(owner)
        if entry is None:
            return None
        key, _ = entry
        return Access(key.signers, settings.api.expose_nonce or key.allows(Scope.OPERATOR))

    deliverer = Deliverer(
        store=subscriptions,
        log=events.log,
        send=sender,
        render=render,
        find_access=find_access,
        policy=WebhookPolicy(
            delays_s=webhook.retry_delays_s,
            skip_after=webhook.skip_after,
            disable_after_s=webhook.disable_after_s,
            max_in_flight=webhook.max_in_flight,
            lease_duration_s=settings.lease.duration_s,
            renew_interval_s=settings.lease.renew_interval_s,
        ),
        clock=clock,
        holder=holder,
        node=node,
        read_tags=events.read_tags,
        failure_log=FailureLog("webhook delivery", is_failure),
    )
    failure_log = FailureLog("webhook leases", is_failure)
    loop = run_service_loop(deliverer.turn, failure_log=failure_log, wake=deliverer.wake)
    async with stopping(deliverer, timeout_s=STOP_TIMEOUT_S), background_task(loop, name="webhooks") as task:
        try:
            yield
        finally:
            task.cancel()
