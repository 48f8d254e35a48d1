"""When lanes come back by themselves, on one timer of the loop.

Nearly all lanes of a crowd are woken by something else before that. A timer each, to be set and cancelled, would cost
more than what the lane does when it is woken; here an alarm is a place in a heap, and one that is off is found out when
its time comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from fencepost.runtime.slot import Slot

# Loops count in milliseconds. A lane that came back a moment too early would find nothing to do.
LATE_S = 0.001

# With more alarms than this, those that are off are thrown out now and then.
FEW = 1_000

# When, in which order it was set, and whose.
_Alarm = tuple[float, int, Slot]


class Alarms:
    def __init__(self, ring: Callable[[Slot], None]) -> None:
        self._ring = ring
        self._alarms: list[_Alarm] = []  # a heap
        self._number = count()
        self._most = FEW
        self._timer: asyncio.TimerHandle | None = None
        self._rings_s = 0.0  # the timer

    def set(self, slot: Slot, seconds: float) -> None:
        """In place of the one it has. `slot.alarm_s = None` is off."""
        due_s = asyncio.get_running_loop().time() + seconds + LATE_S
        slot.alarm_s = due_s
        if len(self._alarms) >= self._most:
            self._alarms = [alarm for alarm in self._alarms if _is_on(alarm)]
            heapify(self._alarms)
            self._most = max(FEW, 2 * len(self._alarms))
        heappush(self._alarms, (due_s, next(self._number), slot))
        if self._timer is None or due_s < self._rings_s:
            self._wait()

    def _wait(self) -> None:
        """For the first that is on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._alarms and not _is_on(self._alarms[0]):
            heappop(self._alarms)
        if self._alarms:
            loop = asyncio.get_running_loop()
            self._rings_s = self._alarms[0][0]
            self._timer = loop.call_later(max(0.0, self._rings_s - loop.time()), self._rang)

    def _rang(self) -> None:
        self._timer = None
        by_s = asyncio.get_running_loop().time() + LATE_S
        while self._alarms and self._alarms[0][0] <= by_s:
            alarm = heappop(self._alarms)
            if _is_on(alarm):
                slot = alarm[2]
                slot.alarm_s = None
                self._ring(slot)
        self._wait()


def _is_on(alarm: _Alarm) -> bool:
    due_s, _, slot = alarm
    return slot.alarm_s == due_s
