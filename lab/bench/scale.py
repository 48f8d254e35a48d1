"""Measure how cost grows: a hot signer, many signers, many finished rows, many idle signers, a long queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack

import asyncpg
import msgspec

from fencepost.dev.node_process import start_nodes
from lab.bench.cpu import cpu_s, family_cpu_s, rss_bytes
from lab.bench.interleaved import median_round
from lab.bench.load import batch_requests, send_all
from lab.bench.profiled_node import MODULE, NodeProfile, profile_environ
from lab.bench.report import Figure
from lab.bench.signers import Signers
from lab.bench.stub_chain import block_hash
from lab.bench.testbed import QUIET, Testbed, count_confirmed, require_confirmed, wait_until_ended

MIB = 2**20

# An idle PostgreSQL session reports its statistics within ten seconds, not immediately.
STATISTICS_S = 12


async def hot_signer(testbed: Testbed) -> list[Figure]:
    """Measure nonces per second of one signer with a window of 256, against one row lock per call.

    Both measure durable allocation. Fencepost also stores the transactions and signed bytes; a second figure includes
    pricing and signing, which the row lock does not do.
    """
    count = testbed.count(10_000, 3_000)
    locked = await _one_row_lock_a_call(testbed)
    signers = Signers.fresh(1)
    file = testbed.folder / "hot.json"
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(dsn, rpc_url, signers.keys, module=MODULE, more_environ=profile_environ(file)) as node,
    ):
        await send_all(node.url, batch_requests(node.url, signers, count, "h"), 4, 200)
        await wait_until_ended(dsn, within_s=120)
        await require_confirmed(dsn, count)
    given = msgspec.json.decode(file.read_bytes(), type=NodeProfile).allocations
    nonces, commit_s, all_s = (sum(column) for column in zip(*given, strict=True))
    said = "a row lock a call, /s"
    return [
        Figure("hot signer: nonces, window 256", nonces / commit_s, "/s", 10, True, said, locked),
        Figure("hot signer: priced and signed as well", nonces / all_s, "/s", None, True, said, locked),
    ]


async def _one_row_lock_a_call(testbed: Testbed) -> float:
    """Return the rate of SELECT FOR UPDATE, UPDATE, COMMIT with eight callers."""
    seconds = testbed.count(4, 2)
    async with testbed.database() as dsn:
        pool = await asyncpg.create_pool(dsn, min_size=8, max_size=8)
        await pool.execute("CREATE TABLE hot (id int PRIMARY KEY, next bigint NOT NULL)")
        await pool.execute("INSERT INTO hot VALUES (1, 0)")
        deadline_s = time.monotonic() + seconds

        async def allocate() -> None:
            while time.monotonic() < deadline_s:
                async with pool.acquire() as connection, connection.transaction():
                    await connection.fetchval("SELECT next FROM hot WHERE id = 1 FOR UPDATE")
                    await connection.execute("UPDATE hot SET next = next + 1 WHERE id = 1")

        await asyncio.gather(*(allocate() for _ in range(8)))
        rate = float(await pool.fetchval("SELECT next FROM hot")) / seconds
        await pool.close()
    return rate


async def growth_of_signers(testbed: Testbed) -> list[Figure]:
    """Measure CPU per transaction (node and database) with ten transactions for each of many signers.

    The same number of transactions of ten signers is the baseline.
    """
    steps = testbed.steps((10, 10_000), (10, 300))
    count = testbed.count(100_000, 3_000)

    async def cost_us(signers: int) -> float:
        async with testbed.stub() as rpc_url, testbed.database() as dsn:
            return await _cost_us(testbed, rpc_url, dsn, signers=signers, count=count)

    rounds = await _rounds(steps, cost_us, testbed.count(3, 1))
    return _growth(rounds, "signers", "signers, µs")


async def growth_of_rows(testbed: Testbed) -> list[Figure]:
    """Measure CPU per transaction (node and database) with more finished rows, against the fewest."""
    steps = testbed.steps((10_000, 1_000_000), (1_000, 50_000))
    async with AsyncExitStack() as stack:
        places = {}
        for finished in steps:
            rpc_url = await stack.enter_async_context(testbed.stub())
            dsn = await stack.enter_async_context(testbed.database())
            await _fill_with_finished(dsn, finished)
            places[finished] = rpc_url, dsn

        async def cost_us(finished: int) -> float:
            return await _cost_us(testbed, *places[finished], signers=50, count=testbed.count(20_000, 3_000))

        rounds = await _rounds(steps, cost_us, testbed.count(5, 1))
    return _growth(rounds, "finished rows", "rows, µs")


async def _rounds(
    steps: Sequence[int], cost_us: Callable[[int], Awaitable[float]], rounds: int
) -> list[dict[int, float]]:
    """Measure the cost of each step, in several interleaved rounds."""
    return [{step: await cost_us(step) for step in steps} for _ in range(rounds)]


def _growth(rounds: Sequence[Mapping[int, float]], what: str, compared_with: str) -> list[Figure]:
    few, *more = rounds[0]
    figures = []
    for many in more:
        many_us, few_us = median_round(
            [(costs_us[many], costs_us[few]) for costs_us in rounds], lambda pair: pair[0] / pair[1]
        )
        name, said = f"growth: cost with {many:,} {what}", f"{few:,} {compared_with}"
        figures.append(Figure(name, many_us, "µs a tx", 1.3, False, said, few_us))
    return figures


async def _cost_us(testbed: Testbed, rpc_url: str, dsn: str, *, signers: int, count: int) -> float:
    """Return the CPU per transaction; every lease and sequence is started before."""
    accounts = Signers.fresh(signers)
    earlier = await count_confirmed(dsn)
    async with testbed.node(dsn, rpc_url, accounts.keys, {"lease.idle_release": "10m"}) as node:
        await send_all(node.url, batch_requests(node.url, accounts, signers, "warm"), 4, 200)
        await wait_until_ended(dsn, within_s=240)
        requests = batch_requests(node.url, accounts, count, "g")
        before = cpu_s(node.process.pid) + family_cpu_s(testbed.server.pid)
        await send_all(node.url, requests, 4, 200)
        await wait_until_ended(dsn, within_s=240)
        after = cpu_s(node.process.pid) + family_cpu_s(testbed.server.pid)
        await require_confirmed(dsn, earlier + signers + count)
    return (after - before) / count * 1e6


async def _fill_with_finished(dsn: str, count: int) -> None:
    """Insert transactions that ended long ago, each with an attempt and its last journal line."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("SET synchronous_commit = off")
    await connection.execute(
        "INSERT INTO managed_tx (tx_id, chain_id, signer, request_id, kind, payload, payload_digest, state, is_live,"
        " nonce, tx_hash, block_number, block_hash, finished_at)"
        " SELECT (lpad(to_hex(i), 12, '0') || '70008000000000000000')::uuid, 31337,"
        " '0x' || lpad(to_hex(i % 1000), 40, '0'), 'old-' || i, 'intent', '{}',"
        " decode(repeat('00', 32), 'hex'), 'CONFIRMED', false, i / 1000, '0x' || lpad(to_hex(i), 64, '0'), 0,"
        " $2, clock_timestamp() FROM generate_series(1, $1) i",
        count,
        block_hash(0),  # the canonical block: transactions of another block would be reopened
    )
    await connection.execute(
        "INSERT INTO tx_attempt (tx_id, attempt, chain_id, signer, nonce, purpose, tx_type, gas, fee_cap_wei, tip_wei,"
        " raw, tx_hash, fencing_token)"
        " SELECT tx_id, 1, chain_id, signer, nonce, 'intent', 2, 21000, 1, 1, decode(repeat('00', 110), 'hex'),"
        " tx_hash, 1 FROM managed_tx"
    )
    await connection.execute(
        "INSERT INTO journal_batch (chain_id, signer, id_prefix, tx_ids, events, states)"
        " SELECT chain_id, signer, left(tx_id::text, 11), ARRAY[tx_id], '{Finish}', ARRAY[state] FROM managed_tx"
    )
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


