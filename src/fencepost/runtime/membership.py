"""Register this process in the table of nodes, send heartbeats, and read the list of live nodes.

A node does not start under a name that another live process has. A row without heartbeats, as after a kill -9, is
watched for two heartbeats and then replaced: a restarted node recovers by itself. If the other process was only paused,
it finds its row replaced at its next heartbeat: it then holds no lease until the name is free again, and logs that. Two
processes with one name are an operator's mistake, but never a danger: leases belong to incarnations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from fencepost.application.membership import Member, Members, NodeView
from fencepost.application.ports import Observer
from fencepost.errors import Unready
from fencepost.runtime.routing import Router

_log = logging.getLogger(__name__)

HEARTBEATS_WATCHED = 2.2
_READS_WHILE_WATCHING = 8


@dataclass(slots=True)
class Membership:
    """Keep the row of this process, and update the router with the live nodes."""

    me: Member
    table: Members
    router: Router
    observer: Observer
    beat_every_s: float
    announce: Callable[[], Awaitable[None]]  # notifies the other nodes that the list has changed
    on_routes_changed: Callable[[], None] = lambda: None
    on_excluded: Callable[[bool], None] = lambda _: None
    silent_chains: Callable[[], frozenset[int]] = frozenset
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # the list may have changed
    _is_excluded: bool = False
    _has_left: bool = False

    async def join(self) -> None:
        """Register this process. Raises `Unready` if another live process has the name."""
        if not await self.table.join() and not await self._join_after_watching():
            raise Unready(
                f"another live node has the name {self.me.name}: set a different node.id for each node"
                " (or start again in a moment, if that node was just stopped)"
            )
        self.router.update(await self.table.live())
        await self.announce()

    async def _join_after_watching(self) -> bool:
        first = await self._holder()
        observation_s = HEARTBEATS_WATCHED * self.beat_every_s
        if first is not None:
            _log.info(
                "the name %s was in use a moment ago; waiting up to %.1f s to see whether its node still runs",
                self.me.name,
                observation_s,
            )
        for _ in range(_READS_WHILE_WATCHING):
            await asyncio.sleep(observation_s / _READS_WHILE_WATCHING)
            now = await self._holder()
            if first is not None and now is not None and now.heartbeat_at != first.heartbeat_at:
                return False
            if now is None and await self.table.join():
                return True
        return await self.table.join(instead_of=first)

    async def _holder(self) -> NodeView | None:
        return next(
            (node for node in await self.table.all() if node.name == self.me.name and node.is_live), None
        )

    async def turn(self) -> float:
        """Send a heartbeat, read the live nodes, and return the seconds until the next turn."""
        if self._has_left:
            return self.beat_every_s
        silent = self.silent_chains()
        mine = await self.table.beat(silent) or (self._is_excluded and await self.table.join())
        if mine == self._is_excluded:
            self._is_excluded = not mine
            self.on_excluded(self._is_excluded)
        if not mine:
            self.observer.note("duplicate_node", name=self.me.name, incarnation=str(self.me.incarnation))
        self.router.me = replace(self.router.me, silent_chains=silent)
        if self.router.update(await self.table.live()):
            self.on_routes_changed()
        return self.beat_every_s

    async def leave(self) -> None:
        """Remove this process from the table of nodes. Later turns send no heartbeat."""
        self._has_left = True
        await self.table.leave()
        await self.announce()
