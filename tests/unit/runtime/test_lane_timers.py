"""Lane timers: one loop timer for all lanes, and cancelled entries are pruned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from fencepost.application.lane import Lane
from fencepost.runtime.lane_slot import LaneSlot
from fencepost.runtime.lane_timers import LATE_S, MIN_ENTRIES_TO_PRUNE, LaneTimers
from lab.sim.loop import SimLoop

SOON_S = LATE_S + 0.001


class _Place:
    def __init__(self) -> None:
        make = cast(
            "Callable[[float], SimLoop]", SimLoop
        )  # it has what the simulator needs of a loop, no more
        self.loop = make(0.0)
        self.rang: list[tuple[str, float]] = []
        self.alarms = LaneTimers(
            lambda slot: self.rang.append((self.names[slot], round(self.loop.time(), 2)))
        )
        self.names: dict[LaneSlot, str] = {}

    def slot(self, name: str) -> LaneSlot:
        slot = LaneSlot(cast("Lane", None))
        self.names[slot] = name
        return slot

    def run(self, play: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await play()

        self.loop.run(main())
        assert not self.loop.failures


@pytest.fixture
def place() -> _Place:
    return _Place()


def test_each_timer_fires_once_in_order(place: _Place) -> None:
    async def play() -> None:
        for name, seconds in (("b", 2.0), ("c", 3.0), ("a", 1.0), ("b2", 2.0)):
            place.alarms.set(place.slot(name), seconds)
        await asyncio.sleep(10)

    place.run(play)
    assert place.rang == [("a", 1.0), ("b", 2.0), ("b2", 2.0), ("c", 3.0)]


def test_no_timer_fires_early(place: _Place) -> None:
    async def play() -> None:
        slot = place.slot("a")
        place.alarms.set(slot, 1.0)
        await asyncio.sleep(1.0)
        assert place.rang == []
        assert slot.timer_due_s is not None
        await asyncio.sleep(SOON_S)
        assert place.rang == [("a", 1.0)]
        assert slot.timer_due_s is None

    place.run(play)


def test_a_cancelled_timer_does_not_fire_and_a_changed_one_fires_at_its_new_time(place: _Place) -> None:
    async def play() -> None:
        off, later, sooner = place.slot("off"), place.slot("later"), place.slot("sooner")
        for slot in (off, later, sooner):
            place.alarms.set(slot, 2.0)
        off.timer_due_s = None
        place.alarms.set(later, 4.0)
        place.alarms.set(sooner, 1.0)
        await asyncio.sleep(10)

    place.run(play)
    assert place.rang == [("sooner", 1.0), ("later", 4.0)]


def test_a_timer_may_be_set_again_when_it_fires(place: _Place) -> None:
    slot = place.slot("a")

    def ring(rung: LaneSlot) -> None:
        place.rang.append(("a", round(place.loop.time(), 2)))
        if len(place.rang) < 3:
            alarms.set(rung, 1.0)

    alarms = LaneTimers(ring)

    async def play() -> None:
        alarms.set(slot, 1.0)
        await asyncio.sleep(10)

    place.run(play)
    assert [round(at_s, 1) for _, at_s in place.rang] == [1.0, 2.0, 3.0]


def test_cancelled_entries_do_not_accumulate(place: _Place) -> None:
    async def play() -> None:
        busy, quiet = place.slot("busy"), place.slot("quiet")
        place.alarms.set(quiet, 50.0)
        for often in range(20 * MIN_ENTRIES_TO_PRUNE):
            place.alarms.set(busy, 60.0 + often * 1e-6)
        assert len(place.alarms._entries) <= MIN_ENTRIES_TO_PRUNE
        await asyncio.sleep(100)

    place.run(play)
    assert place.rang == [("quiet", 50.0), ("busy", 60.02)]