async def nodes(testbed: Testbed) -> list[Figure]:
    """Measure throughput and database work with one, two and three nodes that get requests in turn.

    On two cores throughput can't be linear; the database work per transaction must not grow.
    """
    runs = [await _with_nodes(testbed, count) for count in (1, 2, 3)]
    figures = [
        Figure(f"nodes: throughput with {count}", rate, "tx/s", 0.5, True, "one node, tx/s", runs[0][0])
        for count, (rate, _) in enumerate(runs, start=1)
    ]
    for count, (_, cost_us) in enumerate(runs[1:], start=2):
        name = f"nodes: database work with {count}"
        figures.append(Figure(name, cost_us, "µs a tx", 1.3, False, "one node, µs", runs[0][1]))
    return figures


async def _with_nodes(testbed: Testbed, count: int) -> tuple[float, float]:
    """Return transactions per second, and PostgreSQL's CPU per transaction in µs."""
    transactions = testbed.count(10_000, 3_000)
    signers = Signers.fresh(100)
    async with testbed.stub() as rpc_url, testbed.database() as dsn:
        names = [f"bench-{number}" for number in range(count)]
        fellows = await start_nodes(
            names, dsn=dsn, rpc_url=rpc_url, private_keys=signers.keys, settings=QUIET, logs=testbed.folder
        )
        try:
            share = transactions // count
            requests = [batch_requests(node.url, signers, share, node.name) for node in fellows]
            before_s, began_s = family_cpu_s(testbed.server.pid), time.perf_counter()
            await asyncio.gather(
                *(send_all(node.url, bodies, 2, 200) for node, bodies in zip(fellows, requests, strict=True))
            )
            await wait_until_ended(dsn, within_s=180)
            seconds = time.perf_counter() - began_s
            cost_us = (family_cpu_s(testbed.server.pid) - before_s) / (share * count) * 1e6
            await require_confirmed(dsn, share * count)
        finally:
            for node in fellows:
                await node.stop()
    return share * count / seconds, cost_us


