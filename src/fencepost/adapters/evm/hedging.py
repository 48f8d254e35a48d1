"""Race the tries of one read: a try that is slow does not hold up its caller, because another one starts beside it.

Contract
- `Race.run` starts the first try at once. It starts another one when all running tries have failed, or when none has
  answered after the hedge delay, which doubles with each hedge. The first answer wins; an error other than
  `RpcUnavailable` is an answer.
- The losers are cancelled, and have ended when `run` returns or raises. The same holds if the caller is cancelled.
- A try that starts beside a running one is a hedge. `HedgeBudget` bounds hedges to a share of all reads, plus a few a
  second, so that a slow node does not get twice the load. A read whose hedge is not granted asks for it again after
  the same delay.
- After `Overdue` a place may be tried again; after any other `RpcUnavailable` this read tries it no more.
- Only reads may be raced: a loser may have been carried out, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from fencepost.errors import RpcUnavailable

T = TypeVar("T")
Place = TypeVar("Place")

HEDGED_SHARE: Final = 0.2  # of all reads
HEDGES_PER_S: Final = 10.0  # besides that share: they matter to no node, and to a lane whose chain is quiet
MAX_HEDGE_BURST: Final = 20
MAX_RUNNING: Final = 5  # tries of one read at a time


class Overdue(RpcUnavailable):
    """The call took longer than this endpoint usually does, and was given up."""


class NoAnswer(Exception):
    """No place answered; `errors` has the last error of each."""

    def __init__(self, errors: Sequence[RpcUnavailable]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors: Final = errors


class HedgeBudget:
    """Grant hedges: a share of the reads so far, a few a second, and never more than a burst at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counted_at_s = clock()
        self._hedges_left = float(MAX_HEDGE_BURST)

    def note_read(self) -> None:
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


class Race(Generic[Place, T]):
    """One read of several places, best first.

    `ask(place, nth)` is the nth try of a place, from 0. Hedges go to `hedge_places` alone; `grant(place)` is asked for
    each of them, with the place that is slow.
    """

    def __init__(
        self,
        places: Sequence[Place],
        ask: Callable[[Place, int], Awaitable[T]],
        *,
        hedge_places: Sequence[Place],
        hedge_after_s: Callable[[Place], float],
        grant: Callable[[Place], bool],
    ) -> None:
        self._ask = ask
        self._tries = dict.fromkeys(places, 0)
        self._hedge_places = frozenset(hedge_places)
        self._hedge_after_s = hedge_after_s
        self._grant = grant
        self._errors: dict[Place, RpcUnavailable] = {}  # of places that failed for good
        self._running: dict[asyncio.Task[T], Place] = {}  # the oldest first

    async def run(self) -> T:
        """Return the first answer; raise `NoAnswer` if there is none."""
        delay_s = self._start()
        try:
            while True:
                done, _ = await asyncio.wait(
                    self._running, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    delay_s *= 2 if self._hedge() else 1
                elif (winner := self._settle(done)) is not None:
                    return winner.result()
                elif not self._running:
                    delay_s = self._start()
        finally:
            await self._cancel()

    def _start(self) -> float:
        """Start the next try, and return after how long it may be hedged."""
        place = self._next(list(self._tries))
        if place is None:
            raise NoAnswer(list(self._errors.values()))
        self._try(place)
        return self._hedge_after_s(place)

    def _hedge(self) -> bool:
        """Start a hedge, and return whether it was granted."""
        place = self._next([place for place in self._tries if place in self._hedge_places])
        slow = next(iter(self._running.values()))
        if place is None or len(self._running) >= MAX_RUNNING or not self._grant(slow):
            return False
        self._try(place)
        return True

    def _next(self, places: Sequence[Place]) -> Place | None:
        """Return the place with the fewest tries; the best of several."""
        fit = [place for place in places if place not in self._errors]
        return min(fit, key=self._tries.__getitem__, default=None)

    def _try(self, place: Place) -> None:
        nth = self._tries[place]
        self._tries[place] = nth + 1
        self._running[asyncio.ensure_future(self._ask(place, nth))] = place

    def _settle(self, done: set[asyncio.Task[T]]) -> asyncio.Task[T] | None:
        """Return a task that has an answer, and note the errors of the others."""
        winner = None
        for task in done:
            place = self._running.pop(task)
            error = None if task.cancelled() else task.exception()
            if not isinstance(error, RpcUnavailable):
                winner = task if winner is None or error is None else winner
            elif not isinstance(error, Overdue):
                self._errors[place] = error
        return winner

    async def _cancel(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            done, _ = await asyncio.wait(self._running)
            for task in done:
                if not task.cancelled():
                    task.exception()  # it ended by itself in the meantime: mark its error as retrieved
