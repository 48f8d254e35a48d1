"""A phase after the faults: the database is restored from an older copy, as from a disk snapshot.

1. Load runs. In the second half of that time no endpoint answers, so that many requests wait without a nonce.
2. The load ends, every request is acknowledged, and the copy is made while the nodes run.
3. The endpoints answer again, and the nodes send at least half of what the copy holds as unsent.
4. The nodes stop, the chain mines what its pool holds, and the copy replaces the data. System identifier, timeline and
   database oid stay the same, so only the comparison with the chain shows that commits are missing.
5. The nodes start, and each signer gets one more request.

A pool may keep transactions above a gap, which no block can include. They are dropped before the nodes start: a snapshot
whose lost transactions are all in a pool looks like a database that lost nothing (docs/restore.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from fencepost.domain.ids import Address
from fencepost.errors import EmbeddedError
from lab.chaos.load import Load
from lab.chaos.lost_commits_phase import until_quiet
from lab.chaos.testbed import FaultEvent, Testbed
from lab.checker import collect
from lab.checker.restored_copy import Found, Restored
from lab.proxies.rpc_proxy import RpcFaults

KIND = "db_restored"
ANSWERED_S = 1.0  # of load while the endpoints answer
SILENT_S = 1.5  # of load while no endpoint answers
MAX_LOST_S = 20.0  # the time that the copy does not contain
PIPELINED_SIGNERS = 3
MAX_POOL_WAIT_S = 10.0
QUIET_TIMES = 2  # times the bound of a run without fillers
_POLL_INTERVAL_S = 0.2
_READ_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Copy:
    folder: Path
    made_s: float


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The restore and what the checker found, for the report."""

    restored: Restored
    dropped: int  # transactions that were dropped from the pool
    quiet_within_s: float | None
    found: Found


def busy_signers(testbed: Testbed) -> list[Address]:
    """Return the strict signers and a few pipelined ones, each of which needs as many fillers as its window."""
    pipelined = testbed.pipelined[:PIPELINED_SIGNERS]
    return [signer for signer in (*testbed.strict, *pipelined) if signer not in testbed.used_victims]


async def copy_under_load(testbed: Testbed, load: Load) -> Copy:
    """Copy the database while many requests have no nonce, and let the nodes continue for a while."""
    signers = busy_signers(testbed)
    async with asyncio.timeout(testbed.plan.quiet_within_s):
        await load.request_each(signers)
    # The copy must contain the fillers of earlier doubts: they match no request.
    if await until_quiet(testbed, within_s=testbed.plan.quiet_within_s) is None:
        raise EmbeddedError("the signers did not finish one request each before the copy was made")
    try:
        await _load_and_silence(testbed, load, signers)
        made_s = time.time()
        folder = await testbed.copy_database()
        unsent = await _count_unsent(testbed, signers)
    finally:
        testbed.heal_endpoints()
    deadline_s = time.monotonic() + MAX_LOST_S
    while time.monotonic() < deadline_s:
        if await _count_unsent(testbed, signers) <= unsent // 2:
            break
        await asyncio.sleep(_POLL_INTERVAL_S)
    return Copy(folder, made_s)


async def _count_unsent(testbed: Testbed, signers: Sequence[Address]) -> int:
    connection = await asyncpg.connect(testbed.postgres.dsn, command_timeout=_READ_TIMEOUT_S)
    try:
        count: int = await connection.fetchval(
            "SELECT count(*) FROM managed_tx WHERE state = 'QUEUED' AND signer = ANY ($1)", list(signers)
        )
    finally:
        await connection.close()
    return count


async def _load_and_silence(testbed: Testbed, load: Load, signers: Sequence[Address]) -> None:
    async with asyncio.timeout(testbed.plan.quiet_within_s), asyncio.TaskGroup() as group:
        group.create_task(load.generate(time.monotonic() + ANSWERED_S + SILENT_S, signers))
        await asyncio.sleep(ANSWERED_S)
        for endpoint in testbed.endpoints:
            endpoint.faults = RpcFaults(error=1.0)


async def put_back(testbed: Testbed, copy: Copy) -> tuple[Restored, int]:
    """Replace the data by the copy while no node runs; return also how many transactions the pool dropped."""
    stopped_s = time.time()
    dropped = await _empty_pool(testbed)
    before = await _identity(testbed)
    await testbed.restore_database(copy.folder)
    if await _identity(testbed) != before:
        raise EmbeddedError("the restored copy has another identity than its source")
    connection = await asyncpg.connect(testbed.postgres.dsn, command_timeout=_READ_TIMEOUT_S)
    try:
        terms = await collect.terms(connection)
        unsent = await connection.fetch("SELECT tx_id::text FROM managed_tx WHERE state = 'QUEUED'")
    finally:
        await connection.close()
    restored = Restored(
        copied_s=copy.made_s,
        stopped_s=stopped_s,
        terms=frozenset((term.signer, term.token) for term in terms),
        unsent=frozenset(row["tx_id"] for row in unsent),
    )
    lost_s = stopped_s - copy.made_s
    testbed.fault_events.append(
        FaultEvent(copy.made_s, KIND, "PostgreSQL", lost_s, f"{len(unsent)} requests without a nonce")
    )
    return restored, dropped


async def _empty_pool(testbed: Testbed) -> int:
    """Wait until the pooled transactions are mined, drop the rest, and return its number."""
    deadline_s = time.monotonic() + MAX_POOL_WAIT_S
    while time.monotonic() < deadline_s:
        status = await testbed.chain.call("txpool_status")
        if int(status["pending"], 16) == 0:
            break
        await asyncio.sleep(_POLL_INTERVAL_S)
    left = len(await collect.pool(testbed.chain.rpc))
    if left:
        await testbed.chain.call("anvil_dropAllTransactions")
    return left


async def _identity(testbed: Testbed) -> tuple[object, ...]:
    connection = await asyncpg.connect(testbed.postgres.dsn, command_timeout=_READ_TIMEOUT_S)
    try:
        row = await connection.fetchrow(
            "SELECT system_identifier, timeline_id, (SELECT oid FROM pg_database WHERE datname = current_database())"
            " FROM pg_control_system(), pg_control_checkpoint()"
        )
    finally:
        await connection.close()
    return tuple(row or ())


async def finish(testbed: Testbed, load: Load) -> float | None:
    """Give each signer one more request; return the time until the system was quiet, or None if it took too long."""
    began_s, within_s = time.monotonic(), QUIET_TIMES * testbed.plan.quiet_within_s
    try:
        async with asyncio.timeout(within_s):
            await load.request_each(busy_signers(testbed))
    except TimeoutError:
        return None
    left_s = within_s - (time.monotonic() - began_s)
    if await until_quiet(testbed, within_s=left_s) is None:
        return None
    return time.monotonic() - began_s
