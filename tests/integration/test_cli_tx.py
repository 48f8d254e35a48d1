"""Send, query and operate from the command line against a real node: readable output, JSON, exit codes."""

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
from fixtures.anvil import TestChain
from fixtures.client import WITHIN_S, node_at, run_fencepost

RECEIVER = "0x" + "5e" * 20
COMMANDS = ("cancel", "suspend", "resume", "resubmit", "bump", "pause", "drain", "protect", "unprotect")


@dataclass(frozen=True, slots=True)
class Terminal:
    """A user of the command line with a node's URL."""

    url: str
    dsn: str
    folder: Path
    signers: tuple[str, ...] = ()
    api_key: str = ""

    async def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        if arguments[0] in ("tx", "signer") and arguments[1] in COMMANDS:
            arguments += (
                "--timeout=2m",
            )  # until the command is carried out: the default wait may be too short on a busy machine
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


async def test_a_transfer_prints_the_hash_and_the_block(terminal: Terminal, anvil: TestChain) -> None:
    before = int(await anvil.call("eth_getBalance", RECEIVER, "latest"), 16)
    send = ("send", "--from", terminal.signers[0], "--to", RECEIVER, "--value", "0.1ether")
    out, errors = await terminal.run(*send, "--request-id=one", "--wait=confirmed")
    assert int(await anvil.call("eth_getBalance", RECEIVER, "latest"), 16) - before == 10**17
    shown = {line[:14].strip(): line[14:].strip() for line in out.splitlines()}
    assert shown["state"] == "CONFIRMED"
    receipt = await anvil.call("eth_getTransactionReceipt", shown["hash"])
    assert shown["block"].split()[0] == str(int(receipt["blockNumber"], 16))
    assert errors == "fencepost: request id one\n"  # progress is for terminals

    again = await terminal.json(*send, "--request-id=one", "--wait=confirmed")
    assert again["txId"] == shown["tx"]
    _, errors = await terminal.run(*send[:-1], "1", "--request-id=one", code=2)
    assert "was used with another payload" in errors
    assert errors.count("\n") == 2


async def test_a_terminal_shows_the_states_as_they_pass(terminal: Terminal) -> None:
    me = terminal.signers[0]
    await terminal.run("signer", "pause", me)  # otherwise it might finish before the first read
    here, there = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fencepost", "send", "--from", me, "--to", RECEIVER, "--wait=confirmed",
        env={**os.environ, "FENCEPOST_URL": terminal.url, "TERM": "xterm", "COLUMNS": "200"}, cwd=terminal.folder,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=there,
    )  # fmt: skip
    os.close(there)
    try:
        async with asyncio.timeout(WITHIN_S):
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
        return ""  # Linux raises EIO at the end of a terminal


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
    _, errors = await terminal.run("call-contract", RECEIVER, "f(uint8)", "300", "--from", me, code=2)
    assert "uint8" in errors
    _, errors = await terminal.run("call-contract", RECEIVER, "f(uint8)", "--from", me, code=2)
    assert "takes 1 arguments" in errors


async def test_a_failed_or_late_transaction_exits_with_1(terminal: Terminal) -> None:
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
        "send", "--from", me, "--to", RECEIVER, "--wait=mined", "--timeout=200ms", code=1
    )
    assert "QUEUED" in out
    assert "fencepost tx watch" in errors


async def test_usage_and_environment_errors_exit_with_2(terminal: Terminal) -> None:
    me = terminal.signers[0]
    for arguments, says in [
        (("send", "--to", RECEIVER), "--from"),
        (("send", "--from", me), "--to"),
        (("send", "--from", me, "--to", RECEIVER, "--value=0.1"), "did you mean 0.1ether?"),
        (("send", "--from", me, "--to", RECEIVER, "--timeout=soon"), "duration"),
        (("send", "--from", "0x12", "--to", RECEIVER), "signer"),
        (("send", "--from", "0x" + "11" * 20, "--to", RECEIVER), "No key is configured"),
        (("send", "--from", me, "--to", RECEIVER, "--max-fee=1gwei"), "together"),
        (("nodes", "--url", "http://127.0.0.1:1"), "does not answer"),
        (("nodes", "--url", "nonsense"), "must be"),
        (("signer", "unprotect", me, "--reason=x"), "--decision"),
    ]:
        _, errors = await terminal.run(*arguments, code=2)
        assert says in errors, arguments


