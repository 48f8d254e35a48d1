"""Many callers share one statement: which items share a batch, and what each caller gets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from fencepost.adapters.postgres.group_commit import GroupCommit

PATIENCE_S = 5.0


class Disk:
    """A flush that ends on demand and records its items."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.error: BaseException | None = None
        self.answers_short_by = 0

    async def flush(self, items: Sequence[int]) -> Sequence[str]:
        self.batches.append(list(items))
        self.begun.set()
        await self.may_end.wait()
        if self.error is not None:
            raise self.error
        return [f"done {item}" for item in items][self.answers_short_by :]


@pytest.fixture
def disk() -> Disk:
    return Disk()


def submit_all(group: GroupCommit[int, str], items: Sequence[int]) -> list[asyncio.Task[str]]:
    return [asyncio.get_running_loop().create_task(group.submit(item)) for item in items]


async def answers(tasks: Sequence[asyncio.Task[str]]) -> list[str | BaseException]:
    async with asyncio.timeout(PATIENCE_S):
        return list(await asyncio.gather(*tasks, return_exceptions=True))


async def test_a_single_caller_does_not_wait(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    assert await group.submit(1) == "done 1"
    assert disk.batches == [[1]]


async def test_callers_in_the_same_loop_turn_share_a_batch(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, max_items=10, parallel=2)
    assert await answers(submit_all(group, [1, 2, 3])) == ["done 1", "done 2", "done 3"]
    assert disk.batches == [[1, 2, 3]]


async def test_a_second_batch_starts_in_parallel_only_after_a_delay(disk: Disk) -> None:
    group = GroupCommit(disk.flush, max_items=10, parallel=2, overlap_after_s=0.05)
    first = submit_all(group, [1])
    await disk.begun.wait()
    began_s = asyncio.get_running_loop().time()
    crowd = submit_all(group, [2])
    await asyncio.sleep(0.01)
    crowd += submit_all(group, [3])
    async with asyncio.timeout(PATIENCE_S):
        while len(disk.batches) < 2:  # noqa: ASYNC110 - no event for the start of a second batch
            await asyncio.sleep(0.001)
    assert asyncio.get_running_loop().time() - began_s >= 0.045
    assert disk.batches == [[1], [2, 3]]
    disk.may_end.set()
    assert await answers(first + crowd) == ["done 1", "done 2", "done 3"]


async def test_the_delay_may_change_between_batches(disk: Disk) -> None:
    waits_s = [60.0]
    group = GroupCommit(disk.flush, max_items=10, parallel=3, overlap_after_s=lambda: waits_s[0])
    under_way = submit_all(group, [1])
    await disk.begun.wait()
    under_way += submit_all(group, [2])
    await asyncio.sleep(0.001)
    assert disk.batches == [[1]]
    waits_s[0] = 0.0
    under_way += submit_all(group, [3])
    await asyncio.sleep(0.001)
    assert disk.batches == [[1], [2, 3]]
    disk.may_end.set()
    assert await answers(under_way) == ["done 1", "done 2", "done 3"]


async def test_a_batch_that_started_immediately_delays_the_next(disk: Disk) -> None:
    waits_s = [0.0]
    group = GroupCommit(disk.flush, max_items=10, parallel=3, overlap_after_s=lambda: waits_s[0])
    under_way = []
    for item in (1, 2):
        under_way += submit_all(group, [item])
        await asyncio.sleep(0.001)
    assert disk.batches == [[1], [2]]
    waits_s[0] = 60.0
    under_way += submit_all(group, [3])
    await asyncio.sleep(0.001)
    assert disk.batches == [[1], [2]]
    disk.may_end.set()
    assert await answers(under_way) == ["done 1", "done 2", "done 3"]


async def test_the_idle_time_counts_from_the_end_of_the_last_batch(disk: Disk) -> None:
    group = GroupCommit(disk.flush, max_items=1, parallel=1)
    assert group.idle_s() == math.inf
    under_way = submit_all(group, [1, 2])
    await disk.begun.wait()
    await asyncio.sleep(0.01)
    assert group.idle_s() == 0.0
    disk.may_end.set()
    await answers(under_way)
    await asyncio.sleep(0.01)
    assert 0.009 <= group.idle_s() < PATIENCE_S


async def test_a_small_batch_does_not_delay_the_next(disk: Disk) -> None:
    group = GroupCommit(disk.flush, max_items=10, parallel=3, overlap_after_s=60.0, few=2)
    under_way = []
    for items in ([1, 2], [3, 4, 5], [6]):
        under_way += submit_all(group, items)
        await asyncio.sleep(0.001)
    assert disk.batches == [[1, 2], [3, 4, 5]]
    disk.may_end.set()
    assert await answers(under_way) == [f"done {item}" for item in range(1, 7)]
    assert disk.batches == [[1, 2], [3, 4, 5], [6]]


async def test_items_that_arrive_during_a_batch_form_the_next_batch(disk: Disk) -> None:
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    first = submit_all(group, [1])
    await disk.begun.wait()
    crowd = submit_all(group, [2, 3, 4])
    await asyncio.sleep(0)
    assert disk.batches == [[1]]
    disk.may_end.set()
    assert await answers(first + crowd) == ["done 1", "done 2", "done 3", "done 4"]
    assert disk.batches == [[1], [2, 3, 4]]


async def test_batch_size_and_parallel_batches_are_bounded(disk: Disk) -> None:
    group = GroupCommit(disk.flush, max_items=2, parallel=2)
    tasks = submit_all(group, range(7))
    await disk.begun.wait()
    await asyncio.sleep(0)
    assert disk.batches == [[0, 1], [2, 3]]  # submitted in one loop turn; two batches may run, the rest waits
    disk.may_end.set()
    assert await answers(tasks) == [f"done {item}" for item in range(7)]
    assert sorted(item for batch in disk.batches for item in batch) == list(range(7))
    assert max(len(batch) for batch in disk.batches) == 2


async def test_a_caller_with_several_items_gets_all_results_together_and_shares_the_batch(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    alone = submit_all(group, [1])
    several = asyncio.get_running_loop().create_task(group.submit_all([2, 3]))
    async with asyncio.timeout(PATIENCE_S):
        assert await several == ["done 2", "done 3"]
    assert await answers(alone) == ["done 1"]
    assert disk.batches == [[1, 2, 3]]


async def test_the_items_of_one_caller_are_not_split(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, max_items=3, parallel=1)
    loop = asyncio.get_running_loop()
    bringing = [loop.create_task(group.submit_all(items)) for items in ([1, 2], [3, 4], [5], [6, 7, 8, 9])]
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*bringing)
    assert [len(of_one) for of_one in results] == [2, 2, 1, 4]
    assert disk.batches == [[1, 2], [3, 4, 5], [6, 7, 8, 9]]


async def test_an_error_reaches_only_the_callers_of_its_batch(disk: Disk) -> None:
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    first = submit_all(group, [1])
    await disk.begun.wait()
    crowd = submit_all(group, [2, 3])
    several = asyncio.get_running_loop().create_task(group.submit_all([5, 6]))
    await asyncio.sleep(0)
    disk.error = ConnectionResetError("the outcome is unknown")
    disk.may_end.set()
    assert [type(answer) for answer in await answers(first + crowd)] == [ConnectionResetError] * 3
    with pytest.raises(ConnectionResetError):
        await several
    disk.error = None
    assert await group.submit(4) == "done 4"


async def test_a_cancelled_caller_does_not_affect_the_others(disk: Disk) -> None:
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    first = submit_all(group, [1])
    await disk.begun.wait()
    gone, stays = submit_all(group, [2, 3])
    await asyncio.sleep(0)
    first[0].cancel()  # its item is already being flushed
    gone.cancel()
    await asyncio.sleep(0)
    disk.may_end.set()
    assert [type(answer) for answer in await answers([*first, gone])] == [asyncio.CancelledError] * 2
    assert await answers([stays]) == ["done 3"]
    assert await group.submit(4) == "done 4"


async def test_an_error_without_a_waiting_caller_is_consumed(disk: Disk) -> None:
    """Otherwise asyncio would report it later as never retrieved, which fails the test run."""
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    (gone,) = submit_all(group, [1])
    await disk.begun.wait()
    gone.cancel()
    disk.error = ConnectionResetError()
    disk.may_end.set()
    await answers([gone])
    await group.drain()


async def test_a_flush_with_too_few_results_fails_all_callers(disk: Disk) -> None:
    disk.may_end.set()
    disk.answers_short_by = 1
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    assert [type(answer) for answer in await answers(submit_all(group, [1]))] == [ValueError]


async def test_a_cancelled_flush_fails_all_callers(disk: Disk) -> None:
    disk.may_end.set()
    disk.error = asyncio.CancelledError()
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    assert [type(answer) for answer in await answers(submit_all(group, [1, 2]))] == [
        asyncio.CancelledError
    ] * 2


async def test_drain_waits_for_all_batches(disk: Disk) -> None:
    group = GroupCommit(disk.flush, max_items=1, parallel=1)
    tasks = submit_all(group, [1, 2, 3])
    await disk.begun.wait()
    draining = asyncio.get_running_loop().create_task(group.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    disk.may_end.set()
    async with asyncio.timeout(PATIENCE_S):
        await draining
    assert await answers(tasks) == ["done 1", "done 2", "done 3"]
    assert disk.batches == [[1], [2], [3]]


async def test_drain_waits_for_a_batch_that_has_not_started(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, max_items=10, parallel=1)
    (task,) = submit_all(group, [1])
    await asyncio.sleep(0)  # its batch has not started
    async with asyncio.timeout(PATIENCE_S):
        await group.drain()
    assert disk.batches == [[1]]
    assert await answers([task]) == ["done 1"]
