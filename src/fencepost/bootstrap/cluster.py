"""Make a node a member of its cluster: its row in the table of nodes, routes, forwarding, samples and metrics."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from urllib.parse import urlsplit
from uuid import UUID

from fencepost.adapters.evm.chain import EvmChain
from fencepost.adapters.evm.endpoints import Endpoint
from fencepost.adapters.http.forward import HttpForward
from fencepost.adapters.postgres.database import DatabaseHistory, Pools, is_failure, start_failures_explained
from fencepost.adapters.postgres.nodes import PostgresMembers, node_address, take_cluster_sample, take_sample
from fencepost.adapters.postgres.notifier import Notifier
from fencepost.adapters.postgres.pool import Pool
from fencepost.application.admission import AdmissionControl
from fencepost.application.chain_view import ChainView
from fencepost.application.forwarding import ForwardTokens
from fencepost.application.membership import Member
from fencepost.domain.ids import Address
from fencepost.runtime.membership import Membership
from fencepost.runtime.metrics import EndpointGauges, Metrics, PoolUse
from fencepost.runtime.node import Node
from fencepost.runtime.observer import NodeObserver
from fencepost.runtime.queue_sampler import ClusterSampler, QueueSampler
from fencepost.runtime.routing import Router
from fencepost.settings import Settings
from fencepost.tasks.service_loop import FailureLog, run_service_loop

_log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 1.0


def member(
    settings: Settings,
    *,
    name: str,
    incarnation: UUID,
    chain_ids: Iterable[int],
    addresses: Iterable[Address],
) -> Member:
    """Describe this process to the other nodes."""
    serves = " ".join([*map(str, sorted(chain_ids)), *sorted(addresses)])
    return Member(
        name=name,
        incarnation=incarnation,
        mode=settings.routing.mode,
        serves=hashlib.sha256(serves.encode()).hexdigest(),
    )


def advertised_url(settings: Settings, *, url: str | None) -> str | None:
    """Return the URL at which other nodes reach this one: `node.url`, with the port it listens on unless it names one.

    Without `node.url` it is `url`, the address that the API listens on.
    """
    configured = settings.node.url
    if not configured or url is None:
        return configured or url
    parts = urlsplit(configured)
    if parts.port is not None:
        return configured
    return parts._replace(netloc=f"{parts.netloc}:{urlsplit(url).port}").geturl()


def open_forwarding(settings: Settings, pool: Pool) -> tuple[ForwardTokens | None, HttpForward | None]:
    """Return the verifier of forward tokens and the client that forwards requests; None where the settings disable it.

    The caller closes the client.
    """
    if not settings.routing.secret:
        return None, None
    forward_tokens = ForwardTokens(settings.routing.secret)
    return forward_tokens, HttpForward(
        forward_tokens, partial(node_address, pool)
    ) if settings.routing.forward else None


def pool_use(pool: Pool) -> PoolUse:
    """Count the connections of the pool."""
    size, idle = pool.get_size(), pool.get_idle_size()
    return PoolUse(used=size - idle, idle=idle, maximum=pool.get_max_size())


@asynccontextmanager
async def join_cluster(
    settings: Settings,
    *,
    node: Node,
    pools: Pools,
    notifier: Notifier,
    router: Router,
    observer: NodeObserver,
    admission: AdmissionControl,
    history: DatabaseHistory,
    url: str | None,
) -> AsyncIterator[Membership]:
    """Register the node before the body, and run heartbeats and samples until the body ends.

    From here on other nodes hand signers and requests over to this node, so it must already listen. Raises `Unready` if
    another live process has the name. The caller calls `leave` before it stops the node, so that the other nodes
    know which signers they get before the leases are free.
    """
    membership = Membership(
        me=router.me,
        table=PostgresMembers(
            pools.renewing,
            me=router.me,
            url=url,
            version=version("fencepost"),
            live_for_s=settings.lease.duration_s,
        ),
        router=router,
        observer=observer,
        beat_every_s=settings.lease.renew_interval_s,
        announce=notifier.members,
        on_routes_changed=node.rebalance,
        on_excluded=node.exclude,
        silent_chains=node.silent_chains,
    )
    sampling = QueueSampler(
        take=partial(take_sample, pools.work),
        clock=node.clock,
        admission=admission,
        metrics=observer.metrics,
        on_sample=node.apply_sample,
    )
    history.on_change = node.history_changed
    node.lease_releaser.announce_freed = notifier.freed
    notifier.on_members = membership.wake.set
    cluster = ClusterSampler(partial(take_cluster_sample, pools.work), node.clock, observer.metrics)
    _register_gauges(observer.metrics, node, pools.work)
    with start_failures_explained():
        await membership.join()
    loops = [
        asyncio.create_task(
            run_service_loop(
                membership.turn, failure_log=FailureLog("heartbeat", is_failure), wake=membership.wake
            )
        ),
        asyncio.create_task(run_service_loop(sampling.turn, failure_log=FailureLog("sampling", is_failure))),
        asyncio.create_task(
            run_service_loop(cluster.turn, failure_log=FailureLog("cluster sampling", is_failure))
        ),
    ]
    try:
        yield membership
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def leave(membership: Membership) -> None:
    """Remove the node from the table of nodes within a bounded time, and log a failure: the row expires by itself."""
    try:
        async with asyncio.timeout(LEAVE_TIMEOUT_S):
            await membership.leave()
    except Exception as error:  # noqa: BLE001 - a stop must not fail on a broken database; the cause is logged
        _log.warning(
            "the node %s was not removed from the list of nodes (%s); other nodes drop it when its heartbeats are missing",
            membership.me.name,
            type(error).__name__,
        )


def _register_gauges(metrics: Metrics, node: Node, pool: Pool) -> None:
    metrics.watch(
        held=lambda: len(node.lanes), waiting=lambda: node.lanes.waiting, pool=lambda: pool_use(pool)
    )
    metrics.watch_lanes(
        deferred=lambda: sum(lane.count_deferred() for lane in node.lanes),
        balance_ether=lambda: _lowest(lane.known_balance_wei() for lane in node.lanes) / _WEI_PER_ETHER,
        left=lambda: min((lane.transfers_left() for lane in node.lanes), default=math.inf),
    )
    for chain_id, view in node.chain_views.items():
        metrics.watch_chain(
            chain_id,
            head=partial(_head, view),
            still_s=partial(_still_s, view),
            silent_s=partial(_silent_s, view),
            endpoints=_endpoint_gauges(view),
        )


_WEI_PER_ETHER = 10**18


def _lowest(amounts: Iterable[int | None]) -> float:
    return min((amount for amount in amounts if amount is not None), default=math.nan)


def _head(view: ChainView) -> int:
    return max(0, view.view.head)


def _still_s(view: ChainView) -> float:
    return view.head_still_for_s or 0.0


def _is_up(endpoint: Endpoint) -> float:
    return 0.0 if endpoint.failures else 1.0


def _is_wrong(endpoint: Endpoint) -> float:
    return 0.0 if endpoint.wrong_since_s is None else 1.0


def _silent_s(view: ChainView) -> float:
    return view.chain.silent_for_s


def _endpoint_gauges(view: ChainView) -> dict[str, EndpointGauges]:
    if not isinstance(view.chain, EvmChain):
        return {}
    endpoints = view.chain.endpoints
    return {
        endpoint.rpc.endpoint: EndpointGauges(
            is_up=partial(_is_up, endpoint),
            head_lag=partial(endpoints.head_lag, endpoint),
            is_wrong=partial(_is_wrong, endpoint),
        )
        for endpoint in endpoints.all
    }
