"""Third-party clients use `/rpc` in place of an endpoint.

Each sends 200 concurrent transactions from one account without looking up a nonce. All are mined once, and the account's nonces
have no gap.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import ClientTimeout

from fencepost.schemas.requests import MAX_WAIT_S
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from npm_clients import NpmClients

with warnings.catch_warnings():
    # Dependencies of web3.py still use deprecated parts of websockets and the standard library.
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    from web3 import AsyncHTTPProvider, AsyncWeb3, Web3

pytestmark = pytest.mark.timeout(240)  # the first test may have to install the npm clients

COUNT = 200
RECEIVER = "0x" + "11" * 20
WITHIN_S = 180
CASTS_AT_ONCE = 20


@pytest_asyncio.fixture
async def rpc_calls(dsn: str, anvil: TestChain) -> AsyncIterator[ApiServer]:
    """Serve `/rpc` with the default lease: two hundred concurrent calls may delay a small machine for a moment."""
    async with open_api(
        dsn,
        anvil,
        keys=1,
        lease__duration="10s",
        lease__renew_interval="2s",
        nonce__mode="pipelined",
        nonce__max_in_flight="64",
    ) as api:
        yield api


async def check_all_mined(api: ApiServer, anvil: TestChain, hashes: list[str]) -> None:
    mined = await anvil.mined_from(api.signers[0])
    assert len(hashes) == COUNT
    assert sorted(tx["hash"] for tx in mined) == sorted(hashes)
    assert [int(tx["nonce"], 16) for tx in mined] == list(range(COUNT))
    assert sorted(int(tx["value"], 16) for tx in mined) == list(range(1, COUNT + 1))


async def output_of(*command: str | Path) -> str:
    """Run the program, require success within the time limit, and return its output."""
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


async def test_web3_py(rpc_calls: ApiServer, anvil: TestChain) -> None:
    # web3.py's time-out is 30 s, and `/rpc` has its own wait for a nonce: a busy machine needs longer for 200 calls.
    patient = {
        "timeout": ClientTimeout(total=WITHIN_S),
        "headers": {"Content-Type": "application/json", "Prefer": f"wait={MAX_WAIT_S}"},
    }
    web3 = AsyncWeb3(AsyncHTTPProvider(f"{rpc_calls.url}/rpc", request_kwargs=patient))
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
    await check_all_mined(rpc_calls, anvil, hashes)


async def test_ethers(
    rpc_calls: ApiServer, anvil: TestChain, npm_clients: NpmClients, tmp_path: Path
) -> None:
    await _check_script("send_ethers.mjs", rpc_calls, anvil, npm_clients, tmp_path)


async def test_viem(rpc_calls: ApiServer, anvil: TestChain, npm_clients: NpmClients, tmp_path: Path) -> None:
    await _check_script("send_viem.mjs", rpc_calls, anvil, npm_clients, tmp_path)


async def test_viem_and_ethers_decode_a_revert(
    rpc_calls: ApiServer, anvil: TestChain, npm_clients: NpmClients, tmp_path: Path
) -> None:
    contract = "0x" + "c0de" * 10
    left = Web3.keccak(text="Nope(uint256)")[:4] + (7).to_bytes(32, "big")
    # The code copies the bytes behind it to memory and reverts with them.
    await anvil.call("anvil_setCode", contract, "0x6024600a5f3960245ffd" + left.hex())
    script = npm_clients.beside(tmp_path, "revert.mjs")
    said = await output_of(
        npm_clients.node,
        script,
        f"{rpc_calls.url}/rpc",
        rpc_calls.signers[0],
        Web3.to_checksum_address(contract),
    )
    assert json.loads(said) == {"viem": "Nope(7)", "ethers": "Nope(7)"}


async def _check_script(
    name: str, api: ApiServer, anvil: TestChain, npm_clients: NpmClients, folder: Path
) -> None:
    script = npm_clients.beside(folder, name)
    said = await output_of(npm_clients.node, script, f"{api.url}/rpc", api.signers[0], RECEIVER, str(COUNT))
    await check_all_mined(api, anvil, json.loads(said))


async def test_cast(rpc_calls: ApiServer, anvil: TestChain, npm_clients: NpmClients) -> None:
    """Cast looks up a nonce by itself, and twenty processes find the same one: each transaction still gets its own nonce."""
    room = asyncio.Semaphore(CASTS_AT_ONCE)
    fixed = ("--unlocked", "--from", rpc_calls.signers[0], "--rpc-url", f"{rpc_calls.url}/rpc", "--json")

    async def send(value: int) -> str:
        async with room:
            said = await output_of(npm_clients.cast, "send", RECEIVER, "--value", str(value), *fixed)
        receipt = json.loads(said)
        assert receipt["status"] == "0x1"
        return str(receipt["transactionHash"])

    async with asyncio.timeout(WITHIN_S):
        hashes = await asyncio.gather(*(send(value) for value in range(1, COUNT + 1)))
    await check_all_mined(rpc_calls, anvil, hashes)
