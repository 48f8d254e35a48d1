"""Build a running node from its settings. Only this package knows which adapter implements a port."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.http.forward import HttpForward
from fencepost.adapters.http.webhooks import WebhookSender
from fencepost.adapters.postgres.database import (
    DatabaseHistory,
    Pools,
    is_failure,
)
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.nodes import list_nodes, soonest_expiry_s
from fencepost.adapters.postgres.notifier import Notifier
from fencepost.adapters.postgres.policies import PostgresPolicies
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.query_reader import PostgresReader
from fencepost.adapters.postgres.subscriptions import PostgresSubscriptions
from fencepost.adapters.signers import KeyRing
from fencepost.application.accept import RequestAcceptor
from fencepost.application.admission import AdmissionControl
from fencepost.application.chain_view import ChainView
from fencepost.application.explain_facts import Explainer
from fencepost.application.fee_sources import FeeSources
from fencepost.application.forwarding import ForwardTokens
from fencepost.application.hooks import Handler, StuckHook
from fencepost.application.lane import Lane
from fencepost.application.lane_parts import LanePorts
from fencepost.application.ports import Header
from fencepost.application.spending_policy import SpendingGuard
from fencepost.application.tx_events import TxEvents
from fencepost.application.tx_waiter import TxWaiter
from fencepost.bootstrap.chains import build_chain_view, open_chains, start_chain_views
from fencepost.bootstrap.cluster import advertised_url, join_cluster, leave, member, open_forwarding
from fencepost.bootstrap.database import build_ledger, open_database, require_schema
from fencepost.bootstrap.events import (
    build_event_reader,
    build_sender,
    deliver_webhooks,
    follow_stable_blocks,
    prune_events,
)
from fencepost.bootstrap.fees import open_fee_sources
from fencepost.bootstrap.keys import open_keys
from fencepost.bootstrap.lane_settings import decode_raw, lane_rules, lane_settings_for, stuck_hook_of
from fencepost.domain.lease import Term
from fencepost.events.reader import EventReader
from fencepost.nonce.factory import open_nonce_service
from fencepost.nonce.service import NonceService
from fencepost.runtime.clock import MonotonicClock
from fencepost.runtime.membership import Membership
from fencepost.runtime.metrics import Metrics
from fencepost.runtime.node import LoopIntervals, Node
from fencepost.runtime.observer import NodeObserver
from fencepost.runtime.routing import Router
from fencepost.settings import Settings
from fencepost.tasks.background_task import background_task

DRAIN_TIMEOUT_S = 1.0


@dataclass(slots=True)
class RunningNode:
    """Hold the parts of a node that the API, the command line and the facade use."""

    settings: Settings
    node: Node
    pool: Pool
    ledger: PostgresLedger
    chains: dict[int, EvmChain]
    default_chain_id: int
    keys: KeyRing
    acceptor: RequestAcceptor
    tx_events: TxEvents
    tx_waiter: TxWaiter
    observer: NodeObserver
    handlers: dict[UUID, Handler]
    spending: SpendingGuard
    events: EventReader
    explainer: Explainer
    subscriptions: PostgresSubscriptions
    webhook_sender: WebhookSender
    fees: dict[int, FeeSources]
    nonces: NonceService | None = None  # if nonce_service.enabled
    forward_tokens: ForwardTokens | None = None  # if routing.secret is given
    forward: HttpForward | None = None  # if routing.forward


OpenApi = Callable[[RunningNode], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def no_api(_running: RunningNode) -> AsyncIterator[None]:
    """Open no API, for a node that is embedded in another program."""
    yield


def node_name(settings: Settings, *, url: str | None) -> str:
    """Return `node.id`; without it, a name from the host and the port, which no other server on the host has.

    A node without an API gets the process id and a random suffix instead of the port.
    """
    if settings.node.id:
        return settings.node.id
    own = f":{urlsplit(url).port}" if url else f"-{os.getpid()}-{uuid4().hex[:4]}"
    return socket.gethostname() + own


@asynccontextmanager
async def open_node(
    settings: Settings,
    *,
    dsn: str,
    more_private_keys: Sequence[str] = (),
    stuck_hook: StuckHook | None = None,
    url: str | None = None,
    open_api: OpenApi = no_api,
) -> AsyncIterator[RunningNode]:
    """Open a node, and run it until the body ends. The database and the endpoints must be running.

    `url` is the address of its API, if it has one. `open_api` opens the API: before other nodes know this one, so that they
    forward no request to a closed port. The API closes after the leases are released, so that no request is cut off.
    """
    decide_stuck = stuck_hook or stuck_hook_of(settings)
    metrics = Metrics(signer_labels=settings.metrics.signer_labels)
    await require_schema(settings, dsn)
    async with AsyncExitStack() as stack:
        keys = await open_keys(settings, stack, more_private_keys)
        name, history = node_name(settings, url=url), DatabaseHistory()
        pools = await open_database(settings, stack, dsn=dsn, name=name, history=history)
        chains, heads, default_chain_id = await open_chains(settings, stack, metrics, pools.work)
        parts = _build_parts(settings, name=name, keys=keys, pools=pools, chains=chains, metrics=metrics)
        for chain_id, chain in chains.items():
            parts.fees[chain_id] = open_fee_sources(settings.fees, chain, parts.clock, stack)
        node = _build_node(parts, heads=heads, make_lane=_lane_maker(parts, decide_stuck))
        notifier = _build_notifier(node, pools, dsn)
        running = _build_running(parts, node, notifier, default_chain_id=default_chain_id)
        await _open_services(running, stack, parts, notifier)
        await start_chain_views(parts.views.values())
        async with (
            _listen_for_hints(notifier, within_s=settings.database.connect_timeout_s),
            open_api(running),
            join_cluster(
                settings,
                node=node,
                pools=pools,
                notifier=notifier,
                router=parts.router,
                observer=parts.observer,
                admission=parts.admission,
                history=history,
                url=advertised_url(settings, url=url),
            ) as membership,
            _run_loops(running, membership),
        ):
            yield running
        with suppress(TimeoutError):  # what hangs there ends with its connection
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await parts.ledger.drain()


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the lanes, the node and its API share. Building it does no I/O."""

    settings: Settings
    name: str
    incarnation: UUID
    clock: MonotonicClock
    keys: KeyRing
    pools: Pools
    chains: dict[int, EvmChain]
    views: dict[int, ChainView]
    ledger: PostgresLedger
    tx_events: TxEvents
    waiter: TxWaiter
    observer: NodeObserver
    admission: AdmissionControl
    router: Router
    spending: SpendingGuard
    handlers: dict[UUID, Handler]
    fees: dict[int, FeeSources]


