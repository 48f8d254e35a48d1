"""The same faults for every scheme: all five work side by side, each for a signer of its own, when it happens.

Afterwards everything that was given is marked as used, and what is left over is reclaimed: a hole that can be given
again is a delay, a hole that stays stops the signer on the chain.
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
from fencepost.lab.relay import relay
from fencepost.lab.scheme_load import HOLD_S, Tally, steady, use_all
from fencepost.lab.scheme_stage import SCHEMES, Opened, Stage, new_signer, open_scheme
from fencepost.lab.scheme_worker import VARIABLE
from fencepost.nonce.port import MOST_AT_ONCE, Hold, NoncePort
from fencepost.nonce.redis_link import RedisLink
from fencepost.nonce.redis_turns import HEARD_WITHIN_S

# These let any process serve any signer: after the fault a second one, which knows nothing yet, gets callers too.
ANY_PROCESS = ("postgres", "redis_issue", "redis_full")
BLOCK_SIZE = 100
POOL_SIZE = 3
LOST_BEFORE_FAILOVER_S = 0.25
REDIS_AWAY_S = 0.4
ANSWERS_LOST = 4
HEAL_WITHIN_S = 4.0
HEAL_EVERY_S = 0.2
START_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    duplicates: int
    holes: int
    holes_left: int  # after reclaiming
    marks_refused: int
    errors: int
    stall_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a fault is looked at."""

    before_s: float
    after_s: float
    lease_s: float = 2.0
    heard_within_s: float = HEARD_WITHIN_S

    @property
    def opened_with(self) -> dict[str, Any]:
        """How every scheme is opened; few connections, for few callers."""
        return {
            "lease_s": self.lease_s,
            "heard_within_s": self.heard_within_s,
            "block_size": BLOCK_SIZE,
            "pool_size": POOL_SIZE,
        }


@dataclass(frozen=True, slots=True)
class _Run:
    scheme: str
    signer: Signer
    tally: Tally
    opened: Opened
    callers: asyncio.Task[None]


Gone = Callable[[], None]
Fault = Callable[[Stage, Pace], Awaitable[Mapping[str, Outcome]]]


# ---- faults of what is around


async def _redis_killed(stage: Stage, gone: Gone) -> None:
    stage.to_redis.cut()
    gone()
    await stage.redis.crash()
    await asyncio.sleep(REDIS_AWAY_S)
    stage.to_redis.mend()


def _redis_failed_over(stage: Stage, gone: Gone) -> None:
    """To a replica that did not hear of the last writes."""
    stage.to_redis.cut()
    gone()
    stage.to_redis.server_port = stage.replica.port
    stage.to_redis.mend()


async def _database_restarted(stage: Stage, _gone: Gone) -> None:
    await stage.postgres.restart("immediate")


async def _answers_lost(stage: Stage, _gone: Gone) -> None:
    stage.to_postgres.lose_answers(ANSWERS_LOST)
    stage.to_redis.lose_answers(ANSWERS_LOST)


def around(inject: Callable[[Stage, Gone], Awaitable[None]]) -> Fault:
    async def fault(stage: Stage, pace: Pace) -> Mapping[str, Outcome]:
        async with _all_at_work(stage, pace) as (runs, stop), AsyncExitStack() as stack:

            def gone() -> None:
                """Whoever lives beside Redis goes with it: callers move to the second process."""
                for run in runs:
                    if run.scheme in ANY_PROCESS:
                        run.opened.clock.stop()
                        run.callers.cancel()

            seconds = [
                (
                    run,
                    await stack.enter_async_context(
                        open_scheme(run.scheme, stage.through_wires, **pace.opened_with)
                    ),
                )
                for run in runs
                if run.scheme in ANY_PROCESS
            ]
            await asyncio.sleep(pace.before_s)
            for run in runs:
                run.tally.fault()
            await inject(stage, gone)
            async with asyncio.TaskGroup() as group:
                for run, second in seconds:
                    group.create_task(steady(second.port, run.signer, run.tally, stop))
                await asyncio.sleep(pace.after_s)
                stop.set()
            second_of = {run.scheme: second for run, second in seconds}
            return await _judge_all(
                [replace(run, opened=second_of.get(run.scheme, run.opened)) for run in runs]
            )

    return fault


