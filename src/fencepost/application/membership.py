"""Define the table of nodes that use one database. It is advisory: correctness never depends on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID

Mode = Literal["basic", "worker_queue"]


@dataclass(frozen=True, slots=True)
class Member:
    """Describe a live node. Nodes with equal `serves` hold the same keys for the same chains and share their signers.

    `silent_chains` are the chains whose endpoints do not answer this node.
    """

    name: str
    incarnation: UUID
    mode: Mode
    serves: str
    silent_chains: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class NodeView:
    """Describe a node for the API and the command line."""

    name: str
    incarnation: UUID
    url: str | None
    mode: Mode
    serves: str
    version: str
    started_at: datetime
    heartbeat_at: datetime
    is_live: bool
    signers: int  # how many leases it holds


class Members(Protocol):
    """Read and write the table of nodes. Database errors are raised unchanged."""

    async def join(self, *, instead_of: NodeView | None = None) -> bool:
        """Register this process, and return whether it has the name now.

        `instead_of` is a registered process without recent heartbeats, which this process replaces.
        """
        ...

    async def beat(self, silent_chains: Collection[int] = ()) -> bool:
        """Send a heartbeat with the silent chains, and return whether this process still has the name."""
        ...

    async def leave(self) -> None:
        """Remove this process from the table."""
        ...

    async def live(self) -> Sequence[Member]:
        """Return the nodes with a recent heartbeat."""
        ...

    async def all(self) -> Sequence[NodeView]:
        """Return all nodes of the table, live or not."""
        ...
