"""Who is at work: the nodes of one database, as far as they say so. Correctness never rests on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID

Mode = Literal["basic", "worker_queue"]


@dataclass(frozen=True, slots=True)
class Member:
    """A live node. Nodes with equal `serves` hold the same keys for the same chains, and can share their signers."""

    name: str
    incarnation: UUID
    mode: Mode
    serves: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as a person sees it."""

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
    """The table of nodes. Errors of the database surface as they are."""

    async def join(self, *, instead_of: NodeView | None = None) -> bool:
        """Whether the name is this process's now. `instead_of` is one that was seen not to move any more."""
        ...

    async def beat(self) -> bool:
        """Whether the name is still this process's."""
        ...

    async def leave(self) -> None: ...

    async def live(self) -> Sequence[Member]: ...

    async def all(self) -> Sequence[NodeView]: ...
