"""Things measured in turn, and of all rounds the one in the middle.

A shared machine may be a third slower now than a minute ago. Within a round it is so for everything that is compared,
and the ratio stands; the medians of each by itself may come from different minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Round = TypeVar("Round")


def middle(rounds: Sequence[Round], ratio: Callable[[Round], float]) -> Round:
    """The round whose ratio is the median; of an even number, the lower one of the two in the middle."""
    return sorted(rounds, key=ratio)[(len(rounds) - 1) // 2]
