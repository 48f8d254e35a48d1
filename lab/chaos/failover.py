"""Measure how long a signer sends nothing after its lease holder is killed or stopped.

The time runs from the signal to the next send of that signer, as the proxy in front of the chain sees it. There are two
nodes and one busy signer; the lease holder gets the signal and is started again, so that all runs begin the same.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from fencepost.errors import Unready
from lab.chaos.load import Load
from lab.chaos.testbed import Plan, Slot, Testbed, open_testbed

UP_TIMEOUT_S = 60.0
NEXT_SEND_TIMEOUT_S = 60.0
_POLL_INTERVAL_S = 0.01
_FOLLOW_INTERVAL_S = 0.25
_RECENT_SENDS = 1000
LEASE_S = 2.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Sorted times in seconds."""

    killed_s: tuple[float, ...]
    stopped_s: tuple[float, ...]
    lease_s: float
    machine: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": dict(self.machine),
            "leaseS": self.lease_s,
            "kill9": _distribution(self.killed_s),
            "sigterm": _distribution(self.stopped_s),
        }


def _distribution(seconds: tuple[float, ...]) -> dict[str, float | int]:
    if not seconds:
        return {"runs": 0}
    shares = {"p50S": 0.5, "p90S": 0.9, "p99S": 0.99, "maxS": 1.0}
    last = len(seconds) - 1
    return {
        "runs": len(seconds),
        **{name: round(seconds[ceil(last * share)], 3) for name, share in shares.items()},
    }


async def measure(
    runs: int, *, logs: Path, report: Callable[[str], None], on_run: Callable[[int, float, float], None]
) -> Measured:
    """Alternate kill and stop `runs` times; call `on_run` with the number of runs and the last two times."""
    plan = Plan(
        seconds=runs * 2 * NEXT_SEND_TIMEOUT_S,
        nodes=2,
        strict=0,
        pipelined=1,
        victims=0,
        lease_s=LEASE_S,
        pipelined_per_s=30,
    )
    killed: list[float] = []
    stopped: list[float] = []
    async with open_testbed(plan, logs=logs, report=report) as testbed, asyncio.TaskGroup() as group:
        keepers = [group.create_task(testbed.keep_running(slot)) for slot in testbed.slots]
        await _until(lambda: all(slot.is_up for slot in testbed.slots), UP_TIMEOUT_S, "the nodes are not up")
        testbed.is_first_start = False
        load = Load(testbed)
        load_task = group.create_task(load.generate(time.monotonic() + plan.seconds, testbed.signers))
        watcher = group.create_task(_follow(testbed, load))
        for run in range(runs):
            killed.append(await _once(testbed, signal.SIGKILL))
            stopped.append(await _once(testbed, signal.SIGTERM))
            on_run(run + 1, killed[-1], stopped[-1])
        for task in (load_task, watcher, *keepers):
            task.cancel()
    return Measured(tuple(sorted(killed)), tuple(sorted(stopped)), plan.lease_s, testbed.machine)


async def _once(testbed: Testbed, number: signal.Signals) -> float:
    await _until(lambda: all(slot.is_up for slot in testbed.slots), UP_TIMEOUT_S, "a node did not come back")
    sends = len(testbed.record.sent)
    await _until(lambda: len(testbed.record.sent) > sends + 5, NEXT_SEND_TIMEOUT_S, "nothing is being sent")
    holder = await _holder(testbed)
    node = holder.node
    starts = holder.starts
    at_s = time.time()
    holder.signal(number)
    first_s = await _next_send_s(testbed, at_s, is_gone=lambda: node is None or not node.is_alive)
    await _until(lambda: holder.starts > starts, UP_TIMEOUT_S, "a node did not come back")
    return first_s - at_s


async def _holder(testbed: Testbed) -> Slot:
    deadline_s = time.monotonic() + UP_TIMEOUT_S
    while time.monotonic() < deadline_s:
        name = await testbed.database.fetchval(
            "SELECT owner_node FROM signer_lease WHERE signer = $1 AND expires_at > clock_timestamp()",
            testbed.pipelined[0],
        )
        for slot in testbed.slots:
            if slot.name == name:
                return slot
        await asyncio.sleep(_POLL_INTERVAL_S)
    raise Unready("no node holds the signer's lease")


async def _next_send_s(testbed: Testbed, at_s: float, *, is_gone: Callable[[], bool]) -> float:
    """Return the first send of a term that began after the signal; late sends of the old term do not count."""
    deadline_s = time.monotonic() + NEXT_SEND_TIMEOUT_S
    while time.monotonic() < deadline_s:
        began_s = await testbed.database.fetchval(
            "SELECT min(extract(epoch FROM acquired_at))::float8 FROM lease_term"
            " WHERE signer = $1 AND extract(epoch FROM acquired_at) > $2",
            testbed.pipelined[0],
            at_s,
        )
        if began_s is not None:
            later = [sent.at_s for sent in testbed.record.sent[-_RECENT_SENDS:] if sent.at_s > began_s]
            if later and is_gone():
                return min(later)
        await asyncio.sleep(_POLL_INTERVAL_S)
    raise Unready("no node went on within the time there is")


async def _follow(testbed: Testbed, load: Load) -> None:
    """Tell the load what has ended, so that it neither stops nor fills the queue."""
    while True:
        for row in await testbed.database.fetch(
            "SELECT signer, count(*) AS ended FROM managed_tx WHERE state = 'CONFIRMED' GROUP BY signer"
        ):
            load.ended[row["signer"]] = row["ended"]
        await asyncio.sleep(_FOLLOW_INTERVAL_S)


async def _until(condition: Callable[[], bool], within_s: float, otherwise: str) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise Unready(otherwise)
        await asyncio.sleep(_POLL_INTERVAL_S)
