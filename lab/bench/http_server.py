"""Measure what a single POST costs the node with Fencepost's HTTP protocol, and with uvicorn's httptools protocol."""

from __future__ import annotations

from dataclasses import dataclass

from lab.bench import uvicorn_node
from lab.bench.cpu import cpu_s
from lab.bench.interleaved import median_round
from lab.bench.load import send_all, single_requests
from lab.bench.report import Figure
from lab.bench.signers import Signers
from lab.bench.testbed import Testbed

_WARM_UP = 300


@dataclass(frozen=True, slots=True)
class _Round:
    own_us: float
    uvicorn_us: float


async def http_server(testbed: Testbed) -> list[Figure]:
    """Compare the protocols: the CPU of the node per accepted POST, in the median of several interleaved rounds."""
    count = testbed.count(20_000, 4_000)
    rounds = [
        _Round(
            await _post_us(testbed, count, "fencepost"), await _post_us(testbed, count, uvicorn_node.MODULE)
        )
        for _ in range(testbed.count(5, 1))
    ]
    middle = median_round(rounds, lambda each: each.own_us / each.uvicorn_us)
    name = "HTTP server against uvicorn + httptools"
    return [Figure(name, middle.own_us, "µs a POST", 1.0, False, "uvicorn + httptools", middle.uvicorn_us)]


async def _post_us(testbed: Testbed, count: int, module: str) -> float:
    waiting = Signers.fresh(1)
    still = {"nonce.mode": "strict", "confirmations.required": "1000"}  # only acceptance does work
    async with (
        testbed.stub() as rpc_url,
        testbed.database() as dsn,
        testbed.node(dsn, rpc_url, waiting.keys, still, module=module) as node,
    ):
        await send_all(node.url, single_requests(node.url, waiting, _WARM_UP, "warm"), 16, 202)
        requests = single_requests(node.url, waiting, count, "one")
        before_s = cpu_s(node.process.pid)
        await send_all(node.url, requests, 64, 202)
        return (cpu_s(node.process.pid) - before_s) / count * 1e6
