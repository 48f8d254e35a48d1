"""Choose the representative round among several interleaved ones.

A shared machine may be a third slower than a minute ago. Within a round that affects everything that is compared, so the
ratio holds; separate medians could come from different minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Round = TypeVar("Round")


def median_round(rounds: Sequence[Round], ratio: Callable[[Round], float]) -> Round:
    """Return the round with the median ratio; of an even number, the lower one of the two in the middle."""
    return sorted(rounds, key=ratio)[(len(rounds) - 1) // 2]
