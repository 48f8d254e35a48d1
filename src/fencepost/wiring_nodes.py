"""What makes a node one of many: its place in the table of nodes, its routes, its samples, its figures."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from urllib.parse import urlsplit
from uuid import UUID

from fencepost.adapters.http.forward import HttpForward
from fencepost.adapters.postgres.database import History, Pools, is_failure
from fencepost.adapters.postgres.nodes import PostgresMembers, node_place, take_sample
from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.wakeups import Wakeups
from fencepost.application.forwarding import Passes
from fencepost.application.intake import Intake
from fencepost.application.membership import Member
from fencepost.domain.ids import Address
from fencepost.runtime.looping import Trouble, keep_turning
from fencepost.runtime.membership import Membership
from fencepost.runtime.metrics import Metrics, PoolUse
from fencepost.runtime.node import Node
from fencepost.runtime.observing import NodeObserver
from fencepost.runtime.routing import Router
from fencepost.runtime.sampling import Sampling
from fencepost.settings import Settings

_log = logging.getLogger(__name__)

LEAVE_WITHIN_S = 1.0


def member(
    settings: Settings,
    *,
    name: str,
    incarnation: UUID,
    chain_ids: Iterable[int],
    addresses: Iterable[Address],
) -> Member:
    """This process, as the others see it."""
    serves = " ".join([*map(str, sorted(chain_ids)), *sorted(addresses)])
    return Member(
        name=name,
        incarnation=incarnation,
        mode=settings.routing.mode,
        serves=hashlib.sha256(serves.encode()).hexdigest(),
    )


def advertised_url(settings: Settings, *, url: str | None) -> str | None:
    """Where others reach this node: as configured, at the port that it listens on unless another is named."""
    told = settings.node.url
    if not told or url is None:
        return told or url
    parts = urlsplit(told)
    if parts.port is not None:
        return told
    return parts._replace(netloc=f"{parts.netloc}:{urlsplit(url).port}").geturl()


def open_forwarding(settings: Settings, pool: Pool) -> tuple[Passes | None, HttpForward | None]:
    """What reads the passes of other nodes, and what hands calls on to them. Whoever opens closes the second."""
    if not settings.routing.secret:
        return None, None
    passes = Passes(settings.routing.secret)
    return passes, HttpForward(passes, partial(node_place, pool)) if settings.routing.forward else None


def pool_use(pool: Pool) -> PoolUse:
    size, idle = pool.get_size(), pool.get_idle_size()
    return PoolUse(used=size - idle, idle=idle, most=pool.get_max_size())


@asynccontextmanager
async def among_others(
    settings: Settings,
    *,
    node: Node,
    pools: Pools,
    wakeups: Wakeups,
    router: Router,
    observer: NodeObserver,
    intake: Intake,
    history: History,
    url: str | None,
) -> AsyncIterator[Membership]:
    """The node's name is taken before the body; heartbeats and samples go on until it ends.

    From here on others hand signers and calls over to this node: it must be able to hear, and to answer. Raises
    `Unready` when another live process has the name. Whoever stops the node calls `leave` first, so that the others
    know whose signers become theirs before these are free.
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
        announce=wakeups.members,
        on_routes_changed=node.rebalance,
        on_excluded=node.exclude,
    )
    sampling = Sampling(
        take=partial(take_sample, pools.work),
        clock=node.clock,
        intake=intake,
        metrics=observer.metrics,
        tell=node.told,
    )
    history.on_change = node.history_changed
    node.letting_go.tell_freed = wakeups.freed
    wakeups.on_members = membership.wake.set
    _show(observer.metrics, node, pools.work)
    await membership.join()
    loops = [
        asyncio.create_task(
            keep_turning(membership.turn, trouble=Trouble("heartbeat", is_failure), wake=membership.wake)
        ),
        asyncio.create_task(keep_turning(sampling.turn, trouble=Trouble("sampling", is_failure))),
    ]
    try:
        yield membership
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def leave(membership: Membership) -> None:
    """Bounded, and without a complaint to the caller: the name is free soon in any case."""
    try:
        async with asyncio.timeout(LEAVE_WITHIN_S):
            await membership.leave()
    except Exception as error:  # noqa: BLE001 - a stop must not fail on a broken database; the cause is logged
        _log.warning("the name %s was not given back (%s)", membership.me.name, type(error).__name__)


def _show(metrics: Metrics, node: Node, pool: Pool) -> None:
    metrics.watch(
        held=lambda: len(node.lanes), waiting=lambda: node.lanes.waiting, pool=lambda: pool_use(pool)
    )
