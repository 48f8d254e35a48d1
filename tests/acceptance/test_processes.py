"""`fencepost up --processes`: several nodes behind one port, kept alive by their parent, gone when it goes."""

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

from fencepost.cli.processes import STOP_WITHIN_S
from fix_core import SINK, WITHIN_S, Account, Book, OwnChain, check_all_mined_once, eventually
from fix_nodes import FAST

COUNT = 3


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@dataclass(slots=True)
class Parent:
    process: asyncio.subprocess.Process
    url: str

    def children(self) -> list[int]:
        """The nodes; not the helper that Python starts beside them."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    async def ended(self, pids: list[int]) -> None:
        async def are_gone() -> bool:
            return not any(is_alive(pid) for pid in pids)

        await eventually(are_gone)


@pytest_asyncio.fixture
async def parent(dsn: str, ticking: OwnChain) -> AsyncIterator[Parent]:
    options = {
        **FAST,
        "lease.duration": "10s",
        "lease.renew_interval": "1s",
        "nonce.mode": "pipelined",
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
            "FENCEPOST_RPC_URL": ticking.rpc_url,
            "FENCEPOST_KEY_A": ticking.accounts[0].key,
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


async def live(book: Book) -> list[asyncpg.Record]:
    return await book.connection.fetch(
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
                raise AssertionError(f"nobody took request {number}")


async def test_several_nodes_behind_one_port_one_of_them_killed_then_all_stopped(
    parent: Parent, ticking: OwnChain, book: Book
) -> None:
    account = ticking.accounts[0]
    before = await live(book)
    assert [row["node_id"] for row in before] == ["here-1", "here-2", "here-3"]
    assert len({row["incarnation"] for row in before}) == COUNT
    children = parent.children()
    assert len(children) == COUNT
    async with aiohttp.ClientSession() as session:
        for row in before:
            async with session.get(f"{row['url']}/metrics") as answer:
                assert "worker_queue_depth" in await answer.text()
    await send(parent.url, account, range(1, 11))
    os.kill(children[0], signal.SIGKILL)
    await send(parent.url, account, range(11, 21))

    async def is_back() -> bool:
        now = await live(book)
        known = {row["incarnation"] for row in before}
        return len(now) == COUNT and len({row["incarnation"] for row in now} - known) == 1

    await eventually(is_back)
    await book.until_states(account, CONFIRMED=20)
    children = parent.children()
    parent.process.terminate()
    async with asyncio.timeout(2 * STOP_WITHIN_S):
        assert await parent.process.wait() == 0
    await parent.ended(children)
    assert not await live(book), "they gave their names back"
    await check_all_mined_once(book, ticking, account, 20)


async def test_children_whose_parent_is_killed_end_by_themselves(parent: Parent) -> None:
    children = parent.children()
    parent.process.kill()
    await parent.ended(children)
