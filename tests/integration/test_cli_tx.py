"""Sending, looking and operating from the command line, against a real node: output for people, JSON, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fencepost.application.api_keys import Scope
from fix_anvil import TestChain
from fix_client import node_at, run_fencepost

SOMEBODY = "0x" + "5e" * 20


@dataclass(frozen=True, slots=True)
class Terminal:
    """A person with a node's URL."""

    url: str
    dsn: str
    folder: Path
    signers: tuple[str, ...] = ()
    api_key: str = ""

    async def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        env = {"FENCEPOST_URL": self.url, "FENCEPOST_DATABASE_DSN": self.dsn}
        env |= {"FENCEPOST_API_KEY": self.api_key} if self.api_key else {}
        status, out, errors = await run_fencepost(*arguments, env=env, cwd=self.folder)
        assert status == code, (status, out, errors)
        return out, errors

    async def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads((await self.run(*arguments, "--json", code=code))[0])


@pytest_asyncio.fixture
async def terminal(dsn: str, anvil: TestChain, tmp_path: Path) -> AsyncIterator[Terminal]:
    async with node_at(dsn, anvil, tmp_path / "node.log") as url:
        bare = Terminal(url, dsn, tmp_path)
        signers = tuple(one["address"] for one in await bare.json("signer", "list"))
        yield Terminal(url, dsn, tmp_path, signers)


async def test_value_is_sent_and_the_hash_and_the_block_are_told(
    terminal: Terminal, anvil: TestChain
) -> None:
    before = int(await anvil.call("eth_getBalance", SOMEBODY, "latest"), 16)
    send = ("send", "--from", terminal.signers[0], "--to", SOMEBODY, "--value", "0.1ether")
    out, errors = await terminal.run(*send, "--request-id=one", "--wait=confirmed")
    assert int(await anvil.call("eth_getBalance", SOMEBODY, "latest"), 16) - before == 10**17
    told = {line[:14].strip(): line[14:].strip() for line in out.splitlines()}
    assert told["state"] == "CONFIRMED"
    receipt = await anvil.call("eth_getTransactionReceipt", told["hash"])
    assert told["block"].split()[0] == str(int(receipt["blockNumber"], 16))
    assert errors == ""  # progress is for terminals

    again = await terminal.json(*send, "--request-id=one", "--wait=confirmed")
    assert again["txId"] == told["tx"]
    _, errors = await terminal.run(*send[:-1], "1", "--request-id=one", code=2)
    assert "known with another payload" in errors
    assert errors.count("\n") == 1


async def test_on_a_terminal_the_states_are_seen_going_by(terminal: Terminal) -> None:
    me = terminal.signers[0]
    await terminal.run("signer", "pause", me)  # or it might have ended before anybody looks
    here, there = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fencepost", "send", "--from", me, "--to", SOMEBODY, "--wait=confirmed",
        env={**os.environ, "FENCEPOST_URL": terminal.url, "TERM": "xterm", "COLUMNS": "200"}, cwd=terminal.folder,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=there,
    )  # fmt: skip
    os.close(there)
    try:
        async with asyncio.timeout(60):
            line = ""
            while "QUEUED" not in line:
                more = await asyncio.to_thread(_read, here)
                assert more, f"it ended after {line}"
                line += more
            await terminal.run("signer", "resume", me)
            (out, _), line = await asyncio.gather(process.communicate(), asyncio.to_thread(_rest_of, here))
    finally:
        os.close(here)
    assert process.returncode == 0
    assert "CONFIRMED" in line
    assert "CONFIRMED" in out.decode()


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:
        return ""  # Linux says EIO where a file says end


def _rest_of(terminal: int) -> str:
    pieces = []
    while piece := _read(terminal):
        pieces.append(piece)
    return "".join(pieces)


async def test_a_contract_is_deployed_and_called_by_signature(terminal: Terminal, anvil: TestChain) -> None:
    me = terminal.signers[0]
    deployed = await terminal.json(
        "send", "--from", me, "--data", "0x6001600c60003960016000f300", "--wait=confirmed"
    )
    receipt = await anvil.call("eth_getTransactionReceipt", deployed["hash"])
    called = await terminal.json(
        "call-contract", receipt["contractAddress"], "f(address,uint256[],bool)", me, "[1,2]", "true",
        "--from", me, "--wait=confirmed", "--gas=100000",
    )  # fmt: skip
    sent = await anvil.call("eth_getTransactionByHash", called["hash"])
    assert me[2:] in sent["input"]
    _, errors = await terminal.run("call-contract", SOMEBODY, "f(uint8)", "300", "--from", me, code=2)
    assert "uint8" in errors
    _, errors = await terminal.run("call-contract", SOMEBODY, "f(uint8)", "--from", me, code=2)
    assert "takes 1 arguments" in errors


async def test_what_fails_or_does_not_come_is_exit_code_1(terminal: Terminal) -> None:
    me = terminal.signers[0]
    # INVALID as the code to deploy: the dry run reverts.
    failed = await terminal.json("send", "--from", me, "--data", "0xfe", "--wait=confirmed", code=1)
    assert failed["state"] == "FAILED"
    _, errors = await terminal.run("tx", "show", "0b6c39a4-86a0-4ae1-a3d2-3a3b6a2a0c11", code=1)
    assert errors.startswith("fencepost: ")
    await terminal.run("tx", "show", "0x" + "ab" * 32, code=1)
    await terminal.run("tx", "cancel", failed["txId"], code=1)
    await terminal.run("signer", "pause", me)
    out, errors = await terminal.run(
        "send", "--from", me, "--to", SOMEBODY, "--wait=mined", "--timeout=200ms", code=1
    )
    assert "QUEUED" in out
    assert "fencepost tx watch" in errors


