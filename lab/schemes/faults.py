"""Inject the same faults into every scheme: all five run in parallel, each for its own signer.

Afterwards all allocated nonces are marked as used, and the rest is reclaimed: a gap that can be allocated again is a delay,
a gap that remains stops the signer on the chain.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from fencepost.domain.ids import Signer
from fencepost.errors import FencepostError, Unready
from fencepost.nonce.port import MAX_NONCES_PER_CALL, Hold, NoncePort
from fencepost.nonce.redis_authority import MAX_STATUS_AGE_S
from fencepost.nonce.redis_client import RedisClient
from lab.proxies.relay import relay
from lab.schemes.load import HOLD_S, Tally, mark_all_used, run_steady_callers
from lab.schemes.testbed import SCHEMES, OpenScheme, Testbed, new_signer, open_scheme
from lab.schemes.worker import VARIABLE

# Any process may serve any signer: after the fault a second, fresh process gets callers too.
ANY_PROCESS = ("postgres", "redis_issue", "redis_full")
BLOCK_SIZE = 100
POOL_SIZE = 3
LOST_BEFORE_FAILOVER_S = 0.25
REDIS_AWAY_S = 0.4
ANSWERS_LOST = 4
HEAL_TIMEOUT_S = 4.0
HEAL_INTERVAL_S = 0.2
START_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fault did to one scheme."""

    duplicates: int
    gaps: int
    gaps_left: int  # after reclaiming
    marks_refused: int
    errors: int
    stall_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """The duration of the phases of a fault."""

    before_s: float
    after_s: float
    lease_s: float = 2.0
    max_status_age_s: float = MAX_STATUS_AGE_S

    @property
    def opened_with(self) -> dict[str, Any]:
        """Return the arguments with which every scheme is opened: few connections, for few callers."""
        return {
            "lease_s": self.lease_s,
            "max_status_age_s": self.max_status_age_s,
            "block_size": BLOCK_SIZE,
            "pool_size": POOL_SIZE,
        }


@dataclass(frozen=True, slots=True)
class _Run:
    scheme: str
    signer: Signer
    tally: Tally
    opened: OpenScheme
    callers: asyncio.Task[None]


Gone = Callable[[], None]
Fault = Callable[[Testbed, Pace], Awaitable[Mapping[str, Outcome]]]


# ---- faults of the servers


async def _redis_killed(testbed: Testbed, gone: Gone) -> None:
    testbed.to_redis.cut()
    gone()
    await testbed.redis.crash()
    await asyncio.sleep(REDIS_AWAY_S)
    testbed.to_redis.restore()


def _redis_failed_over(testbed: Testbed, gone: Gone) -> None:
    """Fail over to a replica that missed the last writes."""
    testbed.to_redis.cut()
    gone()
    testbed.to_redis.server_port = testbed.replica.port
    testbed.to_redis.restore()


async def _database_restarted(testbed: Testbed, _gone: Gone) -> None:
    await testbed.postgres.restart("immediate")


async def _answers_lost(testbed: Testbed, _gone: Gone) -> None:
    testbed.to_postgres.lose_answers(ANSWERS_LOST)
    testbed.to_redis.lose_answers(ANSWERS_LOST)


def server_fault(inject: Callable[[Testbed, Gone], Awaitable[None]]) -> Fault:
    """Return a fault that `inject` causes at the servers."""

    async def fault(testbed: Testbed, pace: Pace) -> Mapping[str, Outcome]:
        async with _all_at_work(testbed, pace) as (runs, stop), AsyncExitStack() as stack:

            def gone() -> None:
                """Stop the first process, which is lost with Redis; its callers move to the second process."""
                for run in runs:
                    if run.scheme in ANY_PROCESS:
                        run.opened.clock.stop()
                        run.callers.cancel()

            seconds = [
                (
                    run,
                    await stack.enter_async_context(
                        open_scheme(run.scheme, testbed.through_relays, **pace.opened_with)
                    ),
                )
                for run in runs
                if run.scheme in ANY_PROCESS
            ]
            await asyncio.sleep(pace.before_s)
            for run in runs:
                run.tally.fault()
            await inject(testbed, gone)
            async with asyncio.TaskGroup() as group:
                for run, second in seconds:
                    group.create_task(run_steady_callers(second.port, run.signer, run.tally, stop))
                await asyncio.sleep(pace.after_s)
                stop.set()
            second_of = {run.scheme: second for run, second in seconds}
            return await _check_all(
                [replace(run, opened=second_of.get(run.scheme, run.opened)) for run in runs]
            )

    return fault


