"""A call that takes too long is cancelled with its own error; a cancellation by the caller is not mistaken for it."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.api.deadline import DeadlineExceeded, DeadlineTimer

LONG_S = 60.0


async def answer(after_s: float) -> str:
    await asyncio.sleep(after_s)
    return "done"


async def test_a_result_in_time_is_returned() -> None:
    bound = DeadlineTimer(LONG_S)
    assert await bound.run(answer(0)) == "done"
    with pytest.raises(ValueError, match="its own"):
        await bound.run(_failing())


async def _failing() -> None:
    raise ValueError("its own")


async def test_slow_work_is_cancelled() -> None:
    bound = DeadlineTimer(0.02)
    with pytest.raises(DeadlineExceeded):
        await bound.run(answer(LONG_S))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await bound.run(answer(0)) == "done"


async def test_each_call_has_its_own_deadline() -> None:
    """All calls share one timer: it is set for the earliest deadline, then for the next."""
    bound = DeadlineTimer(0.15)
    loop = asyncio.get_running_loop()
    ended_s: list[float] = []

    async def one(begins_after_s: float, takes_s: float) -> None:
        await asyncio.sleep(begins_after_s)
        began_s = loop.time()
        try:
            await bound.run(answer(takes_s))
        except DeadlineExceeded:
            ended_s.append(loop.time() - began_s)

    async with asyncio.TaskGroup() as group:
        for turn in range(5):
            group.create_task(one(turn * 0.05, LONG_S))
            group.create_task(one(turn * 0.05, 0.01))
    assert len(ended_s) == 5
    assert all(0.14 < seconds < 1.0 for seconds in ended_s)


async def test_a_timeout_raised_by_the_work_is_passed_on() -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(LONG_S)

    with pytest.raises(TimeoutError):
        await DeadlineTimer(LONG_S).run(impatient())


async def test_a_cancellation_by_the_caller_is_obeyed() -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(DeadlineTimer(LONG_S).run(answer(LONG_S)))
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()


async def test_a_cancellation_by_the_caller_is_obeyed_even_after_the_deadline() -> None:
    bound = DeadlineTimer(0.0)

    async def stubborn() -> None:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.sleep(LONG_S)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(bound.run(stubborn()))
    assert task.cancelled()


async def test_work_that_ignores_its_cancellation_leaves_no_trace() -> None:
    async def stubborn() -> int:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            return 7
        return 0

    async def caller() -> tuple[int, int]:
        result = await DeadlineTimer(0.01).run(stubborn())
        task = asyncio.current_task()
        assert task is not None
        return result, task.cancelling()

    assert await caller() == (7, 0)
