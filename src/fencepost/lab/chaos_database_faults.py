"""What happens to the database and to the nodes' wires to it.

- The wires: cut, silent, slow, or with the answers lost, for some connections of a node or for all.
- `commit_held`: a node sleeps between a write and its COMMIT. The wire keeps back the message that would end the
  transaction; the server has done the write by then, and holds the rows.
- `disk_full`: the tables that grow refuse to, with PostgreSQL's own error (53100), raised by a trigger. A disk that is
  really full would also stop the lab's own looks at it.
- `pool_exhausted`: a table is locked, so that whatever asks for it fills the nodes' pools.
- `connections_exhausted`: the server has no connection left, and some of a node's own have just ended.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from contextlib import ExitStack, suppress

import asyncpg

from fencepost.adapters.postgres.database import Connection
from fencepost.lab.chaos_stage import CONNECTIONS_MOST, GROWING_TABLES, Happened, Slot, Stage
from fencepost.lab.db_proxy import Fault as WireFault

_HELD_WITHIN_S = 1.5
_DDL_TIMEOUT_S = 2.0

# ---- wires


def _wire(stage: Stage, chance: random.Random) -> Slot | None:
    free = [slot for slot in stage.slots if slot.wire.is_well]
    return chance.choice(free) if free else None


async def _wire_fault(
    stage: Stage, chance: random.Random, kind: str, fault: WireFault, *, least_s: float, most_s: float
) -> Happened | None:
    slot = _wire(stage, chance)
    if slot is None:
        return None
    at_s, lasts_s = time.time(), chance.uniform(least_s, most_s)
    is_whole = chance.random() < 0.3  # noqa: PLR2004 - now and then all of a node's connections
    slot.wire.strike(fault, None if is_whole else chance)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        slot.wire.heal()
    return Happened(at_s, kind, slot.name, lasts_s, "all connections" if is_whole else "some connections")


async def db_cut(stage: Stage, chance: random.Random) -> Happened | None:
    return await _wire_fault(stage, chance, "db_cut", "cut", least_s=0.02, most_s=0.8)


async def db_black_hole(stage: Stage, chance: random.Random) -> Happened | None:
    longest_s = 1.2 * stage.plan.lease_s
    return await _wire_fault(stage, chance, "db_black_hole", "black_hole", least_s=0.1, most_s=longest_s)


async def db_dropped_answer(stage: Stage, chance: random.Random) -> Happened | None:
    return await _wire_fault(stage, chance, "db_dropped_answer", "drop_answers", least_s=0.02, most_s=0.5)


async def commit_held(stage: Stage, chance: random.Random) -> Happened | None:
    slot = _wire(stage, chance)
    if slot is None or slot.is_taken or not slot.is_up:
        return None
    slot.is_taken = True
    slot.wire.strike("hold_commits")
    try:
        if not await _has_written(stage, slot):
            stage.notes["no write to hold"] += 1
            return None
        at_s, lasts_s = time.time(), chance.uniform(0.2, 1.5) * stage.plan.lease_s
        slot.signal(signal.SIGSTOP)
        await asyncio.sleep(lasts_s)
        return Happened(at_s, "commit_held", slot.name, lasts_s)
    finally:
        slot.wire.heal()
        slot.signal(signal.SIGCONT)
        slot.is_taken = False


async def _has_written(stage: Stage, slot: Slot) -> bool:
    """A session of the node has written something, and has not been told to commit it."""
    deadline_s = time.monotonic() + _HELD_WITHIN_S
    while time.monotonic() < deadline_s:
        if await stage.database.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND backend_xid IS NOT NULL",
            f"fencepost {slot.name}",
        ):
            return True
        await asyncio.sleep(0.01)
    return False


async def db_delay(stage: Stage, chance: random.Random) -> Happened | None:
    slot = _wire(stage, chance)
    if slot is None:
        return None
    at_s, lasts_s = time.time(), chance.uniform(0.3, 1.2)
    slot.wire.delay(chance.uniform(0.005, 0.05))
    await asyncio.sleep(lasts_s)
    slot.wire.heal()
    return Happened(at_s, "db_delay", slot.name, lasts_s)


# ---- the server


async def _terminate(stage: Stage, name: str, count: int) -> int:
    ended: int = await stage.database.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM"
        " (SELECT pid FROM pg_stat_activity WHERE application_name = $1 LIMIT $2) chosen",
        f"fencepost {name}",
        count,
    )
    return ended


async def backend_terminated(stage: Stage, chance: random.Random) -> Happened | None:
    name = chance.choice(stage.slots).name
    ended = await _terminate(stage, name, chance.randint(1, 3))
    return Happened(time.time(), "backend_terminated", name, detail=f"{ended} sessions") if ended else None


async def db_restart(stage: Stage, _chance: random.Random) -> Happened | None:
    """`-m immediate`: a crash of the server, and recovery from its log."""
    at_s = time.time()
    await stage.postgres.restart("immediate")
    return Happened(at_s, "db_restart_immediate", "PostgreSQL", time.time() - at_s)


async def db_promoted(stage: Stage, _chance: random.Random) -> Happened | None:
    """A crash, and then the same data as a server that was promoted: another timeline, and nothing lost."""
    at_s = time.time()
    await stage.promote_database()
    return Happened(at_s, "db_promoted", "PostgreSQL", time.time() - at_s)


async def disk_full(stage: Stage, chance: random.Random) -> Happened | None:
    full = chance.choice(GROWING_TABLES)
    at_s, lasts_s = time.time(), chance.uniform(0.1, 0.8)
    await stage.refuse_rows(full, within_s=_DDL_TIMEOUT_S)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        await stage.take_rows()
    return Happened(at_s, "disk_full", full, time.time() - at_s)


async def pool_exhausted(stage: Stage, chance: random.Random) -> Happened | None:
    locked = chance.choice((*GROWING_TABLES, "signer_lease"))
    lasts_s = chance.uniform(0.2, 0.6) * stage.plan.lease_s
    async with stage.database.acquire() as connection, connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = {int(_DDL_TIMEOUT_S * 1000)}")
        await connection.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
        at_s = time.time()
        await asyncio.sleep(lasts_s)
    return Happened(at_s, "pool_exhausted", locked, lasts_s)


async def connections_exhausted(stage: Stage, chance: random.Random) -> Happened | None:
    name, at_s = chance.choice(stage.slots).name, time.time()
    with ExitStack() as stack:
        taken: list[Connection] = []
        with suppress(asyncpg.TooManyConnectionsError):
            while len(taken) < int(CONNECTIONS_MOST):
                taken.append(await asyncpg.connect(stage.postgres.dsn, timeout=_DDL_TIMEOUT_S))
                stack.callback(taken[-1].terminate)
        await _terminate(stage, name, chance.randint(1, 3))
        await asyncio.sleep(chance.uniform(0.2, 1.0))
    return Happened(at_s, "connections_exhausted", name, time.time() - at_s, f"{len(taken)} taken")