async def fail_over(testbed: Testbed, pace: Pace) -> Mapping[str, Outcome]:
    """Promote a replica that stopped replicating a moment before."""
    replica, primary = (
        RedisClient(testbed.replica.url, timeout_s=10),
        RedisClient(testbed.redis.url, timeout_s=10),
    )
    try:
        await primary.command("FLUSHALL")
        await replica.command("REPLICAOF", "127.0.0.1", testbed.redis.port)
        async with asyncio.timeout(START_TIMEOUT_S):
            await _until_following(replica)

        async def inject(at: Testbed, gone: Gone) -> None:
            await replica.command("REPLICAOF", "NO", "ONE")
            await asyncio.sleep(LOST_BEFORE_FAILOVER_S)
            _redis_failed_over(at, gone)

        return await server_fault(inject)(testbed, pace)
    finally:
        testbed.to_redis.server_port = testbed.redis.port
        await replica.close()
        await primary.close()


async def _until_following(replica: RedisClient) -> None:
    for _ in range(int(START_TIMEOUT_S / 0.05)):
        if (await replica.command("INFO", "replication")).get("master_link_status") == "up":
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the replica does not follow")


async def one_without_redis(testbed: Testbed, pace: Pace) -> Mapping[str, Outcome]:
    """Run a second process for the same signer that can't reach Redis, while the first one can."""
    async with _all_at_work(testbed, pace) as (runs, stop), AsyncExitStack() as stack:
        nowhere = await stack.enter_async_context(relay("127.0.0.1", testbed.redis.port))
        nowhere.cut()
        servers = replace(testbed.through_relays, redis_url=f"redis://127.0.0.1:{nowhere.port}/0")
        seconds = [
            (run, await stack.enter_async_context(open_scheme(run.scheme, servers, **pace.opened_with)))
            for run in runs
            if run.scheme in ANY_PROCESS
        ]
        await asyncio.sleep(pace.before_s)
        async with asyncio.TaskGroup() as group:
            for run in runs:
                run.tally.fault()
            for run, second in seconds:
                group.create_task(run_steady_callers(second.port, run.signer, run.tally, stop))
            await asyncio.sleep(pace.after_s)
            stop.set()
        return await _check_all(runs)


# ---- faults of the processes


async def two_owners(testbed: Testbed, pace: Pace) -> Mapping[str, Outcome]:
    """Pause the first process until its lease is lost, run a second one, and let the first continue."""
    async with _all_at_work(testbed, pace) as (runs, stop), AsyncExitStack() as stack:
        seconds = [
            await stack.enter_async_context(
                open_scheme(run.scheme, testbed.through_relays, **pace.opened_with)
            )
            for run in runs
        ]
        await asyncio.sleep(pace.before_s)
        async with asyncio.TaskGroup() as group:
            for run, second in zip(runs, seconds, strict=True):
                run.tally.fault()
                run.opened.clock.stop()
                group.create_task(run_steady_callers(second.port, run.signer, run.tally, stop))
            await asyncio.sleep(max(pace.after_s, 1.5 * pace.lease_s))
            stop.set()
        for run in runs:
            await run.opened.port.close()
        return await _check_all(
            [replace(run, opened=second) for run, second in zip(runs, seconds, strict=True)]
        )


async def process_killed(testbed: Testbed, pace: Pace) -> Mapping[str, Outcome]:
    """Kill a process (kill -9) at work; another process continues."""
    signers = {scheme: new_signer() for scheme in SCHEMES}
    async with AsyncExitStack() as stack:
        worker = await _start_worker(testbed, signers, pace)
        stack.callback(_end, worker)
        opened = {
            scheme: await stack.enter_async_context(
                open_scheme(scheme, testbed.through_relays, **pace.opened_with)
            )
            for scheme in SCHEMES
        }
        tallies = {scheme: Tally() for scheme in SCHEMES}
        for scheme, nonce, token in await _read_until_killed(worker, seconds=pace.before_s):
            tallies[scheme].holds.append(Hold(signers[scheme], nonce, token))
        stop = asyncio.Event()
        runs: list[_Run] = []
        async with asyncio.TaskGroup() as group:
            for scheme in SCHEMES:
                one, signer, tally = opened[scheme], signers[scheme], tallies[scheme]
                tally.fault()
                callers = group.create_task(run_steady_callers(one.port, signer, tally, stop))
                runs.append(_Run(scheme, signer, tally, one, callers))
            await asyncio.sleep(max(pace.after_s, 1.5 * pace.lease_s))
            stop.set()
        return await _check_all(runs)


