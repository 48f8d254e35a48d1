"""Pass every call of a simulated process to the world: delay it, inject the planned fault, and record it.

A call has three moments: it is made, it takes effect, it is answered. A process can be killed or paused between any two
of them, and a fault can lose the answer after the effect.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lab.sim.conditions import Conditions
from lab.sim.loop import Process, SimLoop
from lab.sim.plan import Fault
from lab.sim.recorder import Recorder

# Most calls are quick, some are slow enough for other calls to overtake them.
_DELAYS_S: Final = (
    *(0.002 * n for n in range(40)),
    *(0.02 * n for n in range(16)),
    *(0.1 * n for n in range(8)),
)

LATE_ANSWERS: Final = 0.2


class SimClock:
    """The clock of one process: it runs at the speed of simulated time, with an offset."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.ahead_s = 0.0

    def now_s(self) -> float:
        return self._loop.time() + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Host(Protocol):
    """The part of the world that pauses and kills processes."""

    def pause(self, process: Process, seconds: float) -> None: ...
    def kill(self, slot: int, *, start_again_in_s: float) -> None: ...


@dataclass(slots=True)
class CallCounter:
    """Count the calls of one slot, and return the fault that is planned for the next one.

    Faults that name no slot are counted over the calls of all slots.
    """

    faults: Sequence[Fault]
    any_slot: CallCounter | None = None
    _counts: Counter[str] = field(default_factory=Counter)
    _due: dict[tuple[str, int], list[Fault]] = field(init=False)

    def __post_init__(self) -> None:
        self._due = defaultdict(list)
        for fault in self.faults:
            self._due[fault.call, fault.nth].append(fault)

    def next(self, call: str) -> Fault | None:
        theirs = None if self.any_slot is None else self.any_slot.next(call)
        if not self._due:
            return theirs
        for name in (call, "any"):
            self._counts[name] += 1
            due = self._due.get((name, self._counts[name]))
            if due:
                return due[0]
        return theirs

    def refusal(self) -> Fault | None:
        """Return the planned rejection of the next send, if there is one."""
        due = self._due.get(("send", self._counts["send"] + 1), ())
        for fault in due:
            if fault.kind in ("send_refused", "refused_but_taken"):
                return fault
        return None if self.any_slot is None else self.any_slot.refusal()

    def end(self) -> None:
        self._due.clear()
        self.any_slot = None


@dataclass(slots=True)
class Gate:
    """The only way from one process to the world."""

    process: Process
    slot: int
    loop: SimLoop
    rng: random.Random
    counter: CallCounter
    conditions: Conditions
    host: Host
    recorder: Recorder

    async def through(
        self, name: str, effect: Callable[[], Awaitable[Any]], *, failure: Callable[[], BaseException]
    ) -> Any:
        """Pass one call to the world; raise `failure()` if the planned fault loses the answer."""
        fault = self.counter.next(name)
        self.recorder.log(self.process.name, name)
        self._require_alive()
        if fault is None:
            await asyncio.sleep(self._delay_s())
            self._require_alive()
            answer = await effect()
            self._require_alive()
        else:
            answer = await self._through_fault(name, fault, effect, failure)
        if self.rng.random() < LATE_ANSWERS:
            await asyncio.sleep(self._delay_s())
            self._require_alive()
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
            await self._kill_or_pause(fault, "")
        await asyncio.sleep(self._delay_s())
        if kind == "slow_call":
            self.recorder.count_fault(kind, self.process.name, "")
            await asyncio.sleep(fault.length_s)
        self._require_alive()
        if kind in ("db_refused", "rpc_refused", "key_failure"):
            self.recorder.count_fault(kind, self.process.name, name)
            raise failure()
        answer = await effect()
        self._require_alive()
        if kind in ("db_answer_lost", "rpc_answer_lost"):
            self.recorder.count_fault(kind, self.process.name, name)
            raise failure()
        if kind in ("crash_after", "pause_after"):
            await self._kill_or_pause(fault, name)
        return answer

    def condition(self, kind: str) -> int:
        return self.conditions.strength(kind, self.slot)

    def _delay_s(self) -> float:
        return _DELAYS_S[self.rng.getrandbits(6)]

    def _require_alive(self) -> None:
        if self.process.is_dead:
            raise asyncio.CancelledError

    async def _kill_or_pause(self, fault: Fault, name: str) -> None:
        self.recorder.count_fault(fault.kind, self.process.name, name)
        if fault.kind.startswith("crash"):
            self.host.kill(self.slot, start_again_in_s=fault.length_s)
            await self.loop.create_future()  # the task ends here
        self.host.pause(self.process, fault.length_s)
        await asyncio.sleep(0)
        self._require_alive()
