"""The TTL cache: one read for concurrent callers, a bounded age, and a bounded size."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.application.ttl_cache import TtlCache

BELIEVE_S = 2.0


class _Source:
    """Answers on demand and counts its calls."""

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

    def memory(self, most: int = 10) -> TtlCache[str, str]:
        return TtlCache(self.read, ttl_s=BELIEVE_S, max_entries=most, now_s=lambda: self.now_s)


async def test_a_value_is_served_for_its_ttl_and_then_read_again() -> None:
    source = _Source()
    memory = source.memory()
    assert await memory.get("a") == "a: first"
    source.value = "second"
    source.now_s += BELIEVE_S
    assert await memory.get("a") == "a: first"
    source.now_s += 0.001
    assert await memory.get("a") == "a: second"
    assert source.asked == ["a", "a"]


async def test_concurrent_callers_share_one_read_and_a_cancelled_caller_affects_no_other() -> None:
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


async def test_the_ttl_starts_with_the_read() -> None:
    source = _Source()
    memory = source.memory()
    source.may_answer.clear()
    slow = asyncio.create_task(memory.get("a"))
    await source.begun.acquire()
    source.value = "second"
    source.now_s += BELIEVE_S + 0.001
    later = asyncio.create_task(
        memory.get("a")
    )  # a read that started too long ago does not serve this caller
    await source.begun.acquire()
    source.may_answer.set()
    assert list(await asyncio.gather(slow, later)) == ["a: first", "a: second"]
    assert await memory.get("a") == "a: second"
    assert len(source.asked) == 2


async def test_a_failure_reaches_all_waiting_callers_and_is_not_cached() -> None:
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


async def test_the_oldest_value_is_evicted_at_the_size_limit() -> None:
    source = _Source()
    memory = source.memory(most=2)
    for key in ("a", "b", "c", "b", "c", "a"):
        await memory.get(key)
    assert source.asked == ["a", "b", "c", "a"]
