"""What people ask of lanes, through any node: stored together with who asked and why, carried out by the lane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from fencepost.domain.ids import Signer


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a name for people to read, and the key that opened the door, if one did."""

    name: str
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """`command` is what the lane knows; `action` is what the audit calls it."""

    signer: Signer
    command: str
    action: str
    tx_id: UUID | None = None
    reason: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


class Operate(Protocol):
    async def ask(self, wish: Wish, actor: Actor) -> int:
        """The wish's id: it and its audit row are stored, both or neither."""
        ...
