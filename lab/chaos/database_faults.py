"""Faults of PostgreSQL and of the connections to it.

- Connections: cut, silent, slow, or with lost answers, for some connections of a node or for all.
- `commit_held`: a node is paused between a write and its COMMIT. The proxy holds the message that would end the
  transaction; the server has done the write by then, and keeps the row locks.
- `disk_full`: a trigger rejects inserts with PostgreSQL's own error (53100). A really full disk would also stop the lab's
  own queries.
- `pool_exhausted`: a table is locked, so that waiting statements fill the nodes' pools.
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
from lab.chaos.testbed import GROWING_TABLES, MAX_CONNECTIONS, FaultEvent, Slot, Testbed
from lab.proxies.postgres_proxy import Fault as ProxyFault

_HELD_TIMEOUT_S = 1.5
_DDL_TIMEOUT_S = 2.0

# ---- connections


def _pick_proxy(testbed: Testbed, rng: random.Random) -> Slot | None:
    free = [slot for slot in testbed.slots if slot.proxy.is_healthy]
    return rng.choice(free) if free else None


async def _proxy_fault(
    testbed: Testbed, rng: random.Random, kind: str, fault: ProxyFault, *, least_s: float, most_s: float
) -> FaultEvent | None:
    slot = _pick_proxy(testbed, rng)
    if slot is None:
        return None
    at_s, lasts_s = time.time(), rng.uniform(least_s, most_s)
    is_whole = rng.random() < 0.3  # noqa: PLR2004 - sometimes all connections of a node
    slot.proxy.inject(fault, None if is_whole else rng)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        slot.proxy.heal()
    return FaultEvent(at_s, kind, slot.name, lasts_s, "all connections" if is_whole else "some connections")


async def db_cut(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Reset connections and reject new ones."""
    return await _proxy_fault(testbed, rng, "db_cut", "cut", least_s=0.02, most_s=0.8)


async def db_black_hole(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Let no byte pass."""
    longest_s = 1.2 * testbed.plan.lease_s
    return await _proxy_fault(testbed, rng, "db_black_hole", "black_hole", least_s=0.1, most_s=longest_s)


async def db_lost_response(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Drop the server's answers."""
    return await _proxy_fault(testbed, rng, "db_lost_response", "drop_answers", least_s=0.02, most_s=0.5)


async def commit_held(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Pause a node between a write and its COMMIT."""
    slot = _pick_proxy(testbed, rng)
    if slot is None or slot.is_reserved or not slot.is_up:
        return None
    slot.is_reserved = True
    slot.proxy.inject("hold_commits")
    try:
        if not await _has_written(testbed, slot):
            testbed.notes["no write to hold"] += 1
            return None
        at_s, lasts_s = time.time(), rng.uniform(0.2, 1.5) * testbed.plan.lease_s
        slot.signal(signal.SIGSTOP)
        await asyncio.sleep(lasts_s)
        return FaultEvent(at_s, "commit_held", slot.name, lasts_s)
    finally:
        slot.proxy.heal()
        slot.signal(signal.SIGCONT)
        slot.is_reserved = False


async def _has_written(testbed: Testbed, slot: Slot) -> bool:
    """Wait until a session of the node has an open write; return False at the time-out."""
    deadline_s = time.monotonic() + _HELD_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if await testbed.database.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND backend_xid IS NOT NULL",
            f"fencepost {slot.name}",
        ):
            return True
        await asyncio.sleep(0.01)
    return False


async def db_delay(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Delay everything on the connections of a node."""
    slot = _pick_proxy(testbed, rng)
    if slot is None:
        return None
    at_s, lasts_s = time.time(), rng.uniform(0.3, 1.2)
    slot.proxy.delay(rng.uniform(0.005, 0.05))
    await asyncio.sleep(lasts_s)
    slot.proxy.heal()
    return FaultEvent(at_s, "db_delay", slot.name, lasts_s)


# ---- the server


async def _terminate(testbed: Testbed, name: str, count: int) -> int:
    ended: int = await testbed.database.fetchval(
        "SELECT count(pg_terminate_backend(pid)) FROM"
        " (SELECT pid FROM pg_stat_activity WHERE application_name = $1 LIMIT $2) chosen",
        f"fencepost {name}",
        count,
    )
    return ended


async def backend_terminated(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Terminate sessions of a node."""
    name = rng.choice(testbed.slots).name
    ended = await _terminate(testbed, name, rng.randint(1, 3))
    return FaultEvent(time.time(), "backend_terminated", name, detail=f"{ended} sessions") if ended else None


async def db_restart(testbed: Testbed, _chance: random.Random) -> FaultEvent | None:
    """Crash the server (`-m immediate`), and let it recover from its log."""
    at_s = time.time()
    await testbed.postgres.restart("immediate")
    return FaultEvent(at_s, "db_restart_immediate", "PostgreSQL", time.time() - at_s)


async def db_promoted(testbed: Testbed, _chance: random.Random) -> FaultEvent | None:
    """Crash the server, and start the same data as a promoted server: another timeline, nothing lost."""
    at_s = time.time()
    await testbed.promote_database()
    return FaultEvent(at_s, "db_promoted", "PostgreSQL", time.time() - at_s)


async def disk_full(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Reject inserts into one table for a while."""
    full = rng.choice(GROWING_TABLES)
    at_s, lasts_s = time.time(), rng.uniform(0.1, 0.8)
    await testbed.reject_rows(full, within_s=_DDL_TIMEOUT_S)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        await testbed.accept_rows()
    return FaultEvent(at_s, "disk_full", full, time.time() - at_s)


async def pool_exhausted(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Lock one table for a while."""
    locked = rng.choice((*GROWING_TABLES, "signer_lease"))
    lasts_s = rng.uniform(0.2, 0.6) * testbed.plan.lease_s
    async with testbed.database.acquire() as connection, connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = {int(_DDL_TIMEOUT_S * 1000)}")
        await connection.execute(f"LOCK TABLE {locked} IN ACCESS EXCLUSIVE MODE")
        at_s = time.time()
        await asyncio.sleep(lasts_s)
    return FaultEvent(at_s, "pool_exhausted", locked, lasts_s)


async def connections_exhausted(testbed: Testbed, rng: random.Random) -> FaultEvent | None:
    """Use up the server's connections, and terminate some of a node's."""
    name, at_s = rng.choice(testbed.slots).name, time.time()
    with ExitStack() as stack:
        taken: list[Connection] = []
        with suppress(asyncpg.TooManyConnectionsError):
            while len(taken) < int(MAX_CONNECTIONS):
                taken.append(await asyncpg.connect(testbed.postgres.dsn, timeout=_DDL_TIMEOUT_S))
                stack.callback(taken[-1].terminate)
        await _terminate(testbed, name, rng.randint(1, 3))
        await asyncio.sleep(rng.uniform(0.2, 1.0))
    return FaultEvent(at_s, "connections_exhausted", name, time.time() - at_s, f"{len(taken)} taken")