def _build_parts(
    settings: Settings,
    *,
    name: str,
    keys: KeyRing,
    pools: Pools,
    chains: dict[int, EvmChain],
    metrics: Metrics,
) -> _Parts:
    incarnation, clock = uuid4(), MonotonicClock()
    ledger = build_ledger(settings, pools, clock, name=name, incarnation=incarnation)
    tx_events = TxEvents()
    observer = NodeObserver(name, metrics)
    me = member(settings, name=name, incarnation=incarnation, chain_ids=chains, addresses=keys.addresses())
    return _Parts(
        settings=settings,
        name=name,
        incarnation=incarnation,
        clock=clock,
        keys=keys,
        pools=pools,
        chains=chains,
        views={chain_id: build_chain_view(settings, chain) for chain_id, chain in chains.items()},
        ledger=ledger,
        tx_events=tx_events,
        waiter=TxWaiter(ledger, tx_events),
        observer=observer,
        admission=AdmissionControl(
            observer,
            settings.intake.max_queued,
            settings.intake.max_queued_per_signer,
            settings.intake.key_share,
        ),
        router=Router(me, grace_s=settings.routing.grace_s),
        spending=SpendingGuard(PostgresPolicies(pools.work, node=name), ledger),
        handlers={},
        fees={},
    )


def _lane_maker(parts: _Parts, stuck_hook: StuckHook) -> Callable[[Term], Lane]:
    settings = parts.settings
    lane_settings = cache(partial(lane_settings_for, settings))  # nearly all lanes share one

    def make_lane(term: Term) -> Lane:
        chain_id = term.signer.chain_id
        return Lane(
            term=term,
            settings=lane_settings(settings.signer_settings(term.signer.address)),
            ports=LanePorts(
                ledger=parts.ledger,
                chain=parts.chains[chain_id],
                chain_view=parts.views[chain_id],
                keys=parts.keys,
                clock=parts.clock,
                observer=parts.observer,
                stuck_hook=stuck_hook,
                handlers=parts.handlers,
                decode=decode_raw,
                incarnation=parts.incarnation,
                events=parts.tx_events,
                spending=parts.spending,
                fees=parts.fees[chain_id],
            ),
        )

    return make_lane


