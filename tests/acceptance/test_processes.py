"""`fencepost up --processes`: a parent keeps several nodes behind one port alive, and they stop when it stops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import asyncpg
import pytest_asyncio

from fencepost.cli.processes import STOP_TIMEOUT_S
from fixtures.core import SINK, WITHIN_S, Account, DatabaseReader, OwnChain, check_all_mined_once, eventually
from fixtures.nodes import FAST, PIPELINED

COUNT = 3


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@dataclass(slots=True)
class Parent:
    process: asyncio.subprocess.Process
    url: str

    def children(self) -> list[int]:
        """Return the pids of the nodes, without the helper process that Python starts."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    async def ended(self, pids: list[int]) -> None:
        async def are_gone() -> bool:
            return not any(is_alive(pid) for pid in pids)

        await eventually(are_gone)


@pytest_asyncio.fixture
async def parent(dsn: str, interval_chain: OwnChain) -> AsyncIterator[Parent]:
    options = {
        **FAST,
        "lease.duration": "10s",
        "lease.renew_interval": "1s",
        **PIPELINED,
        "node.id": "here",
        "api.port": "0",
        "database.pool_size": "4",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fencepost", "up", "--json", "--processes", str(COUNT)),
        *(f"--set={key}={value}" for key, value in options.items()),
        env={
            **os.environ,
            "FENCEPOST_DATABASE_DSN": dsn,
            "FENCEPOST_RPC_URL": interval_chain.rpc_url,
            "FENCEPOST_CHAIN_ID": str(interval_chain.chain_id),
            "FENCEPOST_KEY_A": interval_chain.accounts[0].key,
        },
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            ready = json.loads(await process.stdout.readline())
        yield Parent(process, ready["url"])
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        async with asyncio.timeout(WITHIN_S):
            await process.wait()


async def live(db: DatabaseReader) -> list[asyncpg.Record]:
    return await db.connection.fetch(
        "SELECT * FROM fencepost_node WHERE expires_at > clock_timestamp() ORDER BY node_id"
    )


async def send(url: str, account: Account, numbers: range) -> None:
    async with aiohttp.ClientSession() as session:
        for number in numbers:
            request = {
                "signer": account.address,
                "requestId": f"order-{number}",
                "payload": {"to": SINK, "value": str(number)},
            }
            for _ in range(50):
                with suppress(aiohttp.ClientError):
                    async with session.post(f"{url}/api/v1/tx", json=request) as answer:
                        assert answer.status in (200, 202), await answer.text()
                        break
                await asyncio.sleep(0.1)
            else:
                raise AssertionError(f"no node accepted request {number}")


async def test_several_nodes_share_a_port_survive_one_kill_and_stop_together(
    parent: Parent, interval_chain: OwnChain, db: DatabaseReader
) -> None:
    account = interval_chain.accounts[0]
    before = await live(db)
    assert [row["node_id"] for row in before] == ["here-1", "here-2", "here-3"]
    assert len({row["incarnation"] for row in before}) == COUNT
    children = parent.children()
    assert len(children) == COUNT
    async with aiohttp.ClientSession() as session:
        for row in before:
            async with session.get(f"{row['url']}/metrics") as answer:
                assert "fencepost_worker_queue_depth" in await answer.text()
    await send(parent.url, account, range(1, 11))
    os.kill(children[0], signal.SIGKILL)
    await send(parent.url, account, range(11, 21))

    async def is_back() -> bool:
        now = await live(db)
        known = {row["incarnation"] for row in before}
        return len(now) == COUNT and len({row["incarnation"] for row in now} - known) == 1

    await eventually(is_back)
    await db.until_states(account, CONFIRMED=20)
    children = parent.children()
    parent.process.terminate()
    async with asyncio.timeout(2 * STOP_TIMEOUT_S):
        assert await parent.process.wait() == 0
    await parent.ended(children)
    assert not await live(db), "they gave their names back"
    await check_all_mined_once(db, interval_chain, account, 20)


async def test_child_processes_exit_when_their_parent_is_killed(parent: Parent) -> None:
    children = parent.children()
    parent.process.kill()
    await parent.ended(children)