async def fail_over(stage: Stage, pace: Pace) -> Mapping[str, Outcome]:
    """A real replica follows, stops following, and is promoted a moment later."""
    replica, primary = RedisLink(stage.replica.url, timeout_s=10), RedisLink(stage.redis.url, timeout_s=10)
    try:
        await primary.command("FLUSHALL")
        await replica.command("REPLICAOF", "127.0.0.1", stage.redis.port)
        async with asyncio.timeout(START_WITHIN_S):
            await _until_following(replica)

        async def inject(at: Stage, gone: Gone) -> None:
            await replica.command("REPLICAOF", "NO", "ONE")
            await asyncio.sleep(LOST_BEFORE_FAILOVER_S)
            _redis_failed_over(at, gone)

        return await around(inject)(stage, pace)
    finally:
        stage.to_redis.server_port = stage.redis.port
        await replica.close()
        await primary.close()


async def _until_following(replica: RedisLink) -> None:
    for _ in range(int(START_WITHIN_S / 0.05)):
        if (await replica.command("INFO", "replication")).get("master_link_status") == "up":
            return
        await asyncio.sleep(0.05)
    raise TimeoutError("the replica does not follow")


async def one_without_redis(stage: Stage, pace: Pace) -> Mapping[str, Outcome]:
    """A second process for the same signer that can't reach Redis, while the first one can."""
    async with _all_at_work(stage, pace) as (runs, stop), AsyncExitStack() as stack:
        nowhere = await stack.enter_async_context(relay("127.0.0.1", stage.redis.port))
        nowhere.cut()
        places = replace(stage.through_wires, redis_url=f"redis://127.0.0.1:{nowhere.port}/0")
        seconds = [
            (run, await stack.enter_async_context(open_scheme(run.scheme, places, **pace.opened_with)))
            for run in runs
            if run.scheme in ANY_PROCESS
        ]
        await asyncio.sleep(pace.before_s)
        async with asyncio.TaskGroup() as group:
            for run in runs:
                run.tally.fault()
            for run, second in seconds:
                group.create_task(steady(second.port, run.signer, run.tally, stop))
            await asyncio.sleep(pace.after_s)
            stop.set()
        return await _judge_all(runs)


# ---- faults of the processes themselves


async def two_owners(stage: Stage, pace: Pace) -> Mapping[str, Outcome]:
    """A second process for the same signer; the first is paused so long that it has lost what it owned, and goes on."""
    async with _all_at_work(stage, pace) as (runs, stop), AsyncExitStack() as stack:
        seconds = [
            await stack.enter_async_context(open_scheme(run.scheme, stage.through_wires, **pace.opened_with))
            for run in runs
        ]
        await asyncio.sleep(pace.before_s)
        async with asyncio.TaskGroup() as group:
            for run, second in zip(runs, seconds, strict=True):
                run.tally.fault()
                run.opened.clock.stop()
                group.create_task(steady(second.port, run.signer, run.tally, stop))
            await asyncio.sleep(max(pace.after_s, 1.5 * pace.lease_s))
            stop.set()
        for run in runs:
            await run.opened.port.close()
        return await _judge_all(
            [replace(run, opened=second) for run, second in zip(runs, seconds, strict=True)]
        )


async def process_killed(stage: Stage, pace: Pace) -> Mapping[str, Outcome]:
    """With -9, in the middle of its work; another process goes on at once."""
    signers = {scheme: new_signer() for scheme in SCHEMES}
    async with AsyncExitStack() as stack:
        worker = await _start_worker(stage, signers, pace)
        stack.callback(_end, worker)
        opened = {
            scheme: await stack.enter_async_context(
                open_scheme(scheme, stage.through_wires, **pace.opened_with)
            )
            for scheme in SCHEMES
        }
        tallies = {scheme: Tally() for scheme in SCHEMES}
        for scheme, nonce, token in await _told_until_killed(worker, seconds=pace.before_s):
            tallies[scheme].holds.append(Hold(signers[scheme], nonce, token))
        stop = asyncio.Event()
        runs: list[_Run] = []
        async with asyncio.TaskGroup() as group:
            for scheme in SCHEMES:
                one, signer, tally = opened[scheme], signers[scheme], tallies[scheme]
                tally.fault()
                callers = group.create_task(steady(one.port, signer, tally, stop))
                runs.append(_Run(scheme, signer, tally, one, callers))
            await asyncio.sleep(max(pace.after_s, 1.5 * pace.lease_s))
            stop.set()
        return await _judge_all(runs)


