"""Many callers, one statement: who shares a batch, and what each of them gets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from fencepost.adapters.postgres.group_commit import GroupCommit

PATIENCE_S = 5.0


class Disk:
    """A flush that ends when it is told to, and remembers what it was given."""

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


async def test_a_lone_caller_waits_for_nobody(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
    assert await group.submit(1) == "done 1"
    assert disk.batches == [[1]]


async def test_who_comes_in_the_same_turn_shares_a_batch(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, most_items=10, parallel=2)
    assert await answers(submit_all(group, [1, 2, 3])) == ["done 1", "done 2", "done 3"]
    assert disk.batches == [[1, 2, 3]]


async def test_a_batch_goes_beside_another_only_when_that_takes_long(disk: Disk) -> None:
    group = GroupCommit(disk.flush, most_items=10, parallel=2, beside_after_s=0.05)
    first = submit_all(group, [1])
    await disk.begun.wait()
    began_s = asyncio.get_running_loop().time()
    crowd = submit_all(group, [2])
    await asyncio.sleep(0.01)
    crowd += submit_all(group, [3])
    async with asyncio.timeout(PATIENCE_S):
        while len(disk.batches) < 2:  # noqa: ASYNC110 - nobody tells when a second one begins
            await asyncio.sleep(0.001)
    assert asyncio.get_running_loop().time() - began_s >= 0.045
    assert disk.batches == [[1], [2, 3]]
    disk.may_end.set()
    assert await answers(first + crowd) == ["done 1", "done 2", "done 3"]


async def test_how_long_a_batch_waits_may_change_from_one_to_the_next(disk: Disk) -> None:
    waits_s = [60.0]
    group = GroupCommit(disk.flush, most_items=10, parallel=3, beside_after_s=lambda: waits_s[0])
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


async def test_a_batch_that_began_at_once_is_one_that_the_next_may_have_to_wait_for(disk: Disk) -> None:
    waits_s = [0.0]
    group = GroupCommit(disk.flush, most_items=10, parallel=3, beside_after_s=lambda: waits_s[0])
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


async def test_it_rests_from_the_end_of_the_last_batch(disk: Disk) -> None:
    group = GroupCommit(disk.flush, most_items=1, parallel=1)
    assert group.rested_s() == math.inf
    under_way = submit_all(group, [1, 2])
    await disk.begun.wait()
    await asyncio.sleep(0.01)
    assert group.rested_s() == 0.0
    disk.may_end.set()
    await answers(under_way)
    await asyncio.sleep(0.01)
    assert 0.009 <= group.rested_s() < PATIENCE_S


async def test_beside_a_batch_of_few_the_next_begins_at_once(disk: Disk) -> None:
    group = GroupCommit(disk.flush, most_items=10, parallel=3, beside_after_s=60.0, few=2)
    under_way = []
    for items in ([1, 2], [3, 4, 5], [6]):
        under_way += submit_all(group, items)
        await asyncio.sleep(0.001)
    assert disk.batches == [[1, 2], [3, 4, 5]]
    disk.may_end.set()
    assert await answers(under_way) == [f"done {item}" for item in range(1, 7)]
    assert disk.batches == [[1, 2], [3, 4, 5], [6]]


async def test_what_comes_while_a_batch_is_under_way_is_the_next_batch(disk: Disk) -> None:
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
    first = submit_all(group, [1])
    await disk.begun.wait()
    crowd = submit_all(group, [2, 3, 4])
    await asyncio.sleep(0)
    assert disk.batches == [[1]]
    disk.may_end.set()
    assert await answers(first + crowd) == ["done 1", "done 2", "done 3", "done 4"]
    assert disk.batches == [[1], [2, 3, 4]]


async def test_batches_are_bounded_and_so_is_how_many_run_at_once(disk: Disk) -> None:
    group = GroupCommit(disk.flush, most_items=2, parallel=2)
    tasks = submit_all(group, range(7))
    await disk.begun.wait()
    await asyncio.sleep(0)
    assert disk.batches == [[0, 1], [2, 3]]  # they came in one turn; there are two places, and the rest waits
    disk.may_end.set()
    assert await answers(tasks) == [f"done {item}" for item in range(7)]
    assert sorted(item for batch in disk.batches for item in batch) == list(range(7))
    assert max(len(batch) for batch in disk.batches) == 2


async def test_one_who_brings_several_gets_all_results_together_and_shares_the_batch(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
    alone = submit_all(group, [1])
    several = asyncio.get_running_loop().create_task(group.submit_all([2, 3]))
    async with asyncio.timeout(PATIENCE_S):
        assert await several == ["done 2", "done 3"]
    assert await answers(alone) == ["done 1"]
    assert disk.batches == [[1, 2, 3]]


async def test_what_one_brings_is_not_torn_apart(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, most_items=3, parallel=1)
    loop = asyncio.get_running_loop()
    bringing = [loop.create_task(group.submit_all(items)) for items in ([1, 2], [3, 4], [5], [6, 7, 8, 9])]
    async with asyncio.timeout(PATIENCE_S):
        results = await asyncio.gather(*bringing)
    assert [len(of_one) for of_one in results] == [2, 2, 1, 4]
    assert disk.batches == [[1, 2], [3, 4, 5], [6, 7, 8, 9]]


async def test_an_error_reaches_everyone_in_the_batch_and_nobody_else(disk: Disk) -> None:
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
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


async def test_a_caller_that_goes_away_harms_nobody(disk: Disk) -> None:
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
    first = submit_all(group, [1])
    await disk.begun.wait()
    gone, stays = submit_all(group, [2, 3])
    await asyncio.sleep(0)
    first[0].cancel()  # its item is on its way to the disk already
    gone.cancel()
    await asyncio.sleep(0)
    disk.may_end.set()
    assert [type(answer) for answer in await answers([*first, gone])] == [asyncio.CancelledError] * 2
    assert await answers([stays]) == ["done 3"]
    assert await group.submit(4) == "done 4"


async def test_an_error_that_nobody_waits_for_is_not_left_lying_about(disk: Disk) -> None:
    """It would come up as an unraisable one later, which ends this test run."""
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
    (gone,) = submit_all(group, [1])
    await disk.begun.wait()
    gone.cancel()
    disk.error = ConnectionResetError()
    disk.may_end.set()
    await answers([gone])
    await group.drain()


async def test_a_flush_that_answers_for_too_few_leaves_nobody_waiting(disk: Disk) -> None:
    disk.may_end.set()
    disk.answers_short_by = 1
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
    assert [type(answer) for answer in await answers(submit_all(group, [1]))] == [ValueError]


async def test_a_flush_that_is_cancelled_leaves_nobody_waiting(disk: Disk) -> None:
    disk.may_end.set()
    disk.error = asyncio.CancelledError()
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
    assert [type(answer) for answer in await answers(submit_all(group, [1, 2]))] == [
        asyncio.CancelledError
    ] * 2


async def test_draining_waits_for_all_that_is_on_its_way(disk: Disk) -> None:
    group = GroupCommit(disk.flush, most_items=1, parallel=1)
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


async def test_draining_waits_for_what_came_just_now(disk: Disk) -> None:
    disk.may_end.set()
    group = GroupCommit(disk.flush, most_items=10, parallel=1)
    (task,) = submit_all(group, [1])
    await asyncio.sleep(0)  # it is in the batch, which has not begun
    async with asyncio.timeout(PATIENCE_S):
        await group.drain()
    assert disk.batches == [[1]]
    assert await answers([task]) == ["done 1"]
