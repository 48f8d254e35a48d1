"""How far down forks reached, for every signer, until a lane here has looked into what they undid.

Should a lane be lost over it, the next one here begins with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fencepost.domain.ids import Signer

# A fork that no lane here has looked into is another node's by then.
FORK_KEPT_S = 120.0


class _Fork(NamedTuple):
    block: int
    at_s: float


@dataclass(slots=True)
class Forks:
    now_s: Callable[[], float] = time.monotonic
    _by_signer: dict[Signer, list[_Fork]] = field(default_factory=dict)

    def add(self, signer: Signer, block: int) -> None:
        deeper = [fork for fork in self._young(signer) if fork.block < block]  # the others are in this one
        self._by_signer[signer] = [*deeper, _Fork(block, self.now_s())]

    def lowest(self, signer: Signer) -> int | None:
        return min((fork.block for fork in self._young(signer)), default=None)

    def looked_into(self, signer: Signer) -> None:
        self._by_signer.pop(signer, None)

    def _young(self, signer: Signer) -> list[_Fork]:
        oldest_s = self.now_s() - FORK_KEPT_S
        return [fork for fork in self._by_signer.get(signer, ()) if fork.at_s > oldest_s]