async def test_usage_and_environment_are_exit_code_2(terminal: Terminal) -> None:
    me = terminal.signers[0]
    for arguments, says in [
        (("send", "--to", SOMEBODY), "--from"),
        (("send", "--from", me), "--to"),
        (("send", "--from", me, "--to", SOMEBODY, "--value=0.1"), "finer"),
        (("send", "--from", me, "--to", SOMEBODY, "--timeout=soon"), "duration"),
        (("send", "--from", "0x12", "--to", SOMEBODY), "signer"),
        (("send", "--from", "0x" + "11" * 20, "--to", SOMEBODY), "No key is configured"),
        (("send", "--from", me, "--to", SOMEBODY, "--max-fee=1gwei"), "together"),
        (("nodes", "--url", "http://127.0.0.1:1"), "does not answer"),
        (("nodes", "--url", "nonsense"), "must be"),
        (("signer", "unprotect", me, "--reason=x"), "--decision"),
    ]:
        _, errors = await terminal.run(*arguments, code=2)
        assert says in errors, arguments


async def test_transactions_are_listed_shown_watched_and_asked_something_of(
    terminal: Terminal, anvil: TestChain
) -> None:
    me = terminal.signers[0]
    await anvil.call("evm_setAutomine", False)
    sent = await terminal.json(
        "send", "--from", me, "--to", SOMEBODY, "--request-id=r1", "--tag=t", "--wait=submitted"
    )
    assert (await terminal.run("tx", "resubmit", sent["txId"]))[0] == "resubmit: it goes out again\n"
    assert (await terminal.run("tx", "bump", sent["txId"]))[0].startswith("bump: attempt 2 pays ")
    suspended = await terminal.json("tx", "suspend", sent["txId"], "--reason=look")
    assert suspended["tx"]["state"] == "SUSPENDED"
    assert (await terminal.json("tx", "resume", sent["txId"]))["done"] is True
    out, _ = await terminal.run("tx", "list", "--signer", me, "--tag=t")
    assert sent["txId"] in out
    assert await terminal.json("tx", "list", "--state=confirmed") == []
    await anvil.mine()
    out, _ = await terminal.run("tx", "watch", sent["txId"])
    assert "CONFIRMED" in out
    out, _ = await terminal.run("tx", "show", sent["hash"], "--include=attempts", "--include=history")
    assert "attempt 1" in out
    assert "history" in out
    by_request = await terminal.json("tx", "show", "r1", "--from", me)
    assert by_request["txId"] == sent["txId"]
    assert len(await terminal.json("tx", "list", "--limit=1")) == 1


async def test_signers_are_shown_and_asked_something_of(terminal: Terminal) -> None:
    me = terminal.signers[0]
    assert me in (await terminal.run("signer", "list"))[0]
    await terminal.json("send", "--from", me, "--to", SOMEBODY, "--wait=confirmed")
    out, _ = await terminal.run("signer", "show", me)
    assert "ACTIVE" in out
    assert "ether" in out
    assert (await terminal.json("signer", "drain", me))["drained"] is True
    assert "PAUSED" in (await terminal.run("signer", "show", me))[0]
    await terminal.run("signer", "resume", me)
    await terminal.run("signer", "protect", me, "--reason=strange")
    assert "PROTECT: strange" in (await terminal.run("signer", "show", me))[0]
    await terminal.run("signer", "pause", me, code=1)
    out, _ = await terminal.run("signer", "unprotect", me, "--decision=keep", "--reason=fine")
    assert out == "unprotect: active, keep\n"
    out, _ = await terminal.run("nodes")
    assert "node-1" in out
    assert "answers" in out


async def test_keys_are_made_listed_and_taken_back(terminal: Terminal) -> None:
    me = terminal.signers[0]
    out, errors = await terminal.run("keys", "create", "ops", "--scope=tx:write", "--signer", me, "--rate=50")
    token = out.strip()
    assert token.startswith("fp_")
    assert token not in errors
    key_id = token.split("_")[1]
    listed = await terminal.json("keys", "list")
    assert [(key["id"], key["scopes"], key["signers"]) for key in listed] == [
        (key_id, [Scope.TX_WRITE], [me])
    ]
    out, _ = await terminal.run("keys", "list")
    assert key_id in out
    assert token.split("_", 2)[2] not in out
    keyed = Terminal(terminal.url, terminal.dsn, terminal.folder, terminal.signers, token)
    sent = await keyed.json("send", "--from", me, "--to", SOMEBODY, "--wait=confirmed")
    assert sent["state"] == "CONFIRMED"
    _, errors = await keyed.run("signer", "pause", me, code=2)
    assert "may not do this" in errors
    await terminal.run("keys", "revoke", key_id)
    await terminal.run("keys", "revoke", key_id, code=1)
    for arguments, says in [
        (("keys", "create", "x", "--scope=everything"), "everything"),
        (("keys", "create", "x"), "--scope"),
        (("keys", "create", "x", "--scope=admin", "--signer=0x12"), "0x12"),
        (("keys", "create", " ", "--scope=admin"), "name"),
    ]:
        _, errors = await terminal.run(*arguments, code=2)
        assert says in errors, arguments


async def test_keys_of_a_database_that_is_not_migrated_are_refused(empty_dsn: str) -> None:
    status, _, errors = await run_fencepost("keys", "list", "--dsn", empty_dsn)
    assert status == 2
    assert "fencepost migrate" in errors


@pytest.mark.parametrize(
    "command", [("send",), ("call-contract",), ("tx", "list"), ("signer", "drain"), ("keys", "create")]
)
async def test_help_is_there(command: tuple[str, ...]) -> None:
    status, out, _ = await run_fencepost(*command, "--help")
    assert status == 0
    assert "--json" in out
