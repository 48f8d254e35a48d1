"""The fail-over clock: how long a signer's work stands still when the node that holds it is killed, or stopped in order.

From the signal to the next send for that signer that the chain's node took, as the wire in front of it saw it. Two
nodes, one busy signer; the one that holds it gets the signal and is started again, so each run begins the same.
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
from fencepost.lab.chaos_load import Load
from fencepost.lab.chaos_stage import Plan, Slot, Stage, stage

UP_WITHIN_S = 60.0
NEXT_SEND_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.01
_FOLLOW_EVERY_S = 0.25
_RECENT_SENDS = 1000
LEASE_S = 2.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds, sorted."""

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
    """So many runs of each kind, in turn; `on_run` hears how many are done, and the last two times."""
    plan = Plan(
        seconds=runs * 2 * NEXT_SEND_WITHIN_S,
        nodes=2,
        strict=0,
        pipelined=1,
        victims=0,
        lease_s=LEASE_S,
        pipelined_per_s=30,
    )
    killed: list[float] = []
    stopped: list[float] = []
    async with stage(plan, logs=logs, report=report) as staged, asyncio.TaskGroup() as group:
        keepers = [group.create_task(staged.keep(slot)) for slot in staged.slots]
        await _until(lambda: all(slot.is_up for slot in staged.slots), UP_WITHIN_S, "the nodes are not up")
        staged.is_first_start = False
        load = Load(staged)
        pouring = group.create_task(load.pour(time.monotonic() + plan.seconds, staged.signers))
        watcher = group.create_task(_follow(staged, load))
        for run in range(runs):
            killed.append(await _once(staged, signal.SIGKILL))
            stopped.append(await _once(staged, signal.SIGTERM))
            on_run(run + 1, killed[-1], stopped[-1])
        for task in (pouring, watcher, *keepers):
            task.cancel()
    return Measured(tuple(sorted(killed)), tuple(sorted(stopped)), plan.lease_s, staged.machine)


async def _once(staged: Stage, number: signal.Signals) -> float:
    await _until(lambda: all(slot.is_up for slot in staged.slots), UP_WITHIN_S, "a node did not come back")
    sends = len(staged.record.sent)
    await _until(lambda: len(staged.record.sent) > sends + 5, NEXT_SEND_WITHIN_S, "nothing is being sent")
    holder = await _holder(staged)
    node = holder.node
    starts = holder.starts
    at_s = time.time()
    holder.signal(number)
    first_s = await _next_send_s(staged, at_s, is_gone=lambda: node is None or not node.is_alive)
    await _until(lambda: holder.starts > starts, UP_WITHIN_S, "a node did not come back")
    return first_s - at_s


async def _holder(staged: Stage) -> Slot:
    deadline_s = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < deadline_s:
        name = await staged.database.fetchval(
            "SELECT owner_node FROM signer_lease WHERE signer = $1 AND expires_at > clock_timestamp()",
            staged.pipelined[0],
        )
        for slot in staged.slots:
            if slot.name == name:
                return slot
        await asyncio.sleep(_LOOK_EVERY_S)
    raise Unready("nobody holds the signer")


async def _next_send_s(staged: Stage, at_s: float, *, is_gone: Callable[[], bool]) -> float:
    """Of a term that began after the signal: what the old owner still sends in its last moments does not count."""
    deadline_s = time.monotonic() + NEXT_SEND_WITHIN_S
    while time.monotonic() < deadline_s:
        began_s = await staged.database.fetchval(
            "SELECT min(extract(epoch FROM acquired_at))::float8 FROM lease_term"
            " WHERE signer = $1 AND extract(epoch FROM acquired_at) > $2",
            staged.pipelined[0],
            at_s,
        )
        if began_s is not None:
            later = [sent.at_s for sent in staged.record.sent[-_RECENT_SENDS:] if sent.at_s > began_s]
            if later and is_gone():
                return min(later)
        await asyncio.sleep(_LOOK_EVERY_S)
    raise Unready("no node went on within the time there is")


async def _follow(staged: Stage, load: Load) -> None:
    """The load is told what has ended, so that it neither stops nor piles up."""
    while True:
        for row in await staged.database.fetch(
            "SELECT signer, count(*) AS ended FROM managed_tx WHERE state = 'CONFIRMED' GROUP BY signer"
        ):
            load.ended[row["signer"]] = row["ended"]
        await asyncio.sleep(_FOLLOW_EVERY_S)


async def _until(condition: Callable[[], bool], within_s: float, otherwise: str) -> None:
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise Unready(otherwise)
        await asyncio.sleep(_LOOK_EVERY_S)
