"""Measure acceptance, and the maximum rate with a stub chain."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from statistics import median

from fencepost.errors import Unready
from lab.bench.cpu import cpu_s, family_cpu_s
from lab.bench.load import batch_requests, send_all, single_requests
from lab.bench.report import Figure
from lab.bench.signers import Signers
from lab.bench.testbed import Testbed, require_confirmed, wait_until_ended

SIGNERS = 50


@dataclass(frozen=True, slots=True)
class AcceptRates:
    """Rates per second: single requests, rows in batches, and pgbench inserts before and after."""

    singles: float
    rows: float
    inserts: float


async def accept(testbed: Testbed) -> list[Figure]:
    """Measure durable 202s per second, against durable single-row inserts of pgbench on the same server."""
    rates = await measure_accept(testbed, testbed.count(20_000, 4_000), seconds=testbed.count(5, 2))
    said = "pgbench inserts/s"
    return [
        Figure("accept: POST /tx, 64 connections", rates.singles, "/s", 0.4, True, said, rates.inserts),
        Figure("accept: POST /tx/batch, rows", rates.rows, "/s", 1.3, True, said, rates.inserts),
    ]


async def measure_accept(testbed: Testbed, count: int, *, seconds: int) -> AcceptRates:
    # One nonce in flight that never gets enough confirmations: only acceptance does work.
    waiting = Signers.fresh(1)
    still = {"nonce.mode": "strict", "confirmations.required": "1000"}
    inserts_before = await _pgbench(testbed, seconds)
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(dsn, rpc_url, waiting.keys, still) as node,
    ):
        single_s = await send_all(node.url, single_requests(node.url, waiting, count, "one"), 64, 202)
        batch_s = await send_all(node.url, batch_requests(node.url, waiting, count * 2, "many"), 8, 200)
    inserts = (inserts_before + await _pgbench(testbed, seconds)) / 2
    return AcceptRates(count / single_s, count * 2 / batch_s, inserts)


async def _pgbench(testbed: Testbed, seconds: int) -> float:
    """Return single-row durable inserts per second with 32 clients."""
    async with testbed.database() as dsn:
        script = testbed.folder / "insert.sql"
        script.write_text(
            'INSERT INTO bench_row (id, body) VALUES (gen_random_uuid(), \'{"to": "0x00", "value": "1"}\');\n'
        )
        await _run(
            testbed, "psql", dsn, "-qc", "CREATE TABLE bench_row (id uuid PRIMARY KEY, body jsonb NOT NULL)"
        )
        for tried_s in (seconds, 4 * seconds, 16 * seconds):
            arguments = ("-n", "-f", str(script), "-c", "32", "-j", "2", "-T", str(tried_s), dsn)
            output = await _run(testbed, "pgbench", *arguments)
            if (found := re.search(r"tps = ([0-9.]+)", output)) is not None:
                return float(found[1])
            # On a busy machine, pgbench may complete no insert in a second, and then prints no rate.
    raise Unready(f"pgbench completed no insert in {16 * seconds} s")


async def _run(testbed: Testbed, program: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(testbed.server.bin_dir / program),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    if process.returncode:
        raise Unready(f"{program} failed: {errors.decode()[-300:]}")
    return out.decode()


@dataclass(frozen=True, slots=True)
class Cost:
    """The transactions per second of one run, and the CPU per transaction in µs."""

    rate: float
    node_us: float
    postgres_us: float


async def ceiling(testbed: Testbed) -> list[Figure]:
    """Measure the maximum rate of one node with a stub chain, and its cost; medians of three runs."""
    batch = await _typical_cost(testbed, testbed.count(40_000, 8_000), by_batch=True)
    single = await _typical_cost(testbed, testbed.count(20_000, 4_000), by_batch=False)
    return [
        Figure("ceiling: accepted → confirmed, batches", batch.rate, "tx/s", 4_000, True, "stub chain"),
        Figure("ceiling: accepted → confirmed, single POSTs", single.rate, "tx/s", 2_000, True, "stub chain"),
        Figure("own cost: node, batches", batch.node_us, "µs a tx", 200, False),
        Figure("own cost: node, single POSTs", single.node_us, "µs a tx", 350, False),
        Figure("own cost: PostgreSQL, batches", batch.postgres_us, "µs a tx", 100, False),
        Figure("own cost: PostgreSQL, single POSTs", single.postgres_us, "µs a tx", 150, False),
    ]


async def _typical_cost(testbed: Testbed, count: int, *, by_batch: bool) -> Cost:
    """Return the median of each figure over several runs, because other processes disturb some of them."""
    runs = [await measure_cost(testbed, count, by_batch=by_batch) for _ in range(testbed.count(3, 1))]
    return Cost(
        rate=median(run.rate for run in runs),
        node_us=median(run.node_us for run in runs),
        postgres_us=median(run.postgres_us for run in runs),
    )


async def measure_cost(testbed: Testbed, count: int, *, by_batch: bool) -> Cost:
    signers = Signers.fresh(SIGNERS)
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(dsn, rpc_url, signers.keys) as node,
    ):
        prepare = batch_requests if by_batch else single_requests
        requests = prepare(node.url, signers, count, "c")
        node_pid, server_pid = node.process.pid, testbed.server.pid
        before = cpu_s(node_pid), family_cpu_s(server_pid)
        began_s = time.perf_counter()
        if by_batch:
            await send_all(node.url, requests, 4, 200)
        else:
            await send_all(node.url, requests, 64, 202)
        await wait_until_ended(dsn, within_s=180)
        seconds = time.perf_counter() - began_s
        after = cpu_s(node_pid), family_cpu_s(server_pid)
        await require_confirmed(dsn, count)
    return Cost(
        rate=count / seconds,
        node_us=(after[0] - before[0]) / count * 1e6,
        postgres_us=(after[1] - before[1]) / count * 1e6,
    )
