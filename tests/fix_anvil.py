"""A real Anvil a worker, mining at once; each test begins at the same block and its traces are reverted."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest_asyncio

from fencepost.dev.anvil import AnvilNode, anvil_node, find_anvil
from fencepost.dev.paths import default_cache_dir
from fix_postgres import run_folder


@dataclass(frozen=True, slots=True)
class TestChain:
    """A node with its keys, and a direct way to ask it anything."""

    __test__ = False

    rpc_url: str
    ws_url: str
    chain_id: int
    private_keys: tuple[bytes, ...]
    pid: int

    async def call(self, method: str, *params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        async with aiohttp.ClientSession() as session, session.post(self.rpc_url, json=request) as response:
            answer = await response.json()
        assert "error" not in answer, answer["error"]
        return answer["result"]

    async def mine(self, blocks: int = 1) -> None:
        await self.call("anvil_mine", hex(blocks))

    async def nonce(self, address: str, tag: str = "latest") -> int:
        return int(await self.call("eth_getTransactionCount", address, tag), 16)

    async def mined_from(self, address: str) -> list[dict[str, Any]]:
        """Every transaction of an account on the canonical chain, in the order of the chain."""
        head = int(await self.call("eth_blockNumber"), 16)
        found = []
        for number in range(head + 1):
            block = await self.call("eth_getBlockByNumber", hex(number), True)
            found += [tx for tx in block["transactions"] if tx["from"].lower() == address.lower()]
        return found


def test_chain(node: AnvilNode) -> TestChain:
    return TestChain(node.rpc_url, node.ws_url, node.chain_id, node.private_keys, node.pid)


test_chain.__test__ = False  # type: ignore[attr-defined]  # pytest would take the name for a test


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def anvil_binary() -> Path:
    return await find_anvil(default_cache_dir(), report=print)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def worker_anvil(anvil_binary: Path) -> AsyncIterator[TestChain]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    async with anvil_node(binary=anvil_binary, run_dir=run_folder() / f"anvil-{worker}", accounts=20) as node:
        yield test_chain(node)


@pytest_asyncio.fixture
async def anvil(worker_anvil: TestChain) -> AsyncIterator[TestChain]:
    snapshot = await worker_anvil.call("evm_snapshot")
    head = await worker_anvil.call("eth_blockNumber")
    yield worker_anvil
    await worker_anvil.call(
        "anvil_dropAllTransactions"
    )  # else they are mined as soon as it mines at once again
    await worker_anvil.call("evm_setAutomine", True)
    assert await worker_anvil.call("evm_revert", snapshot)
    await worker_anvil.call("anvil_dropAllTransactions")
    assert await worker_anvil.call("eth_blockNumber") == head