def _build_node(
    parts: _Parts,
    *,
    heads: dict[int, Callable[..., AsyncGenerator[Header, None]]],
    make_lane: Callable[[Term], Lane],
) -> Node:
    settings = parts.settings
    return Node(
        name=parts.name,
        incarnation=parts.incarnation,
        ledger=parts.ledger,
        clock=parts.clock,
        observer=parts.observer,
        chain_views=parts.views,
        heads={
            chain_id: partial(heads[chain_id], block_expected=view.block_expected, on_failure=view.failed)
            for chain_id, view in parts.views.items()
        },
        addresses=frozenset(parts.keys.addresses()),
        intervals=LoopIntervals(
            renew_interval_s=settings.lease.renew_interval_s,
            idle_release_s=settings.lease.idle_release_s,
            skew_allowance_s=settings.lease.skew_allowance_s,
            handover_budget_s=settings.routing.handover_budget_s,
            silent_release_s=settings.lease.silent_release_s,
        ),
        make_lane=make_lane,
        workers=settings.lanes.workers,
        router=parts.router,
        soonest_expiry=partial(soonest_expiry_s, parts.pools.moving, parts.incarnation),
        is_database_failure=is_failure,
    )


def _build_notifier(node: Node, pools: Pools, dsn: str) -> Notifier:
    return Notifier(
        pools.work,
        dsn,
        urgent=pools.moving,
        on_hint=node.hint,
        on_requested=node.requested,
        on_freed=node.freed,
    )


def _build_running(parts: _Parts, node: Node, notifier: Notifier, *, default_chain_id: int) -> RunningNode:
    return RunningNode(
        settings=parts.settings,
        node=node,
        pool=parts.pools.work,
        ledger=parts.ledger,
        chains=parts.chains,
        default_chain_id=default_chain_id,
        keys=parts.keys,
        acceptor=RequestAcceptor(
            parts.ledger,
            parts.keys,
            frozenset(parts.chains),
            notifier.hint,
            parts.admission,
            notifier.requested,
            tx_gas_max=parts.settings.gas.tx_max or None,
            block_gas_limit=lambda chain_id: parts.views[chain_id].gas_limit,
        ),
        tx_events=parts.tx_events,
        tx_waiter=parts.waiter,
        observer=parts.observer,
        handlers=parts.handlers,
        spending=parts.spending,
        subscriptions=PostgresSubscriptions(parts.pools.work, node=parts.name),
        webhook_sender=build_sender(parts.settings),
        explainer=Explainer(
            reader=PostgresReader(parts.pools.work),
            chains=parts.chains,
            views=parts.views,
            nodes=partial(list_nodes, parts.pools.work),
            addresses=parts.keys.addresses,
            rules_for=partial(lane_rules, parts.settings),
            node=parts.name,
            is_database_failure=is_failure,
        ),
        events=build_event_reader(
            parts.pools.work, parts.waiter, notifier=notifier, tx_events=parts.tx_events
        ),
        fees=parts.fees,
    )


async def _open_services(
    running: RunningNode, stack: AsyncExitStack, parts: _Parts, notifier: Notifier
) -> None:
    """Open the services beside the lanes: events, webhooks, and the nonce service and forwarding if the settings ask for them."""
    settings, pool = parts.settings, parts.pools.work
    if settings.nonce_service.enabled:
        running.nonces = await stack.enter_async_context(
            open_nonce_service(
                settings,
                pool=pool,
                chains=parts.chains,
                clock=parts.clock,
                node=parts.name,
                note=parts.observer.note,
            )
        )
    await stack.enter_async_context(
        follow_stable_blocks(
            settings, pool=pool, node=parts.name, views=parts.views, on_written=notifier.log_grown
        )
    )
    await stack.enter_async_context(
        prune_events(running.events, running.subscriptions, keep_s=settings.events.retention_s)
    )
    stack.push_async_callback(running.webhook_sender.close)
    await stack.enter_async_context(
        deliver_webhooks(
            settings,
            pool=pool,
            events=running.events,
            subscriptions=running.subscriptions,
            sender=running.webhook_sender,
            clock=parts.clock,
            holder=parts.incarnation,
            node=parts.name,
        )
    )
    running.forward_tokens, running.forward = open_forwarding(settings, pool)
    if running.forward is not None:
        stack.push_async_callback(running.forward.close)


@asynccontextmanager
async def _listen_for_hints(notifier: Notifier, *, within_s: float) -> AsyncIterator[None]:
    async with background_task(notifier.run(), name="notifier"):
        await notifier.wait_until_listening(within_s=within_s)
        yield


@asynccontextmanager
async def _run_loops(running: RunningNode, membership: Membership) -> AsyncIterator[None]:
    """Run the node's loops until the body ends; then end all waits, finish the steps and release the leases."""
    async with background_task(running.node.run(), name="node") as work:
        try:
            yield
        finally:
            running.tx_waiter.stop()
            running.events.hint()  # the readers end, too
            await leave(membership)
            await running.node.stop()
            await work
