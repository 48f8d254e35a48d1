"""Race the tries of one call: when a try is slow, another one starts, so that the caller need not wait for it.

Contract
- `Race.run` starts the first try at once. It starts another one when all running tries have failed, or when none has
  answered within the hedge delay after the last start. The first answer wins; an error other than `RpcUnavailable` is an
  answer.
- The losers are cancelled, and have ended when `run` returns or raises. The same holds if the caller is cancelled.
- A try that starts while another one runs is a hedge. A target is usually an endpoint. `HedgeBudget` bounds hedges to a
  share of all calls, plus a few per second, so that a slow node does not get twice the load. A call whose hedge is not
  granted asks for it again after the same delay.
- After `Overdue` a target may be tried again; after any other `RpcUnavailable` this race tries it no more.
- Only reads, and sends of the same bytes, may be raced: a loser may have been carried out, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from fencepost.errors import RpcUnavailable

T = TypeVar("T")
Target = TypeVar("Target")

HEDGED_SHARE: Final = 0.2  # of all calls
HEDGES_PER_S: Final = (
    10.0  # in addition to that share: no load for an endpoint, but a help for a lane with few reads
)
MAX_HEDGE_BURST: Final = 20
MAX_RUNNING: Final = 5  # tries of one call at a time


class Overdue(RpcUnavailable):
    """The call took longer than this endpoint usually does, and was cancelled."""


class NoAnswer(Exception):
    """No target answered; `errors` has the last error of each."""

    def __init__(self, errors: Sequence[RpcUnavailable]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors: Final = errors


class HedgeBudget:
    """Grant hedges: a share of the calls so far, a few per second, and never more than a burst at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counted_at_s = clock()
        self._hedges_left = float(MAX_HEDGE_BURST)

    def note_call(self) -> None:
        self._add(HEDGED_SHARE)

    def grant(self) -> bool:
        now_s = self._clock()
        self._add(HEDGES_PER_S * (now_s - self._counted_at_s))
        self._counted_at_s = now_s
        if self._hedges_left < 1:
            return False
        self._hedges_left -= 1
        return True

    def _add(self, hedges: float) -> None:
        self._hedges_left = min(MAX_HEDGE_BURST, self._hedges_left + hedges)


class Race(Generic[Target, T]):
    """One call of several targets, best first.

    `ask(target, nth)` is the nth try of a target, from 0. Hedges go to `hedge_targets` alone; `grant(target)` is asked for
    each of them, with the target that is slow.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        ask: Callable[[Target, int], Awaitable[T]],
        *,
        hedge_targets: Sequence[Target],
        hedge_after_s: Callable[[Target], float],
        grant: Callable[[Target], bool],
    ) -> None:
        self._ask = ask
        self._tries = dict.fromkeys(targets, 0)
        self._hedge_targets = frozenset(hedge_targets)
        self._hedge_after_s = hedge_after_s
        self._grant = grant
        self._errors: dict[Target, RpcUnavailable] = {}  # of targets that failed for good
        self._running: dict[asyncio.Task[T], Target] = {}  # the oldest first

    async def run(self) -> T:
        """Return the first answer; raise `NoAnswer` if there is none."""
        loop = asyncio.get_running_loop()
        delay_s = self._start()
        hedge_at_s = loop.time() + delay_s
        try:
            while True:
                done, _ = await asyncio.wait(
                    self._running, timeout=hedge_at_s - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    self._hedge()
                    hedge_at_s = loop.time() + delay_s
                elif (winner := self._settle(done)) is not None:
                    return winner.result()
                elif not self._running:
                    delay_s = self._start()
                    hedge_at_s = loop.time() + delay_s
        finally:
            await self._cancel()

    def _start(self) -> float:
        """Start the next try, and return after how long it may be hedged."""
        target = self._next(list(self._tries))
        if target is None:
            raise NoAnswer(list(self._errors.values()))
        self._try(target)
        return self._hedge_after_s(target)

    def _hedge(self) -> None:
        """Start a hedge if it is granted."""
        target = self._next([target for target in self._tries if target in self._hedge_targets])
        slow = next(iter(self._running.values()))
        if target is not None and len(self._running) < MAX_RUNNING and self._grant(slow):
            self._try(target)

    def _next(self, targets: Sequence[Target]) -> Target | None:
        """Return the target with the fewest tries; the best of several."""
        fit = [target for target in targets if target not in self._errors]
        return min(fit, key=self._tries.__getitem__, default=None)

    def _try(self, target: Target) -> None:
        nth = self._tries[target]
        self._tries[target] = nth + 1
        self._running[asyncio.ensure_future(self._ask(target, nth))] = target

    def _settle(self, done: set[asyncio.Task[T]]) -> asyncio.Task[T] | None:
        """Return a task that has an answer, and note the errors of the others."""
        winner = None
        for task in done:
            target = self._running.pop(task)
            error = None if task.cancelled() else task.exception()
            if not isinstance(error, RpcUnavailable):
                winner = task if winner is None or error is None else winner
            elif not isinstance(error, Overdue):
                self._errors[target] = error
        return winner

    async def _cancel(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            done, _ = await asyncio.wait(self._running)
            for task in done:
                if not task.cancelled():
                    task.exception()  # it ended by itself in the meantime: mark its error as retrieved