async def _start_worker(
    testbed: Testbed, signers: Mapping[str, Signer], pace: Pace
) -> asyncio.subprocess.Process:
    config = {
        "signers": {scheme: signer.address for scheme, signer in signers.items()},
        "opened_with": pace.opened_with,
        "dsn": testbed.direct.dsn,
        "redis_url": testbed.direct.redis_url,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "lab.schemes.worker",
        env={**os.environ, VARIABLE: json.dumps(config)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _read_until_killed(
    worker: asyncio.subprocess.Process, *, seconds: float
) -> list[tuple[str, int, UUID]]:
    """Return what the process allocated, from its start until some time after every scheme worked."""
    assert worker.stdout is not None  # noqa: S101 - it was asked for
    lines: list[bytes] = []
    at_work: set[bytes] = set()
    async with asyncio.timeout(START_TIMEOUT_S):
        while len(at_work) < len(SCHEMES):
            lines.append(await worker.stdout.readline())
            if not lines[-1]:
                raise Unready("the process to be killed ended by itself")
            at_work.add(lines[-1].partition(b" ")[0])
    await asyncio.sleep(seconds)
    worker.kill()
    rest, _ = await worker.communicate()
    whole = b"".join(lines) + rest.rpartition(b"\n")[0]  # the last line may be incomplete
    words = [line.split() for line in whole.decode().splitlines()]
    return [(scheme, int(nonce), UUID(token)) for scheme, nonce, token in words]


def _end(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        worker.kill()


# In the order of the table.
FAULTS: Mapping[str, Fault] = {
    "Redis killed": server_fault(_redis_killed),
    "Redis failed over": fail_over,
    "one without Redis": one_without_redis,
    "process killed": process_killed,
    "two owners": two_owners,
    "database restarted": server_fault(_database_restarted),
    "answers lost": server_fault(_answers_lost),
}
# These do not affect the servers, so they may run in parallel, each for its own signers.
PROCESS_FAULTS = ("one without Redis", "process killed", "two owners")


# ---- running and checking


@asynccontextmanager
async def _all_at_work(testbed: Testbed, pace: Pace) -> AsyncIterator[tuple[list[_Run], asyncio.Event]]:
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(open_scheme(scheme, testbed.through_relays, **pace.opened_with))
            for scheme in SCHEMES
        ]
        async with asyncio.TaskGroup() as group:
            runs = []
            for scheme, one in zip(SCHEMES, opened, strict=True):
                signer, tally = new_signer(), Tally()
                callers = group.create_task(run_steady_callers(one.port, signer, tally, stop))
                runs.append(_Run(scheme, signer, tally, one, callers))
            try:
                yield runs, stop
            finally:
                stop.set()


async def _check_all(runs: list[_Run]) -> dict[str, Outcome]:
    outcomes = await asyncio.gather(*map(_check, runs))
    return {run.scheme: outcome for run, outcome in zip(runs, outcomes, strict=True)}


async def _check(run: _Run) -> Outcome:
    port, tally = run.opened.port, run.tally
    duplicates, gaps = tally.duplicates, tally.gaps()
    refused = await mark_all_used(port, tally)
    left = await _heal(port, run.signer, gaps) if gaps else set()
    return Outcome(
        duplicates=duplicates,
        gaps=len(gaps),
        gaps_left=len(left),
        marks_refused=refused,
        errors=tally.errors,
        stall_s=round(tally.stall_s, 3),
    )


async def _heal(port: NoncePort, signer: Signer, gaps: set[int]) -> set[int]:
    """Reclaim until every gap can be allocated again, or until the time-out; return the gaps that are left."""
    left = set(gaps)
    deadline_s = time.monotonic() + HOLD_S + HEAL_TIMEOUT_S
    while left and time.monotonic() < deadline_s:
        await asyncio.sleep(HEAL_INTERVAL_S)
        try:
            await port.reclaim_expired(signer)
            status = await port.status(signer)
            # Nonces that are not released may belong to a live block, which its owner allocates next.
            wanted = (status.released if status is not None else 0) or len(left)
            got = await port.allocate(signer, count=min(wanted, MAX_NONCES_PER_CALL), hold_for_s=600)
            left -= {hold.nonce for hold in got}
        except FencepostError:
            continue  # the lease or Redis is not back yet
    return left
