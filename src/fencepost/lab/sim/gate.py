"""The way from a simulated process to the world: each call takes a while, may fail as planned, and is written down.

A call is three moments: it is made, it takes effect, it is answered. A process can be killed or paused between any two
of them, and a fault can take the answer away after the effect.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from fencepost.lab.sim.loop import Process, SimLoop
from fencepost.lab.sim.plan import Fault
from fencepost.lab.sim.records import Records
from fencepost.lab.sim.weather import Weather

# Most calls are quick, some are slow enough for others to come between.
_DELAYS_S: Final = (
    *(0.002 * n for n in range(40)),
    *(0.02 * n for n in range(16)),
    *(0.1 * n for n in range(8)),
)

LATE_ANSWERS: Final = 0.2


class SimClock:
    """A process's own clock: it runs like all others, but may be set."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return self._loop.time() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Host(Protocol):
    """Where processes run."""

    def pause(self, process: Process, seconds: float) -> None: ...
    def kill(self, slot: int, *, start_again_in_s: float) -> None: ...


@dataclass(slots=True)
class CallCounter:
    """Of one slot, whichever process runs there: which fault is due at this call, as one of its own or of anybody's."""

    faults: Sequence[Fault]
    anybody: CallCounter | None = None
    _counts: Counter[str] = field(default_factory=Counter)
    _due: dict[tuple[str, int], list[Fault]] = field(init=False)

    def __post_init__(self) -> None:
        self._due = defaultdict(list)
        for fault in self.faults:
            self._due[fault.call, fault.nth].append(fault)

    def next(self, call: str) -> Fault | None:
        theirs = None if self.anybody is None else self.anybody.next(call)
        if not self._due:
            return theirs
        for name in (call, "any"):
            self._counts[name] += 1
            due = self._due.get((name, self._counts[name]))
            if due:
                return due[0]
        return theirs

    def refusal(self) -> Fault | None:
        """What the node will say to the send that comes next, if that is planned."""
        due = self._due.get(("send", self._counts["send"] + 1), ())
        for fault in due:
            if fault.kind in ("send_refused", "refused_but_taken"):
                return fault
        return None if self.anybody is None else self.anybody.refusal()

    def end(self) -> None:
        self._due.clear()
        self.anybody = None


@dataclass(slots=True)
class Gate:
    """The way from one process to the world."""

    process: Process
    slot: int
    loop: SimLoop
    rng: random.Random
    counter: CallCounter
    weather: Weather
    host: Host
    records: Records

    async def through(
        self, name: str, effect: Callable[[], Awaitable[Any]], *, failure: Callable[[], BaseException]
    ) -> Any:
        """`failure` is what the caller sees when there is no answer."""
        fault = self.counter.next(name)
        self.records.say(self.process.name, name)
        self._must_live()
        if fault is None:
            await asyncio.sleep(self._delay_s())
            self._must_live()
            answer = await effect()
            self._must_live()
        else:
            answer = await self._through_fault(name, fault, effect, failure)
        if self.rng.random() < LATE_ANSWERS:
            await asyncio.sleep(self._delay_s())
            self._must_live()
        return answer

    async def _through_fault(
        self,
        name: str,
        fault: Fault,
        effect: Callable[[], Awaitable[Any]],
        failure: Callable[[], BaseException],
    ) -> Any:
        kind = fault.kind
        if kind in ("crash_before", "pause_before"):
            await self._stop(fault, "")
        await asyncio.sleep(self._delay_s())
        if kind == "slow_call":
            self.records.struck(kind, self.process.name, "")
            await asyncio.sleep(fault.length_s)
        self._must_live()
        if kind in ("db_refused", "rpc_refused", "key_failure"):
            self.records.struck(kind, self.process.name, name)
            raise failure()
        answer = await effect()
        self._must_live()
        if kind in ("db_answer_lost", "rpc_answer_lost"):
            self.records.struck(kind, self.process.name, name)
            raise failure()
        if kind in ("crash_after", "pause_after"):
            await self._stop(fault, name)
        return answer

    def weather_of(self, kind: str) -> int:
        return self.weather.strength(kind, self.slot)

    def _delay_s(self) -> float:
        return _DELAYS_S[self.rng.getrandbits(6)]

    def _must_live(self) -> None:
        if self.process.is_gone:
            raise asyncio.CancelledError

    async def _stop(self, fault: Fault, name: str) -> None:
        self.records.struck(fault.kind, self.process.name, name)
        if fault.kind.startswith("crash"):
            self.host.kill(self.slot, start_again_in_s=fault.length_s)
            await self.loop.create_future()  # nothing comes after this but the end
        self.host.pause(self.process, fault.length_s)
        await asyncio.sleep(0)
        self._must_live()