async def test_transactions_are_listed_shown_watched_and_commanded(
    terminal: Terminal, anvil: TestChain
) -> None:
    me = terminal.signers[0]
    await anvil.call("evm_setAutomine", False)
    sent = await terminal.json(
        "send", "--from", me, "--to", RECEIVER, "--request-id=r1", "--tag=t", "--wait=submitted"
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


async def test_signers_are_shown_and_commanded(terminal: Terminal) -> None:
    me = terminal.signers[0]
    assert me in (await terminal.run("signer", "list"))[0]
    await terminal.json("send", "--from", me, "--to", RECEIVER, "--wait=confirmed")
    out, _ = await terminal.run("signer", "show", me)
    assert "ACTIVE" in out
    assert "ether" in out
    assert (await terminal.json("signer", "drain", me))["drained"] is True
    assert "PAUSED" in (await terminal.run("signer", "show", me))[0]
    await terminal.run("signer", "resume", me)
    await terminal.run("signer", "protect", me, "--reason=strange")
    assert "PROTECT: strange" in (await terminal.run("signer", "show", me))[0]
    await terminal.run("signer", "resume", me, code=1)  # it is protected, not paused
    out, _ = await terminal.run("signer", "unprotect", me, "--decision=keep", "--reason=fine")
    assert out.startswith("unprotect: active, keep: the next nonce stays ")
    out, _ = await terminal.run("nodes")
    assert "node-1" in out
    assert "this node" in out


async def test_keys_are_created_listed_and_revoked(terminal: Terminal) -> None:
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
    sent = await keyed.json("send", "--from", me, "--to", RECEIVER, "--wait=confirmed")
    assert sent["state"] == "CONFIRMED"
    _, errors = await keyed.run("signer", "pause", me, code=2)
    assert "The API key lacks a scope" in errors
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


async def test_keys_of_a_database_that_is_not_migrated_are_rejected(empty_dsn: str) -> None:
    status, _, errors = await run_fencepost("keys", "list", "--dsn", empty_dsn)
    assert status == 2
    assert "fencepost migrate" in errors


@pytest.mark.parametrize(
    "command", [("send",), ("call-contract",), ("tx", "list"), ("signer", "drain"), ("keys", "create")]
)
async def test_help_is_printed(command: tuple[str, ...]) -> None:
    status, out, _ = await run_fencepost(*command, "--help")
    assert status == 0
    assert "--json" in out


async def test_a_paused_signer_is_explained_everywhere(terminal: Terminal) -> None:
    me = terminal.signers[0]
    out, _ = await terminal.run("status")
    assert out.startswith("nothing is wrong")
    await terminal.run("signer", "pause", me, "--reason=maintenance")
    send = ("send", "--from", me, "--to", RECEIVER, "--request-id=waits", "--wait=confirmed")
    out, errors = await terminal.run(*send, "--timeout=1s", code=1)
    assert "signer_paused" in errors
    assert f"fencepost signer resume {me}" in errors
    tx_id = {line[:14].strip(): line[14:].strip() for line in out.splitlines()}["tx"]
    for words in ((tx_id,), ("waits", "--from", me)):
        found = await terminal.json("tx", "explain", *words, code=1)
        assert found["cause"] == "signer_paused"
    out, _ = await terminal.run("tx", "show", tx_id, "--include=payload")
    assert f"payload       to {RECEIVER}" in out
    assert "cause         signer_paused: " in out
    out, _ = await terminal.run("status", code=1)
    assert "signer_paused" in out
    out, _ = await terminal.run("signer", "show", me)
    assert "head          block " in out
    assert "cause         signer_paused: " in out
    await terminal.run("signer", "resume", me)
    await terminal.run(*send)
    assert (await terminal.json("tx", "explain", tx_id))["cause"] == "done"
    out, _ = await terminal.run("tx", "show", tx_id, "--include=receipt", "--include=confirmations")
    assert "receipt       gasUsed 21000" in out
    assert "cause" not in out


async def test_an_artifact_is_deployed_and_called_by_name(terminal: Terminal) -> None:
    me = terminal.signers[0]
    abi = [
        {"type": "constructor", "inputs": [{"type": "uint256", "name": "limit"}]},
        {"type": "function", "name": "ping", "inputs": [{"type": "bool"}], "outputs": []},
    ]
    artifact = terminal.folder / "Ping.json"
    # The code of the contract is one STOP; the argument of the constructor stands behind it and is ignored.
    artifact.write_text(json.dumps({"abi": abi, "bytecode": {"object": "0x6001600c60003960016000f300"}}))
    out, _ = await terminal.run("deploy", str(artifact), "7", "--from", me, "--wait=confirmed")
    shown = {line[:14].strip(): line[14:].strip() for line in out.splitlines()}
    assert shown["state"] == "CONFIRMED"
    called = await terminal.json(
        "call-contract",
        shown["contract"],
        "ping",
        "true",
        "--abi",
        str(artifact),
        "--from",
        me,
        "--wait=confirmed",
    )
    assert called["state"] == "CONFIRMED"
    _, errors = await terminal.run("deploy", str(artifact), "--from", me, code=2)
    assert "takes 1 arguments, 0 were given" in errors


async def test_the_version_and_a_missing_key(terminal: Terminal) -> None:
    assert (await terminal.run("--version"))[0].strip()
    await terminal.run("keys", "create", "someone", "--scope", "tx:read")
    _, errors = await terminal.run("tx", "list", code=2)
    assert "set FENCEPOST_API_KEY" in errors
