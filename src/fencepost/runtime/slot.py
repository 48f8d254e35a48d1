"""A lane in its place on this node: what is known of its steps, the last ones and the next."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.application.lane import Lane

FIRST_PAUSE_S = 0.2
MOST_PAUSE_S = 15.0
MOST_FAILURES_UNRECONCILED = 3
MOST_MOVES_IN_A_ROW = 5


@dataclass(slots=True, eq=False)
class Slot:
    lane: Lane
    worker: int
    alarm_s: float | None = None  # when it comes back by itself: `Alarms`
    waits_for_trust: bool = False
    steps_alone: bool = False  # the next time: it met something that a sweep leaves to its own step
    leaves: bool = False  # no further step: the lease goes back when the one under way has ended
    idle_since_s: float | None = None
    queued_at_s: float = 0.0
    _failures: int = 0
    _moves: int = 0

    def went_well(self) -> None:
        self._failures = self._moves = 0

    def pause_s(self) -> float | None:
        """Nobody could be reached: how long to wait, longer each time. None: it was not even reconciled, give it up."""
        self._failures += 1
        if not self.lane.reconciled and self._failures >= MOST_FAILURES_UNRECONCILED:
            return None
        return min(MOST_PAUSE_S, FIRST_PAUSE_S * float(1 << min(self._failures, 8)))

    def may_be_read_again(self) -> bool:
        """A row moved; should that go on, something else is wrong."""
        self._moves += 1
        return self._moves <= MOST_MOVES_IN_A_ROW
