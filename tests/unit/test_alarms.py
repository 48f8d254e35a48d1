"""When lanes come back by themselves: one timer for all, and what is off costs nothing for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from fencepost.application.lane import Lane
from fencepost.lab.sim.loop import SimLoop
from fencepost.runtime.alarms import FEW, LATE_S, Alarms
from fencepost.runtime.slot import Slot

SOON_S = LATE_S + 0.001


class _Place:
    def __init__(self) -> None:
        make = cast(
            "Callable[[float], SimLoop]", SimLoop
        )  # it has what the simulator asks of a loop, no more
        self.loop = make(0.0)
        self.rang: list[tuple[str, float]] = []
        self.alarms = Alarms(lambda slot: self.rang.append((self.names[slot], round(self.loop.time(), 2))))
        self.names: dict[Slot, str] = {}

    def slot(self, name: str) -> Slot:
        slot = Slot(cast("Lane", None), worker=0)
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


def test_each_rings_once_at_its_time_whatever_the_order_they_were_set_in(place: _Place) -> None:
    async def play() -> None:
        for name, seconds in (("b", 2.0), ("c", 3.0), ("a", 1.0), ("b2", 2.0)):
            place.alarms.set(place.slot(name), seconds)
        await asyncio.sleep(10)

    place.run(play)
    assert place.rang == [("a", 1.0), ("b", 2.0), ("b2", 2.0), ("c", 3.0)]


def test_none_rings_early(place: _Place) -> None:
    async def play() -> None:
        slot = place.slot("a")
        place.alarms.set(slot, 1.0)
        await asyncio.sleep(1.0)
        assert place.rang == []
        assert slot.alarm_s is not None
        await asyncio.sleep(SOON_S)
        assert place.rang == [("a", 1.0)]
        assert slot.alarm_s is None

    place.run(play)


def test_one_that_is_off_does_not_ring_and_one_that_is_set_again_rings_then(place: _Place) -> None:
    async def play() -> None:
        off, later, sooner = place.slot("off"), place.slot("later"), place.slot("sooner")
        for slot in (off, later, sooner):
            place.alarms.set(slot, 2.0)
        off.alarm_s = None
        place.alarms.set(later, 4.0)
        place.alarms.set(sooner, 1.0)
        await asyncio.sleep(10)

    place.run(play)
    assert place.rang == [("sooner", 1.0), ("later", 4.0)]


def test_whoever_rings_may_be_set_again_at_once(place: _Place) -> None:
    slot = place.slot("a")

    def ring(rung: Slot) -> None:
        place.rang.append(("a", round(place.loop.time(), 2)))
        if len(place.rang) < 3:
            alarms.set(rung, 1.0)

    alarms = Alarms(ring)

    async def play() -> None:
        alarms.set(slot, 1.0)
        await asyncio.sleep(10)

    place.run(play)
    assert [round(at_s, 1) for _, at_s in place.rang] == [1.0, 2.0, 3.0]


def test_those_that_are_off_do_not_pile_up(place: _Place) -> None:
    async def play() -> None:
        busy, quiet = place.slot("busy"), place.slot("quiet")
        place.alarms.set(quiet, 50.0)
        for often in range(20 * FEW):
            place.alarms.set(busy, 60.0 + often * 1e-6)
        assert len(place.alarms._alarms) <= FEW
        await asyncio.sleep(100)

    place.run(play)
    assert place.rang == [("quiet", 50.0), ("busy", 60.02)]
