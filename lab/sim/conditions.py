"""Lasting conditions of the simulated world, such as an outage: which node they affect, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from lab.sim.loop import SimLoop

ALL_SLOTS: Final = -1


@dataclass(slots=True)
class Conditions:
    loop: SimLoop
    refused_reads: dict[tuple[str, int], bool] = field(
        default_factory=dict
    )  # permanent: whether the endpoint answers with an error
    _until_s: dict[tuple[str, int], tuple[float, int]] = field(default_factory=dict)

    def begin(self, kind: str, slot: int, *, length_s: float, size: int = 1) -> None:
        self._until_s[kind, slot] = (self.loop.time() + length_s, size)

    def end(self) -> None:
        self._until_s.clear()

    def strength(self, kind: str, slot: int) -> int:
        """Return how strong a condition is; 0 if there is none of this kind."""
        if not self._until_s:
            return 0
        return self._of(kind, slot)[1] or self._of(kind, ALL_SLOTS)[1]

    def left_s(self, kind: str, slot: int) -> float:
        """Return how long a condition will last."""
        if not self._until_s:
            return 0.0
        return max(self._of(kind, slot)[0], self._of(kind, ALL_SLOTS)[0])

    def has(self, kind: str, slot: int = ALL_SLOTS) -> bool:
        return self.strength(kind, slot) != 0

    def _of(self, kind: str, slot: int) -> tuple[float, int]:
        until_s, size = self._until_s.get((kind, slot), (0.0, 0))
        left_s = until_s - self.loop.time()
        return (left_s, size) if left_s > 0 else (0.0, 0)
