"""This process in the table of nodes: it takes its name, says that it lives, and learns who else does.

A name that another live process has is refused at the start. A row that nobody renews any more, as after a kill -9, is
watched for as long as two heartbeats, and then taken: a restarted node comes back by itself. Should the other one live
after all (it was only paused), it finds its row taken at its next heartbeat: it then works for nobody until the name is
free again, and says so. Two processes of one name are a mistake of whoever started them, but never a danger: leases
belong to incarnations.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fencepost.application.membership import Member, Members, NodeView
from fencepost.application.ports import Observer
from fencepost.errors import Unready
from fencepost.runtime.routing import Router

_log = logging.getLogger(__name__)

HEARTBEATS_WATCHED = 2.2
_LOOKS = 8  # at a row that may be dead, while it is watched


@dataclass(slots=True)
class Membership:
    me: Member
    table: Members
    router: Router
    observer: Observer
    beat_every_s: float
    announce: Callable[[], Awaitable[None]]  # tells the others that the list has changed
    on_routes_changed: Callable[[], None] = lambda: None
    on_excluded: Callable[[bool], None] = lambda _: None
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # the list may have changed
    _is_excluded: bool = False
    _has_left: bool = False

    async def join(self) -> None:
        """Raises `Unready` when another live process has the name."""
        if not await self.table.join() and not await self._join_after_watching():
            raise Unready(
                f"another live node is called {self.me.name}: give each node a node.id of its own"
                " (or wait a moment, if it was just stopped)"
            )
        self.router.update(await self.table.live())
        await self.announce()

    async def _join_after_watching(self) -> bool:
        first = await self._holder()
        watch_s = HEARTBEATS_WATCHED * self.beat_every_s
        if first is not None:
            _log.info("the name %s was in use a moment ago; waiting %.1f s", self.me.name, watch_s)
        for _ in range(_LOOKS):
            await asyncio.sleep(watch_s / _LOOKS)
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
        """Seconds until the next one."""
        if self._has_left:
            return self.beat_every_s
        mine = await self.table.beat() or (self._is_excluded and await self.table.join())
        if mine == self._is_excluded:
            self._is_excluded = not mine
            self.on_excluded(self._is_excluded)
        if not mine:
            self.observer.note("duplicate_node", name=self.me.name, incarnation=str(self.me.incarnation))
        if self.router.update(await self.table.live()):
            self.on_routes_changed()
        return self.beat_every_s

    async def leave(self) -> None:
        """For good: no heartbeat brings it back."""
        self._has_left = True
        await self.table.leave()
        await self.announce()
