"""A call that takes too long is cancelled and told apart; one that somebody else cancels is not mistaken for it."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.api.time_bound import OutOfTime, TimeBound

LONG_S = 60.0


async def answer(after_s: float) -> str:
    await asyncio.sleep(after_s)
    return "done"


async def test_what_ends_in_time_is_what_it_is() -> None:
    bound = TimeBound(LONG_S)
    assert await bound.run(answer(0)) == "done"
    with pytest.raises(ValueError, match="its own"):
        await bound.run(_failing())


async def _failing() -> None:
    raise ValueError("its own")


async def test_what_takes_too_long_is_cancelled() -> None:
    bound = TimeBound(0.02)
    with pytest.raises(OutOfTime):
        await bound.run(answer(LONG_S))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await bound.run(answer(0)) == "done"


async def test_each_has_its_own_time() -> None:
    """The timer is one: it is set for whoever is due first, then for the next."""
    bound = TimeBound(0.15)
    loop = asyncio.get_running_loop()
    ended_s: list[float] = []

    async def one(begins_after_s: float, takes_s: float) -> None:
        await asyncio.sleep(begins_after_s)
        began_s = loop.time()
        try:
            await bound.run(answer(takes_s))
        except OutOfTime:
            ended_s.append(loop.time() - began_s)

    async with asyncio.TaskGroup() as group:
        for turn in range(5):
            group.create_task(one(turn * 0.05, LONG_S))
            group.create_task(one(turn * 0.05, 0.01))
    assert len(ended_s) == 5
    assert all(0.14 < seconds < 1.0 for seconds in ended_s)


async def test_a_time_out_of_the_work_is_its_own() -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(LONG_S)

    with pytest.raises(TimeoutError):
        await TimeBound(LONG_S).run(impatient())


async def test_who_cancels_from_outside_is_obeyed() -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(TimeBound(LONG_S).run(answer(LONG_S)))
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()


async def test_who_cancels_from_outside_is_obeyed_even_when_time_is_over_too() -> None:
    bound = TimeBound(0.0)

    async def stubborn() -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.sleep(LONG_S)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(bound.run(stubborn()))
    assert task.cancelled()


async def test_work_that_ends_although_it_was_cancelled_leaves_no_trace() -> None:
    async def stubborn() -> int:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            return 7
        return 0

    async def caller() -> tuple[int, int]:
        result = await TimeBound(0.01).run(stubborn())
        task = asyncio.current_task()
        assert task is not None
        return result, task.cancelling()

    assert await caller() == (7, 0)
