"""Many callers, few requests: who shares one, what each of them gets, and that nobody's order is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fencepost.adapters.evm.together import Together

PATIENCE_S = 5.0


class Wire:
    """A request that ends when it is told to, and remembers what it carried."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.begun = asyncio.Semaphore(0)
        self.may_end = asyncio.Event()
        self.fails_on: int | None = None

    async def ask(self, items: Sequence[int]) -> Sequence[str]:
        self.requests.append(list(items))
        self.begun.release()
        await self.may_end.wait()
        if self.fails_on in items:
            raise ConnectionError("lost")
        return [f"answer {item}" for item in items]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(count):
                await self.begun.acquire()


@pytest.fixture
def wire() -> Wire:
    return Wire()


def ask_all(
    together: Together[int, str], asked: Sequence[Sequence[int]]
) -> list[asyncio.Task[Sequence[str]]]:
    return [asyncio.get_running_loop().create_task(together.ask(items)) for items in asked]


async def ends(tasks: Sequence[asyncio.Task[Sequence[str]]]) -> list[Sequence[str] | BaseException]:
    async with asyncio.timeout(PATIENCE_S):
        return list(await asyncio.gather(*tasks, return_exceptions=True))


async def test_a_lone_caller_waits_for_nobody(wire: Wire) -> None:
    wire.may_end.set()
    assert await Together(wire.ask, most=10, parallel=1).ask([1, 2]) == ["answer 1", "answer 2"]
    assert wire.requests == [[1, 2]]


async def test_who_asks_in_the_same_turn_shares_a_request(wire: Wire) -> None:
    together = Together(wire.ask, most=10, parallel=4)
    wire.may_end.set()
    tasks = ask_all(together, [[1], [2, 3], [4]])
    assert await ends(tasks) == [["answer 1"], ["answer 2", "answer 3"], ["answer 4"]]
    assert wire.requests == [[1, 2, 3, 4]]


async def test_what_comes_while_all_places_are_taken_goes_together(wire: Wire) -> None:
    together = Together(wire.ask, most=10, parallel=1)
    first = ask_all(together, [[1]])
    await wire.until(1)
    crowd = []
    for item in (2, 3, 4):
        crowd += ask_all(together, [[item]])
        await asyncio.sleep(0)
    wire.may_end.set()
    assert await ends([*first, *crowd]) == [[f"answer {item}"] for item in (1, 2, 3, 4)]
    assert wire.requests == [[1], [2, 3, 4]]


async def test_requests_are_bounded_and_a_callers_items_are_never_split(wire: Wire) -> None:
    together = Together(wire.ask, most=4, parallel=2)
    tasks = ask_all(together, [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10], [11]])
    await wire.until(2)
    assert wire.requests == [[1, 2, 3], [4, 5]]
    wire.may_end.set()
    assert [len(answers) for answers in await ends(tasks) if not isinstance(answers, BaseException)] == [
        3,
        2,
        5,
        1,
    ]
    assert wire.requests == [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10], [11]]


async def test_an_error_reaches_those_of_its_request_and_no_others(wire: Wire) -> None:
    together = Together(wire.ask, most=2, parallel=1)
    wire.fails_on = 2
    wire.may_end.set()
    lost, also_lost, fine = await ends(ask_all(together, [[1], [2], [3]]))
    assert isinstance(lost, ConnectionError)
    assert isinstance(also_lost, ConnectionError)
    assert fine == ["answer 3"]


async def test_a_caller_that_goes_away_harms_nobody(wire: Wire) -> None:
    together = Together(wire.ask, most=10, parallel=1)
    gone, stays = ask_all(together, [[1], [2]])
    await wire.until(1)
    late, later = ask_all(together, [[3], [4]])
    await asyncio.sleep(0)
    gone.cancel()
    late.cancel()
    await asyncio.sleep(0)
    wire.may_end.set()
    assert await ends([stays, later]) == [["answer 2"], ["answer 4"]]
    assert wire.requests == [[1, 2], [4]]  # what nobody waits for any more doesn't go out


async def test_closing_ends_what_is_under_way_and_what_waits(wire: Wire) -> None:
    together = Together(wire.ask, most=1, parallel=1)
    tasks = ask_all(together, [[1], [2]])
    await wire.until(1)
    async with asyncio.timeout(PATIENCE_S):
        await together.aclose()
    assert all(isinstance(end, asyncio.CancelledError) for end in await ends(tasks))
    assert wire.requests == [[1]]