async def _start_worker(
    stage: Stage, signers: Mapping[str, Signer], pace: Pace
) -> asyncio.subprocess.Process:
    told = {
        "signers": {scheme: signer.address for scheme, signer in signers.items()},
        "opened_with": pace.opened_with,
        "dsn": stage.direct.dsn,
        "redis_url": stage.direct.redis_url,
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fencepost.lab.scheme_worker",
        env={**os.environ, VARIABLE: json.dumps(told)}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _told_until_killed(
    worker: asyncio.subprocess.Process, *, seconds: float
) -> list[tuple[str, int, UUID]]:
    """What it said it got, from the start until some time after every scheme was at work."""
    assert worker.stdout is not None  # noqa: S101 - it was asked for
    lines: list[bytes] = []
    at_work: set[bytes] = set()
    async with asyncio.timeout(START_WITHIN_S):
        while len(at_work) < len(SCHEMES):
            lines.append(await worker.stdout.readline())
            if not lines[-1]:
                raise Unready("the process to be killed ended by itself")
            at_work.add(lines[-1].partition(b" ")[0])
    await asyncio.sleep(seconds)
    worker.kill()
    rest, _ = await worker.communicate()
    whole = b"".join(lines) + rest.rpartition(b"\n")[0]  # the last line may be cut
    words = [line.split() for line in whole.decode().splitlines()]
    return [(scheme, int(nonce), UUID(token)) for scheme, nonce, token in words]


def _end(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        worker.kill()


# In the order of the table.
FAULTS: Mapping[str, Fault] = {
    "Redis killed": around(_redis_killed),
    "Redis failed over": fail_over,
    "one without Redis": one_without_redis,
    "process killed": process_killed,
    "two owners": two_owners,
    "database restarted": around(_database_restarted),
    "answers lost": around(_answers_lost),
}
# These do nothing to the servers, so they may happen at the same time, each to signers of its own.
OF_PROCESSES = ("one without Redis", "process killed", "two owners")


# ---- at work, and what came of it


@asynccontextmanager
async def _all_at_work(stage: Stage, pace: Pace) -> AsyncIterator[tuple[list[_Run], asyncio.Event]]:
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(open_scheme(scheme, stage.through_wires, **pace.opened_with))
            for scheme in SCHEMES
        ]
        async with asyncio.TaskGroup() as group:
            runs = []
            for scheme, one in zip(SCHEMES, opened, strict=True):
                signer, tally = new_signer(), Tally()
                callers = group.create_task(steady(one.port, signer, tally, stop))
                runs.append(_Run(scheme, signer, tally, one, callers))
            try:
                yield runs, stop
            finally:
                stop.set()


async def _judge_all(runs: list[_Run]) -> dict[str, Outcome]:
    outcomes = await asyncio.gather(*map(_judge, runs))
    return {run.scheme: outcome for run, outcome in zip(runs, outcomes, strict=True)}


async def _judge(run: _Run) -> Outcome:
    port, tally = run.opened.port, run.tally
    duplicates, holes = tally.duplicates, tally.holes()
    refused = await use_all(port, tally)
    left = await _heal(port, run.signer, holes) if holes else set()
    return Outcome(
        duplicates=duplicates,
        holes=len(holes),
        holes_left=len(left),
        marks_refused=refused,
        errors=tally.errors,
        stall_s=round(tally.stall_s, 3),
    )


async def _heal(port: NoncePort, signer: Signer, holes: set[int]) -> set[int]:
    """Reclaim until every hole can be given again, or until it has taken too long."""
    left = set(holes)
    deadline_s = time.monotonic() + HOLD_S + HEAL_WITHIN_S
    while left and time.monotonic() < deadline_s:
        await asyncio.sleep(HEAL_EVERY_S)
        try:
            await port.reclaim_expired(signer)
            status = await port.status(signer)
            # What is not released may be the rest of a live block, which its owner gives next.
            wanted = (status.released if status is not None else 0) or len(left)
            got = await port.allocate(signer, count=min(wanted, MOST_AT_ONCE), hold_for_s=600)
            left -= {hold.nonce for hold in got}
        except FencepostError:
            continue  # the lease or Redis is on its way back
    return left
