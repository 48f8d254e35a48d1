"""The command as users run it: an error is one line and exit code 2, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import asyncpg
import pytest
from eth_account import Account

from fencepost.adapters.postgres import migrate
from fencepost.dev.anvil import anvil_node
from fencepost.dev.postgres import embedded_postgres
from fencepost.domain.ids import parse_address
from fixtures.anvil import TestChain
from fixtures.client import run_fencepost
from fixtures.postgres import run_folder, with_database


async def assert_refused(
    *arguments: str, says: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    status, out, errors = await run_fencepost(*arguments, cwd=cwd, env=env)
    assert status == 2, errors
    assert out == ""
    assert errors.startswith("fencepost: ")
    assert errors.count("\n") == 1, errors
    assert says in errors


@asynccontextmanager
async def node(
    dsn: str, chain: TestChain, *arguments: str, open_files_max: int | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Yield the URL of a ready `fencepost up`."""
    environ = {
        **os.environ,
        "FENCEPOST_DATABASE_DSN": dsn,
        "FENCEPOST_RPC_URL": chain.rpc_url,
        "FENCEPOST_CHAIN_ID": str(chain.chain_id),
        "FENCEPOST_KEY_0": chain.private_keys[0].hex(),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fencepost", "up", "--json", "--port", "0", "--set", "confirmations.required=0", *arguments,
        env=environ, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    if open_files_max is not None:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (open_files_max, open_files_max))
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            ready = json.loads(await process.stdout.readline())
        yield process, ready["url"]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# ---- error reports


@pytest.mark.parametrize("command", ["up", "migrate"])
async def test_an_unreachable_database_is_reported(command: str) -> None:
    await assert_refused(
        command, "--port=0", "--rpc-url=http://127.0.0.1:1", "--dsn=postgresql://me:hush@127.0.0.1:1/x",
        says="connection refused",
    )  # fmt: skip


async def test_the_password_is_not_printed(dsn: str) -> None:
    wrong = dsn.replace(dsn.split(":")[2].split("@", maxsplit=1)[0], "not-the-secret")
    status, out, errors = await run_fencepost("migrate", "--dsn", wrong)
    assert status == 2
    assert "rejected the user or password" in errors
    assert "not-the-secret" not in out + errors


async def test_a_missing_database_is_reported(dsn: str) -> None:
    await assert_refused("migrate", "--dsn", with_database(dsn, "nowhere"), says="does not exist")


