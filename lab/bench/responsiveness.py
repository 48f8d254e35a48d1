"""Measure the latency from acceptance to send, and the speed of one strict signer."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

import asyncpg

from fencepost.adapters.evm.rpc import JsonRpc
from lab.bench.end_to_end import fund, presigned
from lab.bench.interleaved import median_round
from lab.bench.load import Response, batch_requests, require_status, send_all, send_at_rate, single_requests
from lab.bench.report import Figure
from lab.bench.signers import Signers
from lab.bench.testbed import Testbed, require_confirmed, wait_until_ended

RATE = 100
ACCEPTED = 202


async def latency(testbed: Testbed) -> list[Figure]:
    """Measure from the 202 to the chain's answer at 100 requests per second, against one commit and one call."""
    count = testbed.count(1_500, 400)
    signers = Signers.fresh(20)
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(dsn, rpc_url, signers.keys) as node,
    ):
        # Leases and sequences are started before the clock runs.
        await send_all(node.url, single_requests(node.url, signers, 20, "warm"), 4, ACCEPTED)
        await wait_until_ended(dsn, within_s=30)
        floor_ms = await _floor_ms(dsn, rpc_url, apart_s=1 / RATE)
        busy_floor_ms = await _floor_ms(dsn, rpc_url, apart_s=0)
        answers = await send_at_rate(node.url, single_requests(node.url, signers, count, "l"), rate=RATE)
        require_status(answers, ACCEPTED)
        await wait_until_ended(dsn, within_s=60)
        waits_ms = await _waits_ms(dsn, rpc_url, answers)
        await require_confirmed(dsn, count + 20)
    said = "commit + round trip, ms,"
    p50, p99 = statistics.median(waits_ms), statistics.quantiles(waits_ms, n=100)[98]
    return [
        Figure("latency: accept → send, p50", p50, "ms", 3, False, f"{said} at the same rate", floor_ms),
        Figure("latency: accept → send, p99", p99, "ms", 10, False, f"{said} at the same rate", floor_ms),
        Figure("latency: p50, tight loop", p50, "ms", None, False, f"{said} in a tight loop", busy_floor_ms),
    ]


async def _floor_ms(dsn: str, rpc_url: str, *, apart_s: float) -> float:
    """Return the median time of one durable commit plus that of one call.

    The calls are as far apart as in the run, because idle processes wake up slowly; or in a tight loop.
    """
    connection = await asyncpg.connect(dsn)
    rpc = JsonRpc(rpc_url)
    commits, calls = [], []
    try:
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS floor_row (id bigint GENERATED ALWAYS AS IDENTITY, body text)"
        )
        for _ in range(200):
            await asyncio.sleep(apart_s)
            began_s = time.perf_counter()
            await connection.execute("INSERT INTO floor_row (body) VALUES ('x')")
            commits.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            await rpc.call("eth_chainId", [])
            calls.append(time.perf_counter() - began_s)
    finally:
        await connection.close()
        await rpc.close()
    return (statistics.median(commits) + statistics.median(calls)) * 1000


async def _waits_ms(dsn: str, rpc_url: str, answers: Sequence[Response]) -> list[float]:
    """Return the times from a client's 202 until the chain had the bytes, on the machine's monotonic clock."""
    connection = await asyncpg.connect(dsn)
    rpc = JsonRpc(rpc_url)
    try:
        found = await connection.fetch("SELECT request_id, tx_hash FROM managed_tx")
        sent_at_s = await rpc.call("stub_sends", [])
    finally:
        await connection.close()
        await rpc.close()
    hashes = {row["request_id"]: row["tx_hash"] for row in found}
    return [
        max(0.0, sent_at_s[hashes[f"l-{answer.number}"]] - answer.answered_s) * 1000 for answer in answers
    ]


async def strict(testbed: Testbed) -> list[Figure]:
    """Measure one strict signer on a chain that mines immediately, against its unavoidable round trips."""
    count = testbed.count(300, 100)
    rounds = [
        (await _strictly_ms(testbed, count), await _unavoidable_ms(testbed, count))
        for _ in range(testbed.count(7, 1))
    ]
    ours_ms, floor_ms = median_round(rounds, lambda measured: measured[0] / measured[1])
    return [Figure("strict: time a transaction", ours_ms, "ms", 1.5, False, "its round trips, ms", floor_ms)]


async def _strictly_ms(testbed: Testbed, count: int) -> float:
    signers = Signers.fresh(1)
    async with testbed.anvil(block_time_s=0) as chain, testbed.database() as dsn:
        await fund(chain.rpc_url, signers)
        settings = {"nonce.mode": "strict", "confirmations.fetch_receipt_upon_entry": "true"}
        async with testbed.node(dsn, chain.rpc_url, signers.keys, settings) as node:
            # The lease and the sequence are started before the clock runs.
            await send_all(node.url, single_requests(node.url, signers, 1, "warm"), 1, ACCEPTED)
            await wait_until_ended(dsn, within_s=30)
            await send_all(node.url, batch_requests(node.url, signers, count, "s"), 1, 200)
            await wait_until_ended(dsn, within_s=120)
            await require_confirmed(dsn, count + 1)
            return await _from_end_to_end_s(dsn) * 1000


async def _from_end_to_end_s(dsn: str) -> float:
    """Return the average time between two ends, on the database's clock.

    Acceptance before the first end and polling after the last one are not included.
    """
    connection = await asyncpg.connect(dsn)
    try:
        between_s = await connection.fetchval(
            "SELECT extract(epoch FROM max(finished_at) - min(finished_at))::float8 / (count(*) - 1)"
            " FROM managed_tx WHERE request_id LIKE 's-%'"
        )
    finally:
        await connection.close()
    return float(between_s)


async def _unavoidable_ms(testbed: Testbed, count: int) -> float:
    """Return milliseconds per transaction for commit, send, receipt and commit in a loop."""
    signers = Signers.fresh(1)
    signed = await presigned(signers, count)
    async with testbed.anvil(block_time_s=0) as chain, testbed.database() as dsn:
        await fund(chain.rpc_url, signers)
        rpc = JsonRpc(chain.rpc_url)
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE floor_row (id bigint GENERATED ALWAYS AS IDENTITY, body text)")
        began_s = time.perf_counter()
        for tx in signed:
            await connection.execute("INSERT INTO floor_row (body) VALUES ('x')")
            await rpc.call("eth_sendRawTransaction", ["0x" + tx.raw.hex()])
            while await rpc.call("eth_getTransactionReceipt", [tx.hash]) is None:
                pass
            await connection.execute("INSERT INTO floor_row (body) VALUES ('x')")
        seconds = time.perf_counter() - began_s
        await connection.close()
        await rpc.close()
    return seconds / count * 1000
