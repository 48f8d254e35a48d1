"""How much goes through: accepting, the ceiling with a stub chain, and end to end on Anvil."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.signers.local import LocalKeys
from fencepost.domain.ids import Address
from fencepost.domain.transaction import Call, Fees, UnsignedTx
from fencepost.errors import Unready
from fencepost.lab.bench.cpu import cpu_s, family_cpu_s
from fencepost.lab.bench.load import drive, post
from fencepost.lab.bench.report import Figure
from fencepost.lab.bench.stage import Signers, Stage, until_ended

SIGNERS = 50
BATCH = 500
GWEI = 10**9


def single_requests(url: str, signers: Signers, count: int, run: str) -> Iterator[bytes]:
    for index in range(count):
        yield post(url, "/api/v1/tx", msgspec.json.encode(_request(signers, index, run)))


def batch_requests(url: str, signers: Signers, count: int, run: str) -> Iterator[bytes]:
    for start in range(0, count, BATCH):
        requests = [_request(signers, index, run) for index in range(start, min(start + BATCH, count))]
        yield post(url, "/api/v1/tx/batch", msgspec.json.encode({"requests": requests}))


def _request(signers: Signers, index: int, run: str) -> dict[str, object]:
    address = signers.addresses[index % len(signers.addresses)]
    return {
        "signer": address,
        "requestId": f"{run}-{index}",
        "payload": {"to": signers.addresses[0], "value": "1", "gas": 21000},
    }


async def pour(url: str, requests: Iterator[bytes], connections: int, wanted: int) -> float:
    began_s = time.perf_counter()
    statuses = await drive(url, requests, connections=connections)
    seconds = time.perf_counter() - began_s
    if any(status != wanted for status in statuses):
        raise Unready(f"the node answered {sorted(set(statuses))}, not only {wanted}")
    return seconds


async def accept(stage: Stage) -> list[Figure]:
    """Durable 202s a second against durable single-row inserts of pgbench on the same server."""
    inserts = await _pgbench(stage)
    count = stage.count(20_000, 4_000)
    # One nonce in flight that never gets deep enough: accepting is all that happens.
    waiting = Signers.fresh(1)
    still = {"nonce.mode": "strict", "confirmations.required": "1000"}
    async with (
        stage.stub() as rpc_url,
        stage.database() as dsn,
        stage.node(dsn, rpc_url, waiting.keys, still) as node,
    ):
        single_s = await pour(node.url, single_requests(node.url, waiting, count, "one"), 64, 202)
        batch_s = await pour(node.url, batch_requests(node.url, waiting, count * 2, "many"), 8, 200)
    return [
        Figure(
            "accept: POST /tx, 64 connections",
            count / single_s,
            "/s",
            0.4,
            True,
            "pgbench inserts/s",
            inserts,
        ),
        Figure(
            "accept: POST /tx/batch, rows", count * 2 / batch_s, "/s", 1.3, True, "pgbench inserts/s", inserts
        ),
    ]


async def _pgbench(stage: Stage) -> float:
    async with stage.database() as dsn:
        script = stage.folder / "insert.sql"
        script.write_text(
            'INSERT INTO bench_row (id, body) VALUES (gen_random_uuid(), \'{"to": "0x00", "value": "1"}\');\n'
        )
        await _run(
            stage, "psql", dsn, "-qc", "CREATE TABLE bench_row (id uuid PRIMARY KEY, body jsonb NOT NULL)"
        )
        seconds = str(stage.count(8, 3))
        said = await _run(
            stage, "pgbench", "-n", "-f", str(script), "-c", "32", "-j", "2", "-T", seconds, dsn
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
class _Run:
    rate: float
    node_us: float
    postgres_us: float


async def ceiling(stage: Stage) -> list[Figure]:
    """What one node process can do when the chain costs nothing, and what it costs."""
    batch = await _ceiling(stage, stage.count(40_000, 10_000), by_batch=True)
    single = await _ceiling(stage, stage.count(20_000, 5_000), by_batch=False)
    return [
        Figure("ceiling: accepted → confirmed, batches", batch.rate, "tx/s", 4_000, True, "stub chain"),
        Figure("ceiling: accepted → confirmed, single POSTs", single.rate, "tx/s", 2_000, True, "stub chain"),
        Figure("own cost: node, batches", batch.node_us, "µs a tx", 200, False),
        Figure("own cost: node, single POSTs", single.node_us, "µs a tx", 350, False),
        Figure("own cost: PostgreSQL", batch.postgres_us, "µs a tx", 100, False),
    ]


async def _ceiling(stage: Stage, count: int, *, by_batch: bool) -> _Run:
    signers = Signers.fresh(SIGNERS)
    async with (
        stage.stub() as rpc_url,
        stage.database() as dsn,
        stage.node(dsn, rpc_url, signers.keys) as node,
    ):
        node_pid, server_pid = node.process.pid, stage.server.pid
        before = cpu_s(node_pid), family_cpu_s(server_pid)
        began_s = time.perf_counter()
        if by_batch:
            await pour(node.url, batch_requests(node.url, signers, count, "c"), 4, 200)
        else:
            await pour(node.url, single_requests(node.url, signers, count, "c"), 64, 202)
        await until_ended(dsn, count, within_s=180)
        seconds = time.perf_counter() - began_s
        after = cpu_s(node_pid), family_cpu_s(server_pid)
    return _Run(
        rate=count / seconds,
        node_us=(after[0] - before[0]) / count * 1e6,
        postgres_us=(after[1] - before[1]) / count * 1e6,
    )


async def end_to_end(stage: Stage) -> list[Figure]:
    """The same transfers through us, and blasted at the same kind of chain with nothing in between."""
    count = stage.count(10_000, 2_000)
    blasted_s = await _blast(stage, count)
    signers = Signers.fresh(SIGNERS)
    async with stage.anvil(block_time_s=0.25) as chain, stage.database() as dsn:
        await _fund(chain.rpc_url, signers)
        async with stage.node(dsn, chain.rpc_url, signers.keys) as node:
            began_s = time.perf_counter()
            await pour(node.url, batch_requests(node.url, signers, count, "e"), 4, 200)
            await until_ended(dsn, count, within_s=180)
            ours_s = time.perf_counter() - began_s
    return [
        Figure("end to end on Anvil", count / ours_s, "tx/s", 0.85, True, "blasted, tx/s", count / blasted_s),
    ]


async def _fund(rpc_url: str, signers: Signers) -> None:
    rpc = JsonRpc(rpc_url)
    try:
        await rpc.batch([("anvil_setBalance", [address, hex(10**24)]) for address in signers.addresses])
    finally:
        await rpc.close()


async def _blast(stage: Stage, count: int) -> float:
    """Sign first; then send in batches of 100, four at a time, and fetch the receipts when the blocks are there."""
    signers = Signers.fresh(SIGNERS)
    keys = LocalKeys.from_hex(signers.keys)
    raws: list[tuple[str, str]] = []
    for address in keys.addresses():
        wanted = [_transfer(nonce, signers) for nonce in range(count // SIGNERS)]
        raws += [("0x" + signed.raw.hex(), signed.hash) for signed in await keys.sign(address, wanted)]
    async with stage.anvil(block_time_s=0.25) as chain:
        await _fund(chain.rpc_url, signers)
        rpc = JsonRpc(chain.rpc_url, timeout_s=60)
        began_s = time.perf_counter()
        parts = [raws[start : start + 100] for start in range(0, len(raws), 100)]
        gate = asyncio.Semaphore(4)

        async def send(part: list[tuple[str, str]]) -> None:
            async with gate:
                await rpc.batch([("eth_sendRawTransaction", [raw]) for raw, _ in part])

        await asyncio.gather(*(send(part) for part in parts))
        waiting = [tx_hash for _, tx_hash in raws]
        while waiting:
            answers = await rpc.batch([("eth_getTransactionReceipt", [tx_hash]) for tx_hash in waiting])
            waiting = [
                tx_hash
                for tx_hash, answer in zip(waiting, answers, strict=True)
                if not isinstance(answer, dict)
            ]
            if waiting:
                await asyncio.sleep(0.05)
        seconds = time.perf_counter() - began_s
        await rpc.close()
    return seconds


def _transfer(nonce: int, signers: Signers) -> UnsignedTx:
    return UnsignedTx(
        chain_id=31337,
        nonce=nonce,
        call=Call(to=Address(signers.addresses[0]), value_wei=1),
        gas=21_000,
        fees=Fees(fee_cap_wei=10 * GWEI, tip_wei=GWEI),
    )
