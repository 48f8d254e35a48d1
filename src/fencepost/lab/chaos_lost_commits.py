"""The last act of a chaos run: a fail-over that loses commits, for real.

While requests are poured, the server stops syncing what it commits: all of it lies in memory only. Then it crashes, and
comes back as a promoted one, on a timeline of its own, with commits synced as before. Nodes and callers were told of
things that no longer are. Blocks stop for a while around it, so that some of what was forgotten is on the chain, and some
waits in the pool. Each signer gets one more request then: nobody looks at one that has nothing to do.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import asyncpg

from fencepost.adapters.postgres.database import Connection
from fencepost.lab import gather
from fencepost.lab.chaos_load import Load
from fencepost.lab.chaos_stage import Happened, Stage
from fencepost.lab.history import Line
from fencepost.lab.lost_commits import FailOver, Found

KIND = "db_failover_lost"
TRIES_MOST = 3
SYNCED_S = 1.0  # of load, before commits begin to be lost
UNSYNCED_S = 2.0
_RESTS_ONE_IN = (
    3  # so many pipelined signers ask for nothing then: they lose what they saw, not what they sent
)
_AT_REST_S = 0.4
_BLOCKS_HELD_BEFORE_S = 0.7
_BLOCKS_HELD_AFTER_S = 2.0
_ONWARDS_S = 1.0  # load goes on while the server is away
_LOOK_EVERY_S = 0.4
_QUIET_LOOKS = 4
_WATCHED_LEASES = 2  # how long it is watched when it is quiet: whoever is protected must stay silent
_READ_WITHIN_S = 30.0
# The log is written by its writer alone, and that one sleeps for as long as it can.
_UNSYNCED = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}


@dataclass(frozen=True, slots=True)
class Act:
    fail_over: FailOver
    tries: int
    commits_lost: int
    quiet_within_s: float | None


@dataclass(frozen=True, slots=True)
class Lost:
    """What the report says of it."""

    act: Act
    found: Found


async def play(stage: Stage, load: Load) -> Act:
    resting = stage.pipelined[::_RESTS_ONE_IN]
    busy = [signer for signer in stage.signers if signer not in resting]
    tries = 0
    fail_over: FailOver | None = None
    while True:
        tries += 1
        async with asyncio.TaskGroup() as group:
            until_s = time.monotonic() + SYNCED_S + UNSYNCED_S + _ONWARDS_S
            asking = [
                group.create_task(load.pour(until_s, busy)),
                group.create_task(load.pour(time.monotonic() + SYNCED_S - _AT_REST_S, resting)),
            ]
            await asyncio.sleep(SYNCED_S)
            asking.append(group.create_task(load.ask_each(busy)))
            fail_over, commits_lost = await _fail_over(stage, fail_over)
            asking.append(group.create_task(load.ask_each(stage.signers)))
            await asyncio.sleep(_BLOCKS_HELD_AFTER_S)
            stage.chain.holds_blocks = False
            quiet_within_s = await _settle(stage, fail_over, asking)
        if commits_lost or tries == TRIES_MOST or quiet_within_s is None:
            break
    if commits_lost:
        lasted_s = fail_over.back_s - fail_over.crashed_s
        detail = f"{commits_lost} commits lost"
        stage.happened.append(Happened(fail_over.crashed_s, KIND, "PostgreSQL", lasted_s, detail))
    return Act(fail_over, tries, commits_lost, quiet_within_s)


async def _fail_over(stage: Stage, earlier: FailOver | None) -> tuple[FailOver, int]:
    """With the number of commits that it lost."""
    connection = await asyncpg.connect(stage.postgres.dsn, command_timeout=_READ_WITHIN_S)
    try:
        last_xid: int = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
        last_seq: int = await connection.fetchval("SELECT coalesce(max(seq), 0) FROM managed_tx")
        unsynced_s = time.time()
        for name, value in _UNSYNCED.items():
            await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        await connection.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(UNSYNCED_S - _BLOCKS_HELD_BEFORE_S)
        stage.chain.holds_blocks = True
        await asyncio.sleep(_BLOCKS_HELD_BEFORE_S)
        for name in _UNSYNCED:  # for the next start: nothing is reloaded
            await connection.execute(f"ALTER SYSTEM RESET {name}")
        before = await _stored(connection, last_xid, last_seq)
        issued = await gather.terms(connection)
        crashed_s = time.time()
        await stage.promote_database()
    finally:
        connection.terminate()
    back_s = time.time()
    connection = await asyncpg.connect(stage.postgres.dsn, command_timeout=_READ_WITHIN_S)
    try:
        left = await _stored(connection, last_xid, last_seq)
    finally:
        await connection.close()
    commits_lost = len({xid for what, xid in before.items() if what not in left})
    late_s = stage.plan.lease_s
    return FailOver(unsynced_s, crashed_s, back_s, issued, late_s, before=earlier), commits_lost


async def _stored(connection: Connection, after_xid: int, after_seq: int) -> dict[object, int]:
    """What is there → the transaction that wrote it: requests, and the journal's lines, after these."""
    requests = await connection.fetch(
        "SELECT tx_id, xmin::text::bigint AS xid FROM managed_tx WHERE seq > $1", after_seq
    )
    lines = await gather.lines(connection, after_xid=after_xid)
    return {row["tx_id"]: row["xid"] for row in requests} | {_key(line): line.xid for line in lines}


def _key(line: Line) -> tuple[object, ...]:
    """Whole, so that a line which has got the number of a lost one is another."""
    return line.id, line.xid, line.signer, line.event, line.tx_id, line.token


async def _settle(stage: Stage, fail_over: FailOver, asking: list[asyncio.Task[None]]) -> float | None:
    """How long it took until nobody had anything left to do but those in PROTECT; None when it took too long."""
    deadline_s = fail_over.back_s + stage.plan.quiet_within_s
    looks = 0
    while time.time() < deadline_s:
        has_asked = all(task.done() for task in asking)
        looks = looks + 1 if has_asked and await _is_quiet(stage) else 0
        if looks >= _QUIET_LOOKS:
            quiet_s = time.time() - (_QUIET_LOOKS - 1) * _LOOK_EVERY_S
            await asyncio.sleep(_WATCHED_LEASES * stage.plan.lease_s)
            return quiet_s - fail_over.back_s
        await asyncio.sleep(_LOOK_EVERY_S)
    for task in asking:
        task.cancel()
    return None


async def _is_quiet(stage: Stage) -> bool:
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        live: int = await stage.database.fetchval(
            "SELECT count(*) FROM managed_tx t WHERE state NOT IN ('CONFIRMED', 'FAILED', 'CANCELLED') AND NOT EXISTS"
            " (SELECT FROM signer_nonce_cursor c WHERE c.chain_id = t.chain_id AND c.signer = t.signer"
            " AND c.state = 'PROTECT')"
        )
        return live == 0
    return False