async def test_a_missing_right_to_create_tables_is_reported(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    role = f"poor_{os.getpid()}_{time.monotonic_ns()}"
    try:
        await connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'poor'")
        await connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        poor = empty_dsn.replace(empty_dsn.split("//")[1].split("@", maxsplit=1)[0], f"{role}:poor")
        await assert_refused("migrate", "--dsn", poor, says="grant")
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    finally:
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await connection.close()


async def test_an_occupied_port_is_reported(dsn: str, anvil: TestChain) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        await assert_refused(
            "up",
            f"--port={port}",
            "--dsn",
            dsn,
            "--rpc-url",
            anvil.rpc_url,
            "--chain-id=31337",
            says=f"127.0.0.1:{port}",
        )


async def test_a_missing_chain_id_is_reported(dsn: str, anvil: TestChain) -> None:
    await assert_refused(
        "up", "--port=0", "--dsn", dsn, "--rpc-url", anvil.rpc_url, says="set chains.default.id = 31337"
    )
    await assert_refused(
        "up", "--port=0", "--dsn", dsn, "--rpc-url=http://127.0.0.1:1", says="chains.default.id is required"
    )


async def test_a_wrong_chain_is_reported(dsn: str, anvil: TestChain) -> None:
    await assert_refused(
        "up", "--port=0", "--dsn", dsn, "--rpc-url", anvil.rpc_url, "--chain-id=1", says="31337"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[lease\n", "line 1"),
        ("[lease]\nduraton = '5s'\n", "lease.duration"),
        ("[lease]\nduration = 'soon'\n", "lease.duration"),
        ("[api]\nport = 99999\n", "65535"),
    ],
)
async def test_an_invalid_settings_file_is_reported(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "fencepost.toml").write_text(text)
    await assert_refused("up", says=says, cwd=tmp_path)


async def test_an_unknown_variable_and_an_unknown_key_are_reported() -> None:
    await assert_refused("config", env={"FENCEPOST_LEASE_DURATON": "5s"}, says="FENCEPOST_LEASE_DURATION")
    await assert_refused("up", "--set", "lease.duraton=5s", says="lease.duration")
    await assert_refused("up", "--set", "lease.duration", says="key=value")


async def test_a_public_address_needs_api_keys(dsn: str, anvil: TestChain) -> None:
    await assert_refused(
        "up", "--port=0", "--host=0.0.0.0", "--dsn", dsn, "--rpc-url", anvil.rpc_url, "--chain-id=31337",
        says="fencepost keys create"
    )  # fmt: skip


async def test_the_last_admin_key_is_revoked_only_by_force(dsn: str) -> None:
    status, _, errors = await run_fencepost("migrate", "--dsn", dsn)
    assert status == 0, errors
    status, out, errors = await run_fencepost(
        "keys", "create", "boss", "--scope", "admin", "--json", "--dsn", dsn
    )
    assert status == 0, errors
    key_id = json.loads(out)["id"]
    status, _, errors = await run_fencepost("keys", "revoke", key_id, "--dsn", dsn)
    assert (status, "--force" in errors) == (1, True), errors
    status, out, _ = await run_fencepost("keys", "revoke", key_id, "--force", "--dsn", dsn)
    assert (status, "revoked" in out) == (0, True)


async def test_an_unknown_command_exits_with_2() -> None:
    status, _, errors = await run_fencepost("upp")
    assert status == 2
    assert "upp" in errors


# ---- normal operation


async def test_idle_sockets_beyond_the_file_limit_do_not_block_a_node(dsn: str, anvil: TestChain) -> None:
    async with node(dsn, anvil, open_files_max=128) as (_, url), aiohttp.ClientSession() as session:
        port = int(url.rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(130)]
        half = [socket.create_connection(("127.0.0.1", port)) for _ in range(130)]
        try:
            for connection in half:
                with suppress(OSError):  # the node has closed idle connections already
                    connection.sendall(b"POST /api/v1/tx HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-le")
            for path in ("/healthz", "/readyz", "/api/v1/signers"):  # the last two read the database
                async with session.get(url + path, timeout=aiohttp.ClientTimeout(20)) as answer:
                    assert answer.status == 200, path
            signer = parse_address(Account.from_key(anvil.private_keys[0]).address)
            asked = {"signer": signer, "requestId": "s", "payload": {"to": signer}}
            async with session.post(f"{url}/api/v1/tx?wait=confirmed&timeout=60", json=asked) as answer:
                assert (await answer.json())["state"] == "CONFIRMED"  # and the endpoint
        finally:
            for connection in (*silent, *half):
                connection.close()


async def test_a_node_is_ready_and_healthy_and_stops_promptly(dsn: str, anvil: TestChain) -> None:
    began_s = time.monotonic()
    async with node(dsn, anvil) as (process, url):
        started_s = time.monotonic() - began_s
        async with aiohttp.ClientSession() as session:
            for path in ("/healthz", "/readyz", "/version", "/docs", "/openapi.json"):
                async with session.get(url + path) as response:
                    assert response.status == 200, path
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(max(5, 2 * started_s)):
            assert await process.wait() == 0


async def test_ctrl_c_stops_a_node(dsn: str, anvil: TestChain) -> None:
    async with node(dsn, anvil) as (process, _):
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(60):
            assert await process.wait() == 0


async def test_a_request_over_http_is_mined(dsn: str, anvil: TestChain) -> None:
    async with node(dsn, anvil) as (_, url), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/api/v1/signers") as response:
            signer = json.dumps(await response.json()).split('"0x')[1][:40]
        body = {"signer": f"0x{signer}", "requestId": "one", "payload": {"to": f"0x{signer}", "value": "1"}}
        async with session.post(f"{url}/api/v1/tx?wait=confirmed", json=body) as response:
            answer = await response.json()
            assert response.status in (200, 202), answer
        assert answer["state"] == "CONFIRMED"
        assert await anvil.nonce(f"0x{signer}") == 1


async def test_doctor_reports_a_healthy_node(anvil: TestChain) -> None:
    key = {"FENCEPOST_KEY_0": anvil.private_keys[0].hex()}
    async with embedded_postgres(run_folder() / f"doctor-{os.getpid()}") as server:
        await migrate.apply(server.dsn)
        status, out, errors = await run_fencepost(
            "doctor", "--json", "--dsn", server.dsn, "--rpc-url", anvil.rpc_url, "--chain-id=31337", env=key
        )
    assert status == 0, out + errors
    checks = {row["check"]: row for row in json.loads(out)}
    assert {"python", "database", "durability", "clock", "migrations", "keys", "balance"} <= set(checks)
    assert all(row["verdict"] == "ok" for row in checks.values())


async def test_doctor_reports_faults(dsn: str) -> None:
    status, out, _ = await run_fencepost(
        "doctor", "--json", "--dsn", dsn, "--rpc-url=http://127.0.0.1:1", "--chain-id=31337"
    )
    assert status == 1
    faults = [row["detail"] for row in json.loads(out) if row["verdict"] == "fail"]
    assert any("127.0.0.1:1" in detail for detail in faults)
    assert any("fsync off" in detail for detail in faults)  # off on the test server


async def test_doctor_names_the_endpoint_that_serves_another_chain(
    dsn: str, anvil: TestChain, anvil_binary: Path, tmp_path: Path
) -> None:
    """The node runs without it, so the chain itself is well."""
    async with anvil_node(binary=anvil_binary, run_dir=tmp_path / "other", chain_id=4242) as other:
        config = tmp_path / "two.toml"
        urls = json.dumps([anvil.rpc_url, other.rpc_url])
        config.write_text(f"[chains.default]\nid = 31337\nrpc_urls = {urls}\n")
        status, out, _ = await run_fencepost("doctor", "--json", "--dsn", dsn, "--config", str(config))
    assert status == 1
    checks = json.loads(out)
    assert [row["verdict"] for row in checks if row["check"] == "chain default"] == ["ok"]
    endpoints = {row["verdict"]: row["detail"] for row in checks if row["check"] == "endpoint of default"}
    assert set(endpoints) == {"ok", "fail"}
    assert other.rpc_url in endpoints["fail"]
    assert "chain 4242" in endpoints["fail"]


async def test_doctor_compares_the_first_block_with_the_database(
    dsn: str, anvil: TestChain, anvil_binary: Path, tmp_path: Path
) -> None:
    """A dev chain that was started anew has the same id and another first block; doctor stores neither."""
    place = ("doctor", "--json", "--dsn", dsn, "--chain-id=31337", "--rpc-url")

    async def chain_check(url: str) -> tuple[str, str]:
        _, out, _ = await run_fencepost(*place, url)
        (check,) = [row for row in json.loads(out) if row["check"] == "chain default"]
        return check["verdict"], check["detail"]

    assert (await chain_check(anvil.rpc_url))[0] == "ok"
    async with anvil_node(
        binary=anvil_binary, run_dir=tmp_path / "anew", extra=["--timestamp", "1600000000"]
    ) as anew:
        assert (await chain_check(anew.rpc_url))[0] == "ok"  # the database has used neither of them
        async with node(dsn, anvil):
            pass
        verdict, detail = await chain_check(anew.rpc_url)
        assert (verdict, anew.rpc_url in detail) == ("fail", True)
        assert "use a new database" in detail
    assert (await chain_check(anvil.rpc_url))[0] == "ok"


async def test_migrate_reports_what_it_did(empty_dsn: str) -> None:
    status, out, _ = await run_fencepost("migrate", "status", "--json", "--dsn", empty_dsn)
    assert status == 0
    assert {row["state"] for row in json.loads(out)} == {"missing"}
    status, out, _ = await run_fencepost("migrate", "--json", "--dsn", empty_dsn)
    assert {row["state"] for row in json.loads(out)} == {"applied now"}
    status, out, _ = await run_fencepost("migrate", "--json", "--dsn", empty_dsn)
    assert {row["state"] for row in json.loads(out)} == {"applied"}
    status, out, _ = await run_fencepost("migrate", "--sql")
    assert "CREATE TABLE signer_lease" in out


async def test_a_node_without_auto_migrate_rejects_an_old_schema(empty_dsn: str, anvil: TestChain) -> None:
    await assert_refused(
        "up", "--port=0", "--dsn", empty_dsn, "--rpc-url", anvil.rpc_url, "--set=database.migrate_on_start=false",
        says="run fencepost migrate",
    )  # fmt: skip


async def test_help_lists_every_command() -> None:
    status, out, _ = await run_fencepost("--help")
    assert status == 0
    assert all(command in out for command in ("up", "demo", "migrate", "doctor", "config", "version"))
