"""Clients that we did not write, pointed at `/rpc` instead of a node.

Each sends 200 transactions at once from one account without looking at a nonce. All are mined, each once, and the
account's nonces have no hole.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fix_anvil import TestChain
from fix_api import Door, open_door
from npm_clients import NpmClients

with warnings.catch_warnings():
    # Libraries under web3.py still use what websockets and the standard library have declared old.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    from web3 import AsyncHTTPProvider, AsyncWeb3, Web3

pytestmark = pytest.mark.timeout(240)  # the first of them may have to install the npm clients

COUNT = 200
RECEIVER = "0x" + "11" * 20
WITHIN_S = 180
CASTS_AT_ONCE = 20


@pytest_asyncio.fixture
async def rpc_door(dsn: str, anvil: TestChain) -> AsyncIterator[Door]:
    """With a lease as long as users have it: two hundred at once may hold up a small machine for a moment."""
    async with open_door(
        dsn,
        anvil,
        keys=1,
        lease__duration="10s",
        lease__renew_interval="2s",
        nonce__mode="pipelined",
        nonce__max_in_flight="64",
    ) as door:
        yield door


async def check_all_mined(door: Door, anvil: TestChain, hashes: list[str]) -> None:
    mined = await anvil.mined_from(door.signers[0])
    assert len(hashes) == COUNT
    assert sorted(tx["hash"] for tx in mined) == sorted(hashes)
    assert [int(tx["nonce"], 16) for tx in mined] == list(range(COUNT))
    assert sorted(int(tx["value"], 16) for tx in mined) == list(range(1, COUNT + 1))


async def output_of(*command: str | Path) -> str:
    """What the program prints; it must end well, and in time."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            said, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()[-2000:]
    return said.decode()


async def test_web3_py(rpc_door: Door, anvil: TestChain) -> None:
    web3 = AsyncWeb3(AsyncHTTPProvider(f"{rpc_door.url}/rpc"))
    (sender,) = await web3.eth.accounts

    async def send(value: int) -> str:
        tx_hash = await web3.eth.send_transaction(
            {"from": sender, "to": RECEIVER, "value": Web3.to_wei(value, "wei")}
        )
        receipt = await web3.eth.wait_for_transaction_receipt(tx_hash, timeout=WITHIN_S)
        assert receipt["status"] == 1
        return "0x" + bytes(tx_hash).hex()

    try:
        async with asyncio.timeout(WITHIN_S):
            hashes = await asyncio.gather(*(send(value) for value in range(1, COUNT + 1)))
    finally:
        await web3.provider.disconnect()
    await check_all_mined(rpc_door, anvil, hashes)


async def test_ethers(rpc_door: Door, anvil: TestChain, npm_clients: NpmClients, tmp_path: Path) -> None:
    await _check_script("send_ethers.mjs", rpc_door, anvil, npm_clients, tmp_path)


async def test_viem(rpc_door: Door, anvil: TestChain, npm_clients: NpmClients, tmp_path: Path) -> None:
    await _check_script("send_viem.mjs", rpc_door, anvil, npm_clients, tmp_path)


async def _check_script(
    name: str, door: Door, anvil: TestChain, npm_clients: NpmClients, folder: Path
) -> None:
    script = npm_clients.beside(folder, name)
    said = await output_of(npm_clients.node, script, f"{door.url}/rpc", door.signers[0], RECEIVER, str(COUNT))
    await check_all_mined(door, anvil, json.loads(said))


async def test_cast(rpc_door: Door, anvil: TestChain, npm_clients: NpmClients) -> None:
    """Cast looks up a nonce by itself, and twenty of them find the same one: each gets its own all the same."""
    room = asyncio.Semaphore(CASTS_AT_ONCE)
    fixed = ("--unlocked", "--from", rpc_door.signers[0], "--rpc-url", f"{rpc_door.url}/rpc", "--json")

    async def send(value: int) -> str:
        async with room:
            said = await output_of(npm_clients.cast, "send", RECEIVER, "--value", str(value), *fixed)
        receipt = json.loads(said)
        assert receipt["status"] == "0x1"
        return str(receipt["transactionHash"])

    async with asyncio.timeout(WITHIN_S):
        hashes = await asyncio.gather(*(send(value) for value in range(1, COUNT + 1)))
    await check_all_mined(rpc_door, anvil, hashes)
