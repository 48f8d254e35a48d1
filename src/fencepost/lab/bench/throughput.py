"""How much goes through: accepting, and the ceiling with a chain that costs nothing."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from statistics import median

from fencepost.errors import Unready
from fencepost.lab.bench.cpu import cpu_s, family_cpu_s
from fencepost.lab.bench.load import batch_requests, pour, single_requests
from fencepost.lab.bench.report import Figure
from fencepost.lab.bench.signers import Signers
from fencepost.lab.bench.stage import Stage, require_confirmed, until_ended

SIGNERS = 50


@dataclass(frozen=True, slots=True)
class AcceptRates:
    """A second: requests one by one, rows by batches, and what pgbench inserts before and after."""

    singles: float
    rows: float
    inserts: float


async def accept(stage: Stage) -> list[Figure]:
    """Durable 202s a second against durable single-row inserts of pgbench on the same server."""
    rates = await measure_accept(stage, stage.count(20_000, 4_000), seconds=stage.count(5, 2))
    said = "pgbench inserts/s"
    return [
        Figure("accept: POST /tx, 64 connections", rates.singles, "/s", 0.4, True, said, rates.inserts),
        Figure("accept: POST /tx/batch, rows", rates.rows, "/s", 1.3, True, said, rates.inserts),
    ]


async def measure_accept(stage: Stage, count: int, *, seconds: int) -> AcceptRates:
    # One nonce in flight that never gets deep enough: accepting is all that happens.
    waiting = Signers.fresh(1)
    still = {"nonce.mode": "strict", "confirmations.required": "1000"}
    inserts_before = await _pgbench(stage, seconds)
    async with (
        stage.stub() as rpc_url,
        stage.database() as dsn,
        stage.node(dsn, rpc_url, waiting.keys, still) as node,
    ):
        single_s = await pour(node.url, single_requests(node.url, waiting, count, "one"), 64, 202)
        batch_s = await pour(node.url, batch_requests(node.url, waiting, count * 2, "many"), 8, 200)
    inserts = (inserts_before + await _pgbench(stage, seconds)) / 2
    return AcceptRates(count / single_s, count * 2 / batch_s, inserts)


async def _pgbench(stage: Stage, seconds: int) -> float:
    """Single-row durable inserts a second, 32 clients."""
    async with stage.database() as dsn:
        script = stage.folder / "insert.sql"
        script.write_text(
            'INSERT INTO bench_row (id, body) VALUES (gen_random_uuid(), \'{"to": "0x00", "value": "1"}\');\n'
        )
        await _run(
            stage, "psql", dsn, "-qc", "CREATE TABLE bench_row (id uuid PRIMARY KEY, body jsonb NOT NULL)"
        )
        said = await _run(
            stage, "pgbench", "-n", "-f", str(script), "-c", "32", "-j", "2", "-T", str(seconds), dsn
        )
    found = re.search(r"tps = ([0-9.]+)", said)
    if found is None:
        raise Unready("pgbench said nothing of its rate")
    return float(found[1])


async def _run(stage: Stage, program: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(stage.server.bin_dir / program),
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
    """Of one run: transactions a second, and CPU µs a transaction."""

    rate: float
    node_us: float
    postgres_us: float


async def ceiling(stage: Stage) -> list[Figure]:
    """What one node process can do when the chain costs nothing, and what it costs: medians of three runs."""
    batch = await _typical_cost(stage, stage.count(40_000, 8_000), by_batch=True)
    single = await _typical_cost(stage, stage.count(20_000, 4_000), by_batch=False)
    return [
        Figure("ceiling: accepted → confirmed, batches", batch.rate, "tx/s", 4_000, True, "stub chain"),
        Figure("ceiling: accepted → confirmed, single POSTs", single.rate, "tx/s", 2_000, True, "stub chain"),
        Figure("own cost: node, batches", batch.node_us, "µs a tx", 200, False),
        Figure("own cost: node, single POSTs", single.node_us, "µs a tx", 350, False),
        Figure("own cost: PostgreSQL, batches", batch.postgres_us, "µs a tx", 100, False),
        Figure("own cost: PostgreSQL, single POSTs", single.postgres_us, "µs a tx", 100, False),
    ]


async def _typical_cost(stage: Stage, count: int, *, by_batch: bool) -> Cost:
    """Each figure's median over several runs: what else goes on in a machine strikes some of them."""
    runs = [await measure_cost(stage, count, by_batch=by_batch) for _ in range(stage.count(3, 1))]
    return Cost(
        rate=median(run.rate for run in runs),
        node_us=median(run.node_us for run in runs),
        postgres_us=median(run.postgres_us for run in runs),
    )


async def measure_cost(stage: Stage, count: int, *, by_batch: bool) -> Cost:
    signers = Signers.fresh(SIGNERS)
    async with (
        stage.stub() as rpc_url,
        stage.database() as dsn,
        stage.node(dsn, rpc_url, signers.keys) as node,
    ):
        prepare = batch_requests if by_batch else single_requests
        requests = prepare(node.url, signers, count, "c")
        node_pid, server_pid = node.process.pid, stage.server.pid
        before = cpu_s(node_pid), family_cpu_s(server_pid)
        began_s = time.perf_counter()
        if by_batch:
            await pour(node.url, requests, 4, 200)
        else:
            await pour(node.url, requests, 64, 202)
        await until_ended(dsn, within_s=180)
        seconds = time.perf_counter() - began_s
        after = cpu_s(node_pid), family_cpu_s(server_pid)
        await require_confirmed(dsn, count)
    return Cost(
        rate=count / seconds,
        node_us=(after[0] - before[0]) / count * 1e6,
        postgres_us=(after[1] - before[1]) / count * 1e6,
    )
