"""The last phase of a chaos run: a fail-over that loses commits.

Under load the server stops syncing its commits. Then it crashes, and is promoted on a new timeline, with commits synced as
before: nodes and callers have seen commits that no longer exist. No block is mined for a while around it, so that some
forgotten transactions are on the chain and some are in the pool. Then each signer gets one more request, because no lane
checks a signer without work.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import asyncpg

from fencepost.adapters.postgres.database import Connection
from lab.chaos.load import Load
from lab.chaos.testbed import FaultEvent, Testbed
from lab.checker import collect
from lab.checker.history import JournalLine
from lab.checker.lost_commits import FailOver, Found

KIND = "db_failover_lost"
MAX_TRIES = 3
SYNCED_S = 1.0  # of load before commits are lost
UNSYNCED_S = 2.0
_RESTS_ONE_IN = 3  # every n-th pipelined signer gets no requests then: it loses what it saw, not what it sent
_AT_REST_S = 0.4
_BLOCKS_HELD_BEFORE_S = 0.7
_BLOCKS_HELD_AFTER_S = 2.0
_ONWARDS_S = 1.0  # load continues while the server is down
_POLL_INTERVAL_S = 0.4
_QUIET_LOOKS = 4
_WATCHED_LEASES = 2  # how long the quiet system is watched: signers in PROTECT must send nothing
_READ_TIMEOUT_S = 30.0
# Only the log writer writes the log, and it sleeps as long as possible.
_UNSYNCED = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}


@dataclass(frozen=True, slots=True)
class LostCommitsRun:
    """The fail-over, and how the system settled."""

    fail_over: FailOver
    tries: int
    commits_lost: int
    quiet_within_s: float | None


@dataclass(frozen=True, slots=True)
class LostCommitsResult:
    """The run and what the checker found, for the report."""

    act: LostCommitsRun
    found: Found


async def play(testbed: Testbed, load: Load) -> LostCommitsRun:
    """Fail over until commits are lost, at most `MAX_TRIES` times."""
    resting = testbed.pipelined[::_RESTS_ONE_IN]
    busy = [signer for signer in testbed.signers if signer not in resting]
    tries = 0
    fail_over: FailOver | None = None
    while True:
        tries += 1
        async with asyncio.TaskGroup() as group:
            until_s = time.monotonic() + SYNCED_S + UNSYNCED_S + _ONWARDS_S
            request_tasks = [
                group.create_task(load.generate(until_s, busy)),
                group.create_task(load.generate(time.monotonic() + SYNCED_S - _AT_REST_S, resting)),
            ]
            await asyncio.sleep(SYNCED_S)
            request_tasks.append(group.create_task(load.request_each(busy)))
            fail_over, commits_lost = await _fail_over(testbed, fail_over)
            request_tasks.append(group.create_task(load.request_each(testbed.signers)))
            await asyncio.sleep(_BLOCKS_HELD_AFTER_S)
            testbed.chain.holds_blocks = False
            quiet_within_s = await _settle(testbed, fail_over, request_tasks)
        if commits_lost or tries == MAX_TRIES or quiet_within_s is None:
            break
    if commits_lost:
        lasted_s = fail_over.back_s - fail_over.crashed_s
        detail = f"{commits_lost} commits lost"
        testbed.fault_events.append(FaultEvent(fail_over.crashed_s, KIND, "PostgreSQL", lasted_s, detail))
    return LostCommitsRun(fail_over, tries, commits_lost, quiet_within_s)


async def _fail_over(testbed: Testbed, earlier: FailOver | None) -> tuple[FailOver, int]:
    """Fail over, and return it with the number of lost commits."""
    connection = await asyncpg.connect(testbed.postgres.dsn, command_timeout=_READ_TIMEOUT_S)
    try:
        last_xid: int = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
        last_seq: int = await connection.fetchval("SELECT coalesce(max(seq), 0) FROM managed_tx")
        unsynced_s = time.time()
        for name, value in _UNSYNCED.items():
            await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        await connection.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(UNSYNCED_S - _BLOCKS_HELD_BEFORE_S)
        testbed.chain.holds_blocks = True
        await asyncio.sleep(_BLOCKS_HELD_BEFORE_S)
        for name in _UNSYNCED:  # for the next start: no reload
            await connection.execute(f"ALTER SYSTEM RESET {name}")
        before = await _stored(connection, last_xid, last_seq)
        issued = await collect.terms(connection)
        crashed_s = time.time()
        await testbed.promote_database()
    finally:
        connection.terminate()
    back_s = time.time()
    connection = await asyncpg.connect(testbed.postgres.dsn, command_timeout=_READ_TIMEOUT_S)
    try:
        left = await _stored(connection, last_xid, last_seq)
    finally:
        await connection.close()
    commits_lost = len({xid for what, xid in before.items() if what not in left})
    late_s = testbed.plan.lease_s
    return FailOver(unsynced_s, crashed_s, back_s, issued, late_s, before=earlier), commits_lost


async def _stored(connection: Connection, after_xid: int, after_seq: int) -> dict[object, int]:
    """Return requests and journal lines after a point, with the database transaction that wrote each."""
    requests = await connection.fetch(
        "SELECT tx_id, xmin::text::bigint AS xid FROM managed_tx WHERE seq > $1", after_seq
    )
    lines = await collect.lines(connection, after_xid=after_xid)
    return {row["tx_id"]: row["xid"] for row in requests} | {_key(line): line.xid for line in lines}


def _key(line: JournalLine) -> tuple[object, ...]:
    """Return all fields of a line, because a new line may get the number of a lost one."""
    return line.id, line.xid, line.signer, line.event, line.tx_id, line.token


async def _settle(
    testbed: Testbed, fail_over: FailOver, request_tasks: list[asyncio.Task[None]]
) -> float | None:
    """Return how long it took until only signers in PROTECT have work; None if it took too long."""
    deadline_s = fail_over.back_s + testbed.plan.quiet_within_s
    looks = 0
    while time.time() < deadline_s:
        has_asked = all(task.done() for task in request_tasks)
        looks = looks + 1 if has_asked and await _is_quiet(testbed) else 0
        if looks >= _QUIET_LOOKS:
            quiet_s = time.time() - (_QUIET_LOOKS - 1) * _POLL_INTERVAL_S
            await asyncio.sleep(_WATCHED_LEASES * testbed.plan.lease_s)
            return quiet_s - fail_over.back_s
        await asyncio.sleep(_POLL_INTERVAL_S)
    for task in request_tasks:
        task.cancel()
    return None


async def until_quiet(testbed: Testbed, *, within_s: float) -> float | None:
    """Wait until no signer but those in PROTECT has live work; return how long it took, or None if it took too long."""
    began_s, looks = time.monotonic(), 0
    while time.monotonic() - began_s < within_s:
        looks = looks + 1 if await _is_quiet(testbed) else 0
        if looks >= _QUIET_LOOKS:
            return time.monotonic() - began_s
        await asyncio.sleep(_POLL_INTERVAL_S)
    return None


async def _is_quiet(testbed: Testbed) -> bool:
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        live: int = await testbed.database.fetchval(
            "SELECT count(*) FROM managed_tx t WHERE state NOT IN ('CONFIRMED', 'FAILED', 'CANCELLED') AND NOT EXISTS"
            " (SELECT FROM signer_nonce_cursor c WHERE c.chain_id = t.chain_id AND c.signer = t.signer"
            " AND c.state = 'PROTECT')"
        )
        return live == 0
    return False
