"""A node that stops releases its leases and answers every waiting caller, so the next node continues immediately."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from fencepost.dev.node_process import NodeProcess
from fencepost.dev.node_process import start_node as start_served_node
from fixtures.core import (
    SINK,
    WITHIN_S,
    Account,
    Client,
    DatabaseReader,
    OwnChain,
    check_all_mined_once,
    check_sealed,
    eventually,
)
from fixtures.nodes import PIPELINED, StartNode, open_fencepost

LONG_LEASE = {
    "lease.duration": "60s",
    "lease.renew_interval": "10s",
    **PIPELINED,
    "nonce.max_in_flight": "4",
}
WELL_UNDER_THE_LEASE_S = 20.0


async def test_the_next_node_continues_well_before_the_lease_would_expire(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode
) -> None:
    account = interval_chain.accounts[0]
    ids = await client.ask(account, 60)
    leaving = start_node(interval_chain, account, name="leaving", options=LONG_LEASE)
    await db.until_event(ids[8], "AssignNonce")
    async with open_fencepost(dsn, interval_chain, account, options=LONG_LEASE):
        leaving.signal(signal.SIGTERM)
        assert await leaving.ended() == 0

        async def is_taken_over() -> bool:
            return len(await db.terms(account)) == 2

        await eventually(is_taken_over, within_s=WELL_UNDER_THE_LEASE_S)
        await db.until_states(account, CONFIRMED=60)
    first, second = await db.terms(account)
    assert first["owner_node"] == "leaving"
    assert second["owner_node"] != "leaving"
    await check_all_mined_once(db, interval_chain, account, 60)


async def test_a_node_that_stops_during_work_leaves_nothing_half_done(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    """Stop and open it again several times while it works."""
    account = interval_chain.accounts[0]
    ids = await client.ask(account, 24)
    for done in (3, 9, 15):
        async with open_fencepost(dsn, interval_chain, account, options=LONG_LEASE):
            await db.until_event(ids[done], "SendResult")
    async with open_fencepost(dsn, interval_chain, account, options=LONG_LEASE):
        await db.until_states(account, CONFIRMED=24)
    await check_all_mined_once(db, interval_chain, account, 24)


async def test_a_node_leaves_no_lease_behind_whenever_it_stops(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    """Also while it acquires one: each round stops the node a little later after its start."""
    account = interval_chain.accounts[0]
    await client.ask(account, 40)
    for turn in range(24):
        async with open_fencepost(dsn, interval_chain, account, options=LONG_LEASE):
            await asyncio.sleep(turn * 0.0015)
        held = await db.connection.fetchval(
            "SELECT count(*) FROM signer_lease WHERE expires_at > clock_timestamp()"
        )
        assert held == 0, turn
    await check_sealed(db)


# ---- calls in progress


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A call that was sent and has no answer yet."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> tuple[int, Mapping[str, str], Any]:
        """Return status, headers and body; the server closes the connection afterwards."""
        async with asyncio.timeout(WITHIN_S):
            said = await self.reader.read()
        head, _, body = said.partition(b"\r\n\r\n")
        assert head, "cut off without an answer"
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert int(headers["content-length"]) == len(body)
        return int(first.split()[1]), headers, json.loads(body)


@asynccontextmanager
async def called(url: str, method: str, path: str, body: object = None) -> AsyncIterator[UnderWay]:
    """Send a call; inside the block the server has received it."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
        for _ in range(3):  # a later request has its answer, so the server has read the earlier one
            await asked(url, "GET", "/healthz")
        yield UnderWay(reader, writer)
    finally:
        writer.close()


async def asked(url: str, method: str, path: str, body: object = None) -> Any:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WITHIN_S)) as session,
        session.request(method, url + path, json=body) as answer,
    ):
        assert answer.status < 300, await answer.text()
        return await answer.json()


@asynccontextmanager
async def served(
    dsn: str, chain: OwnChain, account: Account, folder: Path, options: Mapping[str, str]
) -> AsyncIterator[NodeProcess]:
    node = await start_served_node(
        "leaving",
        dsn=dsn,
        rpc_url=chain.rpc_url,
        private_keys=[account.key],
        settings=options,
        log=folder / "leaving.log",
    )
    try:
        yield node
    finally:
        await node.stop()


def transfer(account: Account, name: str) -> dict[str, Any]:
    return {
        "signer": account.address,
        "requestId": name,
        "payload": {"to": SINK, "value": "1", "gas": 21_000},
    }


async def test_a_waiting_caller_learns_that_the_node_stops_and_another_node_takes_over_immediately(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, tmp_path: Path
) -> None:
    """No block is mined, so no milestone is reached."""
    account = manual_chain.accounts[0]
    async with served(dsn, manual_chain, account, tmp_path, LONG_LEASE) as leaving:
        stored = await asked(leaving.url, "POST", "/api/v1/tx", transfer(account, "first"))
        await db.until_states(account, SUBMITTED=1)
        looking_at = f"/api/v1/tx/{stored['txId']}?wait=confirmed&timeout=60"
        sending = "/api/v1/tx?wait=mined&timeout=60"
        async with (
            open_fencepost(dsn, manual_chain, account, options=LONG_LEASE),
            called(leaving.url, "GET", looking_at) as looks,
            called(leaving.url, "POST", sending, transfer(account, "second")) as sends,
        ):
            await db.until_states(account, SUBMITTED=2)
            leaving.process.send_signal(signal.SIGTERM)
            status, headers, problem = await looks.answer()
            assert (status, problem["code"]) == (503, "stopping")
            assert headers["content-type"] == "application/problem+json"
            assert int(headers["retry-after"]) >= 1
            status, headers, taken = await sends.answer()
            assert (status, taken["requestId"]) == (202, "second")

            async def is_taken_over() -> bool:
                return len(await db.terms(account)) == 2

            await eventually(is_taken_over, within_s=WELL_UNDER_THE_LEASE_S)
        async with asyncio.timeout(WITHIN_S):
            assert await leaving.process.wait() == 0


async def test_a_call_that_the_database_delays_learns_that_the_node_stops(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, tmp_path: Path
) -> None:
    account = manual_chain.accounts[0]

    async def waits_for_the_table() -> bool:
        query = "SELECT count(*) FROM pg_locks WHERE relation = 'managed_tx'::regclass AND NOT granted"
        return int(await db.connection.fetchval(query)) > 0

    async with served(dsn, manual_chain, account, tmp_path, LONG_LEASE) as leaving:
        await asked(leaving.url, "POST", "/api/v1/tx", transfer(account, "first"))
        async with called_while_locked(db, leaving, transfer(account, "second")) as sends:
            await eventually(waits_for_the_table)
            leaving.process.send_signal(signal.SIGTERM)
            status, headers, problem = await sends.answer()
            assert (status, problem["code"]) == (503, "stopping")
            assert headers["content-type"] == "application/problem+json"
            async with asyncio.timeout(WITHIN_S):
                assert await leaving.process.wait() == 0
    assert "Traceback" not in (tmp_path / "leaving.log").read_text()


@asynccontextmanager
async def called_while_locked(db: DatabaseReader, node: NodeProcess, body: object) -> AsyncIterator[UnderWay]:
    async with db.connection.transaction():
        await db.connection.execute("LOCK TABLE managed_tx IN ACCESS EXCLUSIVE MODE")
        async with called(node.url, "POST", "/api/v1/tx", body) as sends:
            yield sends