async def idle(testbed: Testbed) -> list[Figure]:
    """Measure statements and CPU of a node that holds many idle signers and polls for blocks as by default."""
    count = testbed.count(1_000, 200)
    seconds = testbed.count(20, 8)
    signers = Signers.fresh(count)
    settings = {"lease.idle_release": "10m", "chains.default.poll_interval": "1s"}
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(dsn, rpc_url, signers.keys, settings) as node,
    ):
        await send_all(node.url, batch_requests(node.url, signers, count, "i"), 4, 200)
        await wait_until_ended(dsn, within_s=120)
        await require_confirmed(dsn, count)
        await _vacuum(dsn)
        await asyncio.sleep(STATISTICS_S)
        before = await _transactions(dsn), cpu_s(node.process.pid)
        await asyncio.sleep(seconds)
        after = await _transactions(dsn), cpu_s(node.process.pid)
    return [
        Figure(
            f"idle: transactions a second, {count:,} signers",
            (after[0] - before[0]) / seconds,
            "/s",
            5,
            False,
        ),
        Figure(
            f"idle: CPU, {count:,} signers", (after[1] - before[1]) / seconds * 100, "% of a core", 2, False
        ),
    ]


async def _vacuum(dsn: str) -> None:
    """Do the server's own maintenance first, because its transactions would be counted."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


async def _transactions(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SELECT pg_stat_clear_snapshot()")
        return int(
            await connection.fetchval(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            )
        )
    finally:
        await connection.close()


async def memory(testbed: Testbed) -> list[Figure]:
    """Measure the memory that a long queue costs a node; most of the queue stays in the database."""
    count = testbed.count(100_000, 20_000)
    signers = Signers.fresh(20)
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(
            dsn, rpc_url, signers.keys, {"nonce.mode": "strict", "confirmations.required": "1000"}
        ) as node,
    ):
        before = rss_bytes(node.process.pid)
        await send_all(node.url, batch_requests(node.url, signers, count, "m"), 4, 200)
        await asyncio.sleep(1)
        after = rss_bytes(node.process.pid)
    return [Figure(f"memory: {count:,} queued", (after - before) / MIB, "MiB more", 150, False)]
