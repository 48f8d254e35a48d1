"""Faults of nodes: kill, pause, graceful stop, rolling restart, wrong clock, a second process of the same name.

A fault reserves a slot, and returns the event, or None if it had no effect. At least half of the nodes stay up, because a
cluster that is mostly down shows little.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fencepost.errors import Unready
from lab.chaos.failpoints import POINTS, FailpointOrder, write_order
from lab.chaos.testbed import FaultEvent, Slot, Testbed

STRIKE_TIMEOUT_S = 2.5
BACK_TIMEOUT_S = 12.0
ROLLING_TIMEOUT_S = 15.0
_POLL_INTERVAL_S = 0.02
_MAX_LEASES_ASLEEP = 3.0
# Calls that every node makes all the time; the others are reached only at times.
_FREQUENT = tuple(
    point
    for point in POINTS
    if point.partition(":")[0]
    in {
        "ledger.commit",
        "ledger.commit_each",
        "ledger.renew",
        "ledger.acquire",
        "ledger.accept",
        "ledger.load",
        "ledger.signers_with_work",
        "chain.send",
        "chain.receipts",
        "chain.nonce",
        "chain.block",
        "chain.block_receipts",
        "chain.estimate_gas",
        "keys.sign",
        "keys.sign_each",
    }
)


@contextmanager
def _reserve(testbed: Testbed, rng: random.Random) -> Iterator[Slot | None]:
    """Reserve a slot that is up, if enough others are."""
    free = [slot for slot in testbed.slots if slot.is_up and not slot.is_reserved]
    slot = rng.choice(free) if len(free) > len(testbed.slots) // 2 else None
    if slot is None:
        yield None
        return
    slot.is_reserved = True
    try:
        yield slot
    finally:
        slot.is_reserved = False


async def _until(condition: Callable[[], bool], within_s: float) -> bool:
    """Poll until a condition of another process holds; return False at the time-out."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_POLL_INTERVAL_S)
    return True


def _order(rng: random.Random, action: str) -> FailpointOrder:
    point = rng.choice(_FREQUENT if rng.random() < 0.8 else POINTS)  # noqa: PLR2004 - mostly the frequent ones
    return FailpointOrder(point, rng.randint(1, 4), "kill" if action == "kill" else "pause")


def _pause_s(testbed: Testbed, rng: random.Random) -> float:
    """Choose a pause of at least 0.2 leases, mostly a short one."""
    return (0.2 + (_MAX_LEASES_ASLEEP - 0.2) * rng.random() ** 3) * testbed.plan.lease_s


async def kill_at_failpoint(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Kill a node at a failpoint."""
    with _reserve(testbed, rng) as slot:
        if slot is None or slot.node is None:
            return None
        node, order = slot.node, _order(rng, "kill")
        write_order(slot.order, order)
        if not await _until(lambda: not node.is_alive, STRIKE_TIMEOUT_S):
            slot.order.unlink(missing_ok=True)
            testbed.notes["failpoint not reached"] += 1
            return None
        testbed.notes[order.point] += 1
        return FaultEvent(time.time(), "kill_at_failpoint", slot.name, detail=order.point)


async def pause_at_failpoint(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Pause a node at a failpoint."""
    with _reserve(testbed, rng) as slot:
        if slot is None or slot.node is None:
            return None
        node, order, pause_s = slot.node, _order(rng, "pause"), _pause_s(testbed, rng)
        write_order(slot.order, order)
        reached = await _until(lambda: not slot.order.exists() or not node.is_alive, STRIKE_TIMEOUT_S)
        at_s = time.time()
        if reached and node.is_alive:
            await asyncio.sleep(pause_s)
        slot.order.unlink(missing_ok=True)
        slot.signal(signal.SIGCONT)
        if not reached:
            testbed.notes["failpoint not reached"] += 1
            return None
        testbed.notes[order.point] += 1
        return FaultEvent(at_s, "pause_at_failpoint", slot.name, pause_s, order.point)


async def kill(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Kill a node."""
    with _reserve(testbed, rng) as slot:
        if slot is None or slot.node is None:
            return None
        await slot.node.kill()
        return FaultEvent(time.time(), "kill", slot.name)


async def pause(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Pause a node with SIGSTOP."""
    with _reserve(testbed, rng) as slot:
        if slot is None:
            return None
        at_s, pause_s = time.time(), _pause_s(testbed, rng)
        slot.signal(signal.SIGSTOP)
        await asyncio.sleep(pause_s)
        slot.signal(signal.SIGCONT)
        return FaultEvent(at_s, "pause", slot.name, pause_s)


async def graceful_stop(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Stop a node with SIGTERM."""
    with _reserve(testbed, rng) as slot:
        if slot is None or slot.node is None:
            return None
        at_s = time.time()
        await slot.node.stop()
        return FaultEvent(at_s, "graceful_stop", slot.name, time.time() - at_s)


async def clock_skew(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Kill a node, and start the next process of its slot with a clock that is a minute wrong."""
    with _reserve(testbed, rng) as slot:
        if slot is None or slot.node is None:
            return None
        at_s, starts = time.time(), slot.starts
        slot.skew_s = rng.choice((-60.0, 60.0))
        try:
            await slot.node.kill()
            is_back = await _until(lambda: slot.starts > starts, BACK_TIMEOUT_S)
            return (
                FaultEvent(at_s, "clock_skew", slot.name, detail=f"{slot.skew_s:+.0f} s") if is_back else None
            )
        finally:
            slot.skew_s = 0.0


async def rolling_restart(testbed: Testbed, _chance: random.Random) -> FaultEvent | None:
    """Restart every node, each when the previous one is up again, as a deployment does."""
    at_s = time.time()
    for slot in testbed.slots:
        if slot.is_reserved or slot.node is None or time.time() - at_s > ROLLING_TIMEOUT_S:
            continue
        slot.is_reserved = True
        try:
            starts = slot.starts
            await slot.node.stop()
            await _until(partial(_has_started_again, slot, starts), BACK_TIMEOUT_S)
        finally:
            slot.is_reserved = False
    return FaultEvent(at_s, "rolling_restart", "all nodes", time.time() - at_s)


def _has_started_again(slot: Slot, starts: int) -> bool:
    return slot.starts > starts


async def duplicate_id(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Start a second process of the same name: it is rejected, or works while the first one is paused."""
    with _reserve(testbed, rng) as slot:
        if slot is None:
            return None
        at_s = time.time()
        if rng.random() < 0.5:  # noqa: PLR2004 - half of the cases
            slot.signal(signal.SIGSTOP)
        waking = asyncio.get_running_loop().call_later(
            _MAX_LEASES_ASLEEP * testbed.plan.lease_s, slot.signal, signal.SIGCONT
        )
        try:
            double = await testbed.start_node(slot, log=Path(f"{slot.log}.double"))
        except Unready:
            outcome = "refused"
        else:
            outcome = "at work"
            slot.signal(signal.SIGCONT)
            try:
                await asyncio.sleep(rng.uniform(0.5, 1.5))
            finally:
                await double.kill()
        finally:
            waking.cancel()
            slot.signal(signal.SIGCONT)
        testbed.notes[f"double {outcome}"] += 1
        return FaultEvent(at_s, "duplicate_id", slot.name, time.time() - at_s, outcome)
