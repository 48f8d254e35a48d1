"""Keep what the scheduler knows of a lane: the results of its last steps, and when the next one is due."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.application.lane import Lane

FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 15.0
MAX_FAILURES_UNRECONCILED = 3
MAX_MOVES_IN_A_ROW = 5


@dataclass(slots=True, eq=False)
class LaneSlot:
    """Hold a lane with its worker and its scheduling state."""

    lane: Lane
    worker: int
    timer_due_s: float | None = None  # when its timer wakes it (`LaneTimers`); None: no timer
    waits_for_trust: bool = False  # until the lease is renewed
    must_step_alone: bool = False  # the next step does what a batch step cannot do
    is_retiring: bool = False  # no further step: the lease is released when the running step has ended
    idle_since_s: float | None = None
    queued_at_s: float = 0.0
    lacks_chain: bool = False  # the last step failed because of the endpoints
    _failures: int = 0
    _moves: int = 0

    def reset_failures(self) -> None:
        """Start counting anew after a successful step."""
        self._failures = self._moves = 0
        self.lacks_chain = False

    @property
    def never_started(self) -> bool:
        """Return whether the lane failed too often before it was reconciled."""
        return not self.lane.reconciled and self._failures >= MAX_FAILURES_UNRECONCILED

    def pause_s(self) -> float:
        """Count an unreachable endpoint, and return the seconds until the next try, which grow each time."""
        self._failures += 1
        return min(MAX_PAUSE_S, FIRST_PAUSE_S * float(1 << min(self._failures, 8)))

    def may_reload(self) -> bool:
        """Count a row that another writer changed, and return whether to load the lane again.

        False means that it happened too often in a row, so that another cause is likely.
        """
        self._moves += 1
        return self._moves <= MAX_MOVES_IN_A_ROW
