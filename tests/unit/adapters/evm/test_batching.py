"""Many callers share few requests: which items share one, what each caller gets, and that the order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fencepost.adapters.evm.batching import RequestBatcher

PATIENCE_S = 5.0


class Wire:
    """A request that ends on demand and records what it carried."""

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
    together: RequestBatcher[int, str], asked: Sequence[Sequence[int]]
) -> list[asyncio.Task[Sequence[str]]]:
    return [asyncio.get_running_loop().create_task(together.ask(items)) for items in asked]


async def ends(tasks: Sequence[asyncio.Task[Sequence[str]]]) -> list[Sequence[str] | BaseException]:
    async with asyncio.timeout(PATIENCE_S):
        return list(await asyncio.gather(*tasks, return_exceptions=True))


async def test_a_single_caller_does_not_wait(wire: Wire) -> None:
    wire.may_end.set()
    assert await RequestBatcher(wire.ask, max_items=10, parallel=1).ask([1, 2]) == ["answer 1", "answer 2"]
    assert wire.requests == [[1, 2]]


async def test_callers_in_the_same_loop_turn_share_a_request(wire: Wire) -> None:
    together = RequestBatcher(wire.ask, max_items=10, parallel=4)
    wire.may_end.set()
    tasks = ask_all(together, [[1], [2, 3], [4]])
    assert await ends(tasks) == [["answer 1"], ["answer 2", "answer 3"], ["answer 4"]]
    assert wire.requests == [[1, 2, 3, 4]]


async def test_calls_that_arrive_while_all_slots_are_busy_share_the_next_request(wire: Wire) -> None:
    together = RequestBatcher(wire.ask, max_items=10, parallel=1)
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
    together = RequestBatcher(wire.ask, max_items=4, parallel=2)
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


async def test_an_error_reaches_only_the_callers_of_its_request(wire: Wire) -> None:
    together = RequestBatcher(wire.ask, max_items=2, parallel=1)
    wire.fails_on = 2
    wire.may_end.set()
    lost, also_lost, fine = await ends(ask_all(together, [[1], [2], [3]]))
    assert isinstance(lost, ConnectionError)
    assert isinstance(also_lost, ConnectionError)
    assert fine == ["answer 3"]


async def test_a_cancelled_caller_does_not_affect_the_others(wire: Wire) -> None:
    together = RequestBatcher(wire.ask, max_items=10, parallel=1)
    gone, stays = ask_all(together, [[1], [2]])
    await wire.until(1)
    late, later = ask_all(together, [[3], [4]])
    await asyncio.sleep(0)
    gone.cancel()
    late.cancel()
    await asyncio.sleep(0)
    wire.may_end.set()
    assert await ends([stays, later]) == [["answer 2"], ["answer 4"]]
    assert wire.requests == [[1, 2], [4]]  # an item without a waiting caller is not sent


async def test_closing_cancels_running_and_waiting_requests(wire: Wire) -> None:
    together = RequestBatcher(wire.ask, max_items=1, parallel=1)
    tasks = ask_all(together, [[1], [2]])
    await wire.until(1)
    async with asyncio.timeout(PATIENCE_S):
        await together.aclose()
    assert all(isinstance(end, asyncio.CancelledError) for end in await ends(tasks))
    assert wire.requests == [[1]]
