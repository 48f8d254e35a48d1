"""What happens to nodes: death and sleep at a failpoint or at any moment, orderly ends, restarts one by one, a double.

A fault takes a slot for itself, does its worst, and says what it did; None when it could not strike. Whatever takes a
node away leaves half of them or more: a cluster that is mostly gone shows nothing but that it is gone.
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
from fencepost.lab.chaos_stage import Happened, Slot, Stage
from fencepost.lab.failpoints import POINTS, Order, give

STRIKE_WITHIN_S = 2.5
BACK_WITHIN_S = 12.0
ROLLING_WITHIN_S = 15.0
_LOOK_EVERY_S = 0.02
_LEASES_ASLEEP_MOST = 3.0
# Calls that every node makes all the time; the others are reached in their season only.
_FREQUENT = tuple(
    point
    for point in POINTS
    if point.partition(":")[0]
    in {
        "ledger.commit",
        "ledger.renew",
        "ledger.acquire",
        "ledger.accept",
        "ledger.accept_one",
        "ledger.load",
        "ledger.signers_with_work",
        "chain.send",
        "chain.receipts",
        "chain.nonce",
        "chain.block",
        "chain.estimate_gas",
        "keys.sign",
    }
)


@contextmanager
def _taken(stage: Stage, chance: random.Random) -> Iterator[Slot | None]:
    free = [slot for slot in stage.slots if slot.is_up and not slot.is_taken]
    slot = chance.choice(free) if len(free) > len(stage.slots) // 2 else None
    if slot is None:
        yield None
        return
    slot.is_taken = True
    try:
        yield slot
    finally:
        slot.is_taken = False


async def _until(condition: Callable[[], bool], within_s: float) -> bool:
    """Other processes' doings can only be looked at."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        await asyncio.sleep(_LOOK_EVERY_S)
    return True


def _order(chance: random.Random, action: str) -> Order:
    point = chance.choice(_FREQUENT if chance.random() < 0.8 else POINTS)  # noqa: PLR2004 - the season's share
    return Order(point, chance.randint(1, 4), "kill" if action == "kill" else "pause")


def _pause_s(stage: Stage, chance: random.Random) -> float:
    """From 0.2 leases on, mostly short: a node that only sleeps shows nothing."""
    return (0.2 + (_LEASES_ASLEEP_MOST - 0.2) * chance.random() ** 3) * stage.plan.lease_s


async def kill_at_failpoint(stage: Stage, chance: random.Random) -> Happened | None:
    with _taken(stage, chance) as slot:
        if slot is None or slot.node is None:
            return None
        node, order = slot.node, _order(chance, "kill")
        give(slot.order, order)
        if not await _until(lambda: not node.is_alive, STRIKE_WITHIN_S):
            slot.order.unlink(missing_ok=True)
            stage.notes["failpoint not reached"] += 1
            return None
        stage.notes[order.point] += 1
        return Happened(time.time(), "kill_at_failpoint", slot.name, detail=order.point)


async def pause_at_failpoint(stage: Stage, chance: random.Random) -> Happened | None:
    with _taken(stage, chance) as slot:
        if slot is None or slot.node is None:
            return None
        node, order, pause_s = slot.node, _order(chance, "pause"), _pause_s(stage, chance)
        give(slot.order, order)
        struck = await _until(lambda: not slot.order.exists() or not node.is_alive, STRIKE_WITHIN_S)
        at_s = time.time()
        if struck and node.is_alive:
            await asyncio.sleep(pause_s)
        slot.order.unlink(missing_ok=True)
        slot.signal(signal.SIGCONT)
        if not struck:
            stage.notes["failpoint not reached"] += 1
            return None
        stage.notes[order.point] += 1
        return Happened(at_s, "pause_at_failpoint", slot.name, pause_s, order.point)


async def kill(stage: Stage, chance: random.Random) -> Happened | None:
    with _taken(stage, chance) as slot:
        if slot is None or slot.node is None:
            return None
        await slot.node.kill()
        return Happened(time.time(), "kill", slot.name)


async def pause(stage: Stage, chance: random.Random) -> Happened | None:
    with _taken(stage, chance) as slot:
        if slot is None:
            return None
        at_s, pause_s = time.time(), _pause_s(stage, chance)
        slot.signal(signal.SIGSTOP)
        await asyncio.sleep(pause_s)
        slot.signal(signal.SIGCONT)
        return Happened(at_s, "pause", slot.name, pause_s)


async def graceful_stop(stage: Stage, chance: random.Random) -> Happened | None:
    with _taken(stage, chance) as slot:
        if slot is None or slot.node is None:
            return None
        at_s = time.time()
        await slot.node.stop()
        return Happened(at_s, "graceful_stop", slot.name, time.time() - at_s)


async def clock_skew(stage: Stage, chance: random.Random) -> Happened | None:
    """A node dies, and whoever follows has a clock that is a minute off, until its own end."""
    with _taken(stage, chance) as slot:
        if slot is None or slot.node is None:
            return None
        at_s, starts = time.time(), slot.starts
        slot.skew_s = chance.choice((-60.0, 60.0))
        try:
            await slot.node.kill()
            is_back = await _until(lambda: slot.starts > starts, BACK_WITHIN_S)
            return (
                Happened(at_s, "clock_skew", slot.name, detail=f"{slot.skew_s:+.0f} s") if is_back else None
            )
        finally:
            slot.skew_s = 0.0


async def rolling_restart(stage: Stage, _chance: random.Random) -> Happened | None:
    """Every node in turn, each once the one before is back, as a deployment does it."""
    at_s = time.time()
    for slot in stage.slots:
        if slot.is_taken or slot.node is None or time.time() - at_s > ROLLING_WITHIN_S:
            continue
        slot.is_taken = True
        try:
            starts = slot.starts
            await slot.node.stop()
            await _until(partial(_has_started_again, slot, starts), BACK_WITHIN_S)
        finally:
            slot.is_taken = False
    return Happened(at_s, "rolling_restart", "all nodes", time.time() - at_s)


def _has_started_again(slot: Slot, starts: int) -> bool:
    return slot.starts > starts


async def duplicate_id(stage: Stage, chance: random.Random) -> Happened | None:
    """A second process of the same name: refused, or, while the first one sleeps, at work until the end of its time."""
    with _taken(stage, chance) as slot:
        if slot is None:
            return None
        at_s = time.time()
        if chance.random() < 0.5:  # noqa: PLR2004 - a coin
            slot.signal(signal.SIGSTOP)
        waking = asyncio.get_running_loop().call_later(
            _LEASES_ASLEEP_MOST * stage.plan.lease_s, slot.signal, signal.SIGCONT
        )
        try:
            double = await stage.spawn(slot, log=Path(f"{slot.log}.double"))
        except Unready:
            outcome = "refused"
        else:
            outcome = "at work"
            slot.signal(signal.SIGCONT)
            try:
                await asyncio.sleep(chance.uniform(0.5, 1.5))
            finally:
                await double.kill()
        finally:
            waking.cancel()
            slot.signal(signal.SIGCONT)
        stage.notes[f"double {outcome}"] += 1
        return Happened(at_s, "duplicate_id", slot.name, time.time() - at_s, outcome)
