"""How soon things happen: from accepting to sending, and one strict signer as fast as its round trips allow."""

from __future__ import annotations

import asyncio
import statistics
import time

import asyncpg
import msgspec

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.signers.local import LocalKeys
from fencepost.domain.ids import Address
from fencepost.domain.transaction import Call, Fees, UnsignedTx
from fencepost.lab.bench.load import drive, post
from fencepost.lab.bench.report import Figure
from fencepost.lab.bench.stage import Signers, Stage, until_ended

RATE = 100
GWEI = 10**9


async def latency(stage: Stage) -> list[Figure]:
    """Accept → send at 100 a second, against one durable commit and one round trip to the node."""
    count = stage.count(1_500, 400)
    signers = Signers.fresh(20)
    async with (
        stage.stub() as rpc_url,
        stage.database() as dsn,
        stage.node(dsn, rpc_url, signers.keys) as node,
    ):
        floor_ms = await _floor_ms(dsn, rpc_url)
        for index in range(count):
            began_s = time.perf_counter()
            body = {
                "signer": signers.addresses[index % 20],
                "requestId": f"l-{index}",
                "payload": {"to": signers.addresses[0], "value": "1", "gas": 21000},
            }
            await drive(
                node.url, iter([post(node.url, "/api/v1/tx", msgspec.json.encode(body))]), connections=1
            )
            await asyncio.sleep(max(0.0, 1 / RATE - (time.perf_counter() - began_s)))
        await until_ended(dsn, count, within_s=60)
        waits_ms = await _waits_ms(dsn)
    p50, p99 = statistics.median(waits_ms), statistics.quantiles(waits_ms, n=100)[98]
    return [
        Figure("latency: accept → send, p50", p50, "ms", 3, False, "commit + round trip, ms", floor_ms),
        Figure("latency: accept → send, p99", p99, "ms", 10, False, "commit + round trip, ms", floor_ms),
    ]


async def _floor_ms(dsn: str, rpc_url: str) -> float:
    """The median of one durable commit, plus that of one call."""
    connection = await asyncpg.connect(dsn)
    rpc = JsonRpc(rpc_url)
    commits, calls = [], []
    try:
        await connection.execute("CREATE TABLE floor_row (id bigint GENERATED ALWAYS AS IDENTITY, body text)")
        for _ in range(200):
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


async def _waits_ms(dsn: str) -> list[float]:
    """From the journal: when it was received, when its first send was answered."""
    connection = await asyncpg.connect(dsn)
    try:
        found = await connection.fetch(
            "SELECT extract(epoch FROM min(s.at) - min(r.at))::float8 * 1000 AS ms FROM journal r"
            " JOIN journal s ON s.tx_id = r.tx_id AND s.event = 'SendResult'"
            " WHERE r.event = 'Receive' GROUP BY r.tx_id"
        )
    finally:
        await connection.close()
    return [row["ms"] for row in found]


async def strict(stage: Stage) -> list[Figure]:
    """One strict signer on a chain that mines at once, against the round trips that can't be avoided."""
    count = stage.count(300, 100)
    signers = Signers.fresh(1)
    async with stage.anvil(block_time_s=0) as chain:
        floor = await _unavoidable(stage, chain.rpc_url, count)
    async with stage.anvil(block_time_s=0) as chain, stage.database() as dsn:
        rpc = JsonRpc(chain.rpc_url)
        await rpc.call("anvil_setBalance", [signers.addresses[0], hex(10**24)])
        await rpc.close()
        settings = {"nonce.mode": "strict", "confirmations.fetch_receipt_upon_entry": "true"}
        async with stage.node(dsn, chain.rpc_url, signers.keys, settings) as node:
            requests = [
                {
                    "signer": signers.addresses[0],
                    "requestId": f"s-{index}",
                    "payload": {"to": signers.addresses[0], "value": "1", "gas": 21000},
                }
                for index in range(count)
            ]
            body = msgspec.json.encode({"requests": requests})
            began_s = time.perf_counter()
            await drive(node.url, iter([post(node.url, "/api/v1/tx/batch", body)]), connections=1)
            await until_ended(dsn, count, within_s=120)
            seconds = time.perf_counter() - began_s
    return [
        Figure(
            "strict: time a transaction",
            seconds / count * 1000,
            "ms",
            1.5,
            False,
            "its round trips, ms",
            floor,
        ),
    ]


async def _unavoidable(stage: Stage, rpc_url: str, count: int) -> float:
    """Commit, send, fetch the receipt, commit: milliseconds a transaction."""
    signers = Signers.fresh(1)
    keys = LocalKeys.from_hex(signers.keys)
    address = Address(signers.addresses[0])
    wanted = [
        UnsignedTx(31337, nonce, Call(to=address, value_wei=1), 21_000, Fees(10 * GWEI, GWEI))
        for nonce in range(count)
    ]
    signed = await keys.sign(address, wanted)
    rpc = JsonRpc(rpc_url)
    await rpc.call("anvil_setBalance", [address, hex(10**24)])
    async with stage.database() as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute("CREATE TABLE floor_row (id bigint GENERATED ALWAYS AS IDENTITY, body text)")
        began_s = time.perf_counter()
        for tx in signed:
            await connection.execute("INSERT INTO floor_row (body) VALUES ('x')")
            await rpc.call("eth_sendRawTransaction", ["0x" + tx.raw.hex()])
            await rpc.call("eth_getTransactionReceipt", [tx.hash])
            await connection.execute("INSERT INTO floor_row (body) VALUES ('x')")
        seconds = time.perf_counter() - began_s
        await connection.close()
    await rpc.close()
    return seconds / count * 1000
