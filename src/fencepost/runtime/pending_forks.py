"""Remember per signer how deep forks reached, until a lane on this node has checked what they undid.

If a lane is lost during the check, the signer's next lane on this node starts with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from fencepost.domain.ids import Signer

# After this time another node has handled a fork that no lane here has checked.
FORK_TTL_S = 120.0


class _Fork(NamedTuple):
    block: int
    at_s: float


@dataclass(slots=True)
class PendingForks:
    """Hold the blocks at which forks started, by signer."""

    now_s: Callable[[], float] = time.monotonic
    _by_signer: dict[Signer, list[_Fork]] = field(default_factory=dict)

    def add(self, signer: Signer, block: int) -> None:
        """Add a fork; it replaces the forks at the same block or above."""
        deeper = [fork for fork in self._recent(signer) if fork.block < block]
        self._by_signer[signer] = [*deeper, _Fork(block, self.now_s())]

    def lowest(self, signer: Signer) -> int | None:
        """Return the lowest block of the signer's forks, or None if there is none to check."""
        return min((fork.block for fork in self._recent(signer)), default=None)

    def discard(self, signer: Signer) -> None:
        """Forget the signer's forks: a lane has checked them."""
        self._by_signer.pop(signer, None)

    def _recent(self, signer: Signer) -> list[_Fork]:
        oldest_s = self.now_s() - FORK_TTL_S
        return [fork for fork in self._by_signer.get(signer, ()) if fork.at_s > oldest_s]
