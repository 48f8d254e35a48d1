"""What is remembered: read once for a crowd, believed for no longer than promised, never more than so many."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.application.remembered import Remembered

BELIEVE_S = 2.0


class _Source:
    """Answers when it is told to; counts how often it is asked."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked: list[str] = []
        self.value = "first"
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.begun = asyncio.Semaphore(0)
        self.fails = False

    async def read(self, key: str) -> str:
        self.asked.append(key)
        self.begun.release()
        seen = self.value
        await self.may_answer.wait()
        if self.fails:
            raise ConnectionError("away")
        return f"{key}: {seen}"

    def memory(self, most: int = 10) -> Remembered[str, str]:
        return Remembered(self.read, believe_s=BELIEVE_S, most=most, now_s=lambda: self.now_s)


async def test_it_is_believed_for_so_long_and_read_anew_after_that() -> None:
    source = _Source()
    memory = source.memory()
    assert await memory.get("a") == "a: first"
    source.value = "second"
    source.now_s += BELIEVE_S
    assert await memory.get("a") == "a: first"
    source.now_s += 0.001
    assert await memory.get("a") == "a: second"
    assert source.asked == ["a", "a"]


async def test_a_crowd_reads_once_and_a_caller_who_leaves_takes_nothing_from_the_others() -> None:
    source = _Source()
    memory = source.memory()
    source.may_answer.clear()
    crowd = [asyncio.create_task(memory.get("a")) for _ in range(20)]
    await source.begun.acquire()
    crowd[0].cancel()
    source.may_answer.set()
    answers = await asyncio.gather(*crowd, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == ["a: first"] * 19
    assert source.asked == ["a"]


async def test_the_time_counts_from_when_the_reading_began() -> None:
    source = _Source()
    memory = source.memory()
    source.may_answer.clear()
    slow = asyncio.create_task(memory.get("a"))
    await source.begun.acquire()
    source.value = "second"
    source.now_s += BELIEVE_S + 0.001
    later = asyncio.create_task(memory.get("a"))  # what began so long ago is not for this one
    await source.begun.acquire()
    source.may_answer.set()
    assert list(await asyncio.gather(slow, later)) == ["a: first", "a: second"]
    assert await memory.get("a") == "a: second"
    assert len(source.asked) == 2


async def test_a_failure_is_told_to_all_who_wait_and_not_remembered() -> None:
    source = _Source()
    memory = source.memory()
    source.fails = True
    answers = await asyncio.gather(*(memory.get("a") for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [ConnectionError] * 3
    assert source.asked == ["a"]
    source.fails = False
    assert await memory.get("a") == "a: first"


async def test_an_old_value_does_not_outlive_a_failure() -> None:
    source = _Source()
    memory = source.memory()
    await memory.get("a")
    source.now_s += BELIEVE_S + 0.001
    source.fails = True
    with pytest.raises(ConnectionError):
        await memory.get("a")


async def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    source = _Source()
    memory = source.memory(most=2)
    for key in ("a", "b", "c", "b", "c", "a"):
        await memory.get(key)
    assert source.asked == ["a", "b", "c", "a"]
