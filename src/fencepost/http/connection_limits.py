"""Limit the connections of one server: in total, per peer, and in the time that a client may let one wait.

At a limit, a new connection replaces the one that has waited longest for its client: silent, idle, with half a request,
or with a response that the client does not read. The replaced one belongs to the same peer if that peer is at its limit,
else to the peer with the most connections. When every connection is busy with a request, a few more are accepted for
health checks only, and the rest are closed. So silent clients never block others, and descriptors are left for the
database and the endpoints.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import Protocol

_log = logging.getLogger(__name__)

RESERVED_DESCRIPTORS = 32  # for the database, the endpoints, health checks and files
RESERVED_FOR_HEALTH = 4  # connections beyond the limit, for health checks only
MIN_CONNECTIONS = 4
MAX_BACKLOG = 2048
SWEEP_INTERVAL_S = 1.0
WARN_INTERVAL_S = 60.0

HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/api/v1/healthz", "/api/v1/readyz"})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds for one server. A deadline starts with the wait it bounds and is not moved by further bytes."""

    max_connections: int = 4096
    max_per_peer: int = 1024
    backlog: int = MAX_BACKLOG
    head_timeout_s: float = (
        10.0  # from the connection, or the first byte of a request, to the end of its head
    )
    body_timeout_s: float = 30.0  # from the end of the head to the end of the body
    idle_timeout_s: float = 5.0  # between two requests
    write_timeout_s: float = 30.0  # for a client that does not read its response

    def within_descriptors(self) -> ConnectionLimits:
        """Return limits that leave descriptors in reserve, given what this process has open now."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self
        free = soft - sum(1 for _ in Path("/dev/fd").iterdir())
        # The loop accepts a burst before it handles any of it: the backlog bounds the burst, so it counts as well.
        room = free - RESERVED_DESCRIPTORS - RESERVED_FOR_HEALTH
        backlog = min(self.backlog, max(MIN_CONNECTIONS, room // 3))
        total = min(self.max_connections, max(MIN_CONNECTIONS, room - backlog))
        per_peer = self.max_per_peer
        if total < self.max_connections:
            per_peer = min(per_peer, total * 3 // 4)
            _log.warning(
                "the limit of %d open files leaves room for %d API connections, not api.max_connections = %d:"
                " raise it with ulimit -n",
                soft,
                total,
                self.max_connections,
            )
        return ConnectionLimits(
            max_connections=total,
            max_per_peer=per_peer,
            backlog=backlog,
            head_timeout_s=self.head_timeout_s,
            body_timeout_s=self.body_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
            write_timeout_s=self.write_timeout_s,
        )


def peer_name(client: tuple[str, int] | None) -> str:
    """Return the name under which connections are counted: the IPv4 address, or the /64 network of an IPv6 address."""
    return "" if client is None else _network(client[0])


@lru_cache(maxsize=1024)
def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class Admission(Enum):
    ADMITTED = auto()
    HEALTH_ONLY = auto()
    REJECTED = auto()


class LimitedConnection(Protocol):
    """A connection as the table sees it."""

    peer: str

    @property
    def waits_since_s(self) -> float | None:
        """Return since when the connection waits for its client; None while the client waits for a response."""
        ...

    def evict(self) -> None: ...

    def check_deadlines(self, now_s: float) -> None: ...


class ConnectionTable:
    """All open connections of one server."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self._by_peer: defaultdict[str, set[LimitedConnection]] = defaultdict(set)
        self._count = 0
        self._health_only: set[LimitedConnection] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._warned_at_s = -WARN_INTERVAL_S

    def add(self, connection: LimitedConnection) -> Admission:
        if self._sweep_timer is None:
            self._schedule_sweep()
        peers = self._by_peer[connection.peer]
        if len(peers) >= self.limits.max_per_peer:
            admitted = self._evict_from(peers)
        elif self._count >= self.limits.max_connections:
            largest_first = sorted(self._by_peer.values(), key=len, reverse=True)
            admitted = any(self._evict_from(connections_of_peer) for connections_of_peer in largest_first)
        else:
            admitted = True
        if admitted:
            self._by_peer[connection.peer].add(connection)
            self._count += 1
            return Admission.ADMITTED
        self._warn()
        if len(self._health_only) >= RESERVED_FOR_HEALTH:
            return Admission.REJECTED
        self._health_only.add(connection)
        return Admission.HEALTH_ONLY

    def remove(self, connection: LimitedConnection) -> None:
        self._health_only.discard(connection)
        peers = self._by_peer.get(connection.peer)
        if peers is not None and connection in peers:
            peers.discard(connection)
            self._count -= 1
        if not peers:
            self._by_peer.pop(connection.peer, None)

    def _evict_from(self, connections: set[LimitedConnection]) -> bool:
        waiting = [(since_s, connection) for connection in connections
                   if (since_s := connection.waits_since_s) is not None]  # fmt: skip
        if not waiting:
            return False
        _, oldest = min(waiting, key=lambda pair: pair[0])
        self.remove(oldest)
        oldest.evict()
        return True

    def _schedule_sweep(self) -> None:
        interval_s = min(SWEEP_INTERVAL_S, self.limits.idle_timeout_s / 2)
        self._sweep_timer = asyncio.get_running_loop().call_later(interval_s, self._sweep)

    def _sweep(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for connections in (*self._by_peer.values(), self._health_only):
            for connection in list(connections):
                connection.check_deadlines(now_s)
        self._sweep_timer = None
        if self._count or self._health_only:
            self._schedule_sweep()

    def _warn(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._warned_at_s >= WARN_INTERVAL_S:
            self._warned_at_s = now_s
            _log.warning(
                "new API connections are rejected: all %d are busy with requests (api.max_connections = %d,"
                " api.max_connections_per_peer = %d)",
                self._count,
                self.limits.max_connections,
                self.limits.max_per_peer,
            )
