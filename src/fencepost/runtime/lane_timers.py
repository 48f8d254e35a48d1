"""Wake lanes after a time, with one event loop timer for all of them.

Nearly all lanes are woken by something else before their timer fires. One event loop timer per lane, set and cancelled
each time, would cost more than the step of the lane. Here a timer is an entry in a heap, and a cancelled entry is
skipped when its time comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from fencepost.runtime.lane_slot import LaneSlot

# Event loops count in milliseconds. A lane that is woken a moment too early would find nothing to do.
LATE_S = 0.001

# With more entries than this, cancelled ones are removed from time to time.
MIN_ENTRIES_TO_PRUNE = 1_000

# Due time, a number that keeps the order of equal times, and the lane.
_Entry = tuple[float, int, LaneSlot]


class LaneTimers:
    """Call `wake` for a lane when its timer is due."""

    def __init__(self, wake: Callable[[LaneSlot], None]) -> None:
        self._wake = wake
        self._entries: list[_Entry] = []  # a heap
        self._number = count()
        self._prune_at = MIN_ENTRIES_TO_PRUNE
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at_s = 0.0

    def set(self, slot: LaneSlot, seconds: float) -> None:
        """Set the timer of a lane, in place of the one it has. `slot.timer_due_s = None` cancels it."""
        due_s = asyncio.get_running_loop().time() + seconds + LATE_S
        slot.timer_due_s = due_s
        if len(self._entries) >= self._prune_at:
            self._entries = [entry for entry in self._entries if _is_set(entry)]
            heapify(self._entries)
            self._prune_at = max(MIN_ENTRIES_TO_PRUNE, 2 * len(self._entries))
        heappush(self._entries, (due_s, next(self._number), slot))
        if self._timer is None or due_s < self._fires_at_s:
            self._schedule()

    def _schedule(self) -> None:
        """Set the event loop timer for the first entry that is not cancelled."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._entries and not _is_set(self._entries[0]):
            heappop(self._entries)
        if self._entries:
            loop = asyncio.get_running_loop()
            self._fires_at_s = self._entries[0][0]
            self._timer = loop.call_later(max(0.0, self._fires_at_s - loop.time()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        by_s = asyncio.get_running_loop().time() + LATE_S
        while self._entries and self._entries[0][0] <= by_s:
            entry = heappop(self._entries)
            if _is_set(entry):
                slot = entry[2]
                slot.timer_due_s = None
                self._wake(slot)
        self._schedule()


def _is_set(entry: _Entry) -> bool:
    due_s, _, slot = entry
    return slot.timer_due_s == due_s
