"""The winner of a race of tries, the number of concurrent tries, and that none outlives the race."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from fencepost.adapters.evm.hedging import (
    HEDGED_SHARE,
    HEDGES_PER_S,
    MAX_HEDGE_BURST,
    MAX_RUNNING,
    HedgeBudget,
    NoAnswer,
    Overdue,
    Race,
)
from fencepost.errors import RpcRefused, RpcUnavailable

Try = Callable[[], Awaitable[str]]


class Script:
    """What each try of each place does, in their order; the last one is repeated."""

    def __init__(self, **tries: list[Try]) -> None:
        self._tries = tries
        self.started: list[str] = []
        self.running = 0
        self.most_running = 0
        self.is_full = asyncio.Event()

    async def ask(self, place: str, nth: int) -> str:
        self.started.append(place)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        if self.running == MAX_RUNNING:
            self.is_full.set()
        tries = self._tries[place]
        try:
            return await tries[min(nth, len(tries) - 1)]()
        finally:
            self.running -= 1

    def race(
        self, *, hedge_targets: str | None = None, grant: Callable[[str], bool] = lambda _: True
    ) -> Race[str, str]:
        places = list(self._tries)
        return Race(
            places,
            self.ask,
            hedge_targets=places if hedge_targets is None else list(hedge_targets),
            hedge_after_s=lambda _: 0.001,
            grant=grant,
        )


async def hangs() -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def answers(said: str) -> str:
    return said


async def answers_at(event: asyncio.Event, said: str) -> str:
    await event.wait()
    return said


async def fails(error: Exception) -> str:
    raise error


def no_other_tasks() -> bool:
    return asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_quick_answer_is_not_hedged() -> None:
    script = Script(a=[partial(answers, "a")], b=[hangs])
    assert await script.race().run() == "a"
    assert script.started == ["a"]


@pytest.mark.parametrize("others", [{}, {"b": [partial(answers, "second")]}], ids=["alone", "with another"])
async def test_the_hedge_wins_and_the_loser_has_ended(others: dict[str, list[Try]]) -> None:
    script = Script(a=[hangs, partial(answers, "second")], **others)
    assert await script.race().run() == "second"
    assert script.started == ["a", "b" if others else "a"]
    assert script.running == 0
    assert no_other_tasks()


async def test_the_first_try_still_wins_over_a_hedge_that_is_slower() -> None:
    is_hedged = asyncio.Event()

    async def hedge() -> str:
        is_hedged.set()
        return await hangs()

    script = Script(a=[partial(answers_at, is_hedged, "first"), hedge])
    assert await script.race().run() == "first"
    assert no_other_tasks()


async def test_a_failed_try_is_followed_by_the_next_place_without_a_hedge() -> None:
    script = Script(a=[partial(fails, RpcUnavailable("a is down"))], b=[partial(answers, "b")])
    assert await script.race(grant=lambda _: False).run() == "b"


async def test_an_error_that_is_an_answer_ends_the_race() -> None:
    script = Script(a=[hangs], b=[partial(fails, RpcRefused("no"))])
    with pytest.raises(RpcRefused, match="no"):
        await script.race().run()
    assert no_other_tasks()


async def test_an_overdue_place_is_tried_again_and_a_failed_one_is_not() -> None:
    overdue, down = partial(fails, Overdue("late")), partial(fails, RpcUnavailable("down"))
    script = Script(a=[overdue, overdue, down], b=[down])
    with pytest.raises(NoAnswer, match="down; down") as none:
        await script.race(grant=lambda _: False).run()
    assert script.started == ["a", "b", "a", "a"]
    assert len(none.value.errors) == 2


async def test_a_hedge_goes_to_no_place_that_is_not_fit_for_it() -> None:
    script = Script(a=[hangs, partial(answers, "a")], b=[partial(answers, "b")])
    assert await script.race(hedge_targets="a").run() == "a"
    assert script.started == ["a", "a"]


async def test_every_hedge_starts_after_the_same_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hanging try after another must not hold up the caller longer and longer."""
    timeouts_s: list[float | None] = []
    wait = asyncio.wait

    async def noting(*tasks: Any, timeout: float | None = None, **options: Any) -> Any:
        timeouts_s.append(timeout)
        return await wait(*tasks, timeout=timeout, **options)

    monkeypatch.setattr("fencepost.adapters.evm.hedging.asyncio.wait", noting)
    script = Script(a=[hangs, hangs, hangs, hangs, partial(answers, "fifth")])
    assert await script.race().run() == "fifth"
    assert len(script.started) == 5
    assert max(timeout_s for timeout_s in timeouts_s if timeout_s is not None) <= 0.001


async def test_a_hedge_that_is_not_granted_is_asked_for_again() -> None:
    answered = iter([False, False, True])
    slow: list[str] = []

    def grant(place: str) -> bool:
        slow.append(place)
        return next(answered)

    script = Script(a=[hangs, partial(answers, "a")])
    assert await script.race(grant=grant).run() == "a"
    assert slow == ["a", "a", "a"]
    assert script.started == ["a", "a"]


async def test_concurrent_tries_are_bounded_and_end_with_their_caller() -> None:
    script = Script(a=[hangs], b=[hangs])
    running = asyncio.create_task(script.race().run())
    await asyncio.wait_for(script.is_full.wait(), timeout=30)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(running, timeout=0.05)
    assert script.most_running == MAX_RUNNING
    assert script.running == 0
    assert no_other_tasks()


def test_hedges_are_a_share_of_the_reads_and_a_few_per_second() -> None:
    now_s = 5.0
    budget = HedgeBudget(lambda: now_s)
    assert sum(budget.grant() for _ in range(100)) == MAX_HEDGE_BURST
    granted = 0
    for _ in range(1000):
        budget.note_call()
        granted += budget.grant()
    assert granted == pytest.approx(1000 * HEDGED_SHARE, abs=1)
    now_s += 1.0
    assert sum(budget.grant() for _ in range(100)) == HEDGES_PER_S
    now_s += 3600.0
    assert sum(budget.grant() for _ in range(100)) == MAX_HEDGE_BURST
