"""Callers of the nonce service: as fast as possible, to measure the rate; or steadily, during a fault.

A duplicate is a nonce that two callers got although no caller released or reclaimed it. A gap is a nonce below the highest
allocated one that no caller got.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.domain.ids import Signer
from fencepost.errors import FencepostError
from fencepost.nonce.port import Hold, NoncePort
from fencepost.nonce.redis_client import RedisClient
from fencepost.nonce.redis_full import MAX_CALLS_PER_PIPELINE, PARALLEL_PIPELINES
from lab.schemes.testbed import EXPECTED

CALLERS = 64
STEADY_CALLERS = 4
STEADY_PAUSE_S = 0.004
AFTER_ERROR_S = 0.02
HOLD_S = 0.5
_BARE = "return redis.call('INCRBY', KEYS[1], ARGV[1])"


@dataclass(frozen=True, slots=True)
class Rate:
    """Calls per second and their latency."""

    per_s: float
    p50_ms: float
    p99_ms: float


def rate(latencies_s: Sequence[float], seconds: float) -> Rate:
    """Return rate and latency of the calls."""
    cuts = statistics.quantiles(latencies_s, n=100)
    return Rate(round(len(latencies_s) / seconds), round(cuts[49] * 1000, 2), round(cuts[98] * 1000, 2))


async def measure(port: NoncePort, signers: Sequence[Signer], seconds: float) -> Rate:
    """Measure 64 callers, each calling again as soon as it has an answer."""
    first = [signers[turn % len(signers)] for turn in range(max(CALLERS, len(signers)))]
    await asyncio.gather(
        *[port.allocate(signer, hold_for_s=600) for signer in first]
    )  # opens the connections
    latencies_s: list[float] = []
    began_s = time.perf_counter()

    async def caller(number: int) -> None:
        turn = number
        while (asked_s := time.perf_counter()) - began_s < seconds:
            await port.allocate(signers[turn % len(signers)], hold_for_s=600)
            latencies_s.append(time.perf_counter() - asked_s)
            turn += CALLERS + 1

    await asyncio.gather(*map(caller, range(CALLERS)))
    return rate(latencies_s, time.perf_counter() - began_s)


async def measure_bare_lua(url: str, seconds: float, *, pipelined: bool) -> Rate:
    """Measure what Redis and its client achieve for a script that only counts, with the callers of `measure`.

    `pipelined` is equal load: waiting calls travel together, as in `redis_full`.
    """
    link = RedisClient(url, timeout_s=10)
    sha = await link.command("SCRIPT", "LOAD", _BARE)
    command = ("EVALSHA", sha, 1, "fencepost:lab:bare", 1)

    async def run_all(commands: Sequence[tuple[object, ...]]) -> list[object]:
        return await link.pipeline(list(commands))

    await asyncio.gather(*[link.command(*command) for _ in range(CALLERS)])  # opens every connection
    together = GroupCommit(run_all, max_items=MAX_CALLS_PER_PIPELINE, parallel=PARALLEL_PIPELINES)
    latencies_s: list[float] = []
    began_s = time.perf_counter()

    async def caller() -> None:
        while (asked_s := time.perf_counter()) - began_s < seconds:
            await (together.submit(command) if pipelined else link.command(*command))
            latencies_s.append(time.perf_counter() - asked_s)

    await asyncio.gather(*[caller() for _ in range(CALLERS)])
    took_s = time.perf_counter() - began_s
    await link.close()
    return rate(latencies_s, took_s)


@dataclass(slots=True)
class Tally:
    """What the callers of one signer got, and when."""

    holds: list[Hold] = field(default_factory=list)
    errors: int = 0
    fault_at_s: float | None = None
    _last_s: float = 0.0
    stall_s: float = 0.0  # the longest time without a nonce since the fault

    def note(self, holds: Sequence[Hold]) -> None:
        now_s = time.monotonic()
        if self.fault_at_s is not None:
            self.stall_s = max(self.stall_s, now_s - max(self._last_s, self.fault_at_s))
        self._last_s = now_s
        self.holds += holds

    def fault(self) -> None:
        self.fault_at_s = time.monotonic()

    @property
    def nonces(self) -> Counter[int]:
        return Counter(hold.nonce for hold in self.holds)

    @property
    def duplicates(self) -> int:
        return sum(count - 1 for count in self.nonces.values())

    def gaps(self) -> set[int]:
        given = self.nonces
        return set(range(max(given, default=-1) + 1)) - given.keys()


async def run_steady_callers(port: NoncePort, signer: Signer, tally: Tally, stop: asyncio.Event) -> None:
    """Run a few callers that retry after errors, until they are stopped."""

    async def caller() -> None:
        while not stop.is_set():
            try:
                tally.note(await port.allocate(signer, hold_for_s=HOLD_S))
            except EXPECTED:
                tally.errors += 1
                await asyncio.sleep(AFTER_ERROR_S)
            else:
                await asyncio.sleep(STEADY_PAUSE_S)

    await asyncio.gather(*[caller() for _ in range(STEADY_CALLERS)])


async def mark_all_used(port: NoncePort, tally: Tally) -> int:
    """Mark everything allocated as used; return how many marks were rejected because the hold was lost."""
    refused = 0
    limit = asyncio.Semaphore(CALLERS)

    async def use(hold: Hold) -> None:
        nonlocal refused
        async with limit:
            try:
                await port.mark_used(hold)
            except FencepostError:
                refused += 1

    await asyncio.gather(*map(use, tally.holds))
    return refused
