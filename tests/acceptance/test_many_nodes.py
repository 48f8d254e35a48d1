"""Three nodes, requests sent to any of them, nodes restarted and killed on the way: all mined once, no hole, in time."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio

from fencepost.dev.anvil import anvil_node
from fencepost.facade import Fencepost
from fencepost.lab.nodes import NodeProcess, start_node
from fencepost.runtime.routing import preferred
from fix_anvil import test_chain
from fix_core import (
    FAST,
    SINK,
    Account,
    Book,
    Client,
    OwnChain,
    StartNode,
    check_sealed,
    eventually,
    open_fencepost,
)
from fix_postgres import run_folder

LEASE_S = 2.0
MANY = {
    **FAST,
    "lease.duration": f"{LEASE_S}s",
    "nonce.mode": "pipelined",
    "nonce.max_in_flight": "16",
    "database.pool_size": "5",
    "confirmations.required": "1",
    "resubmit.interval": "5s",
}
SIGNERS = 20
REQUESTS = 2_000


@pytest_asyncio.fixture
async def wide(anvil_binary: Path) -> AsyncIterator[OwnChain]:
    """A chain with many accounts and a block every quarter of a second."""
    folder = run_folder() / f"chain-{uuid4().hex[:12]}"
    async with anvil_node(binary=anvil_binary, run_dir=folder, accounts=SIGNERS, block_time_s=0.25) as node:
        plain = test_chain(node)
        yield OwnChain(plain.rpc_url, plain.ws_url, plain.chain_id, plain.private_keys, plain.pid)


@dataclass(slots=True)
class Fleet:
    """Nodes as processes, each reached at its own URL."""

    dsn: str
    chain: OwnChain
    logs: Path
    options: dict[str, str]
    nodes: dict[str, NodeProcess] = field(default_factory=dict)

    async def start(self, *names: str) -> None:
        started = await asyncio.gather(
            *(
                start_node(
                    name,
                    dsn=self.dsn,
                    rpc_url=self.chain.rpc_url,
                    private_keys=[account.key for account in self.chain.accounts],
                    settings=self.options,
                    log=self.logs / f"{name}.log",
                )
                for name in names
            )
        )
        self.nodes |= {node.name: node for node in started}

    async def restart(self, name: str) -> None:
        """Callers are not told beforehand."""
        await self.nodes[name].stop()
        del self.nodes[name]
        await self.start(name)

    async def kill(self, name: str) -> None:
        await self.nodes[name].kill()

    def any_url(self) -> str:
        return random.choice([node.url for node in self.nodes.values()])

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))


@dataclass(slots=True)
class Crowd:
    """Callers who send each request to any node, and again to any node when they are told to, or not answered."""

    fleet: Fleet
    accounts: Sequence[Account]
    accepted: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    async def send_all(self, count: int, *, callers: int, rate_per_s: float) -> None:
        numbers = iter(range(count))
        began = asyncio.get_running_loop().time()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:

            async def caller() -> None:
                for number in numbers:
                    await asyncio.sleep(began + number / rate_per_s - asyncio.get_running_loop().time())
                    await self._send(session, number)

            async with asyncio.TaskGroup() as group:
                for _ in range(callers):
                    group.create_task(caller())

    async def _send(self, session: aiohttp.ClientSession, number: int) -> None:
        account = self.accounts[number % len(self.accounts)]
        request = {
            "signer": account.address,
            "requestId": f"order-{number}",
            "payload": {"to": SINK, "value": str(number + 1), "gas": 21_000},
        }
        for _ in range(200):
            try:
                async with session.post(f"{self.fleet.any_url()}/api/v1/tx", json=request) as answer:
                    self.answers[str(answer.status)] += 1
                    if answer.status in (200, 202):
                        self.accepted += 1
                        return
                    assert answer.status in (409, 429, 503), await answer.text()
            except (aiohttp.ClientError, TimeoutError, IndexError):
                self.answers["no answer"] += 1
            await asyncio.sleep(0.1)
        raise AssertionError(f"request {number} was never taken")

    async def until_accepted(self, count: int) -> None:
        async def are_accepted() -> bool:
            return self.accepted >= count

        await eventually(are_accepted, within_s=60)


async def check_everything_mined_once(book: Book, chain: OwnChain, accounts: Sequence[Account]) -> None:
    mined: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for tx in await chain.all_mined():
        mined[tx["from"]].append(tx)
    for account in accounts:
        rows = sorted(await book.rows(account), key=lambda row: row["nonce"])
        assert {row["state"] for row in rows} == {"CONFIRMED"}
        assert [row["nonce"] for row in rows] == list(range(len(rows)))
        on_chain = mined[account.address]
        assert [int(tx["nonce"], 16) for tx in on_chain] == list(range(len(rows)))
        assert [tx["hash"] for tx in on_chain] == [row["tx_hash"] for row in rows]
        assert [int(tx["value"], 16) for tx in on_chain] == [row["value"] for row in rows]
        assert (await book.cursor(account))["next_nonce"] == len(rows)
    await check_sealed(book)


async def all_confirmed(book: Book, count: int, within_s: float = 60.0) -> None:
    async def are_confirmed() -> bool:
        query = "SELECT count(*) FROM managed_tx WHERE state = 'CONFIRMED'"
        return int(await book.connection.fetchval(query)) == count

    try:
        await eventually(are_confirmed, within_s=within_s)
    except AssertionError:
        states = await book.connection.fetch("SELECT signer, state, count(*) FROM managed_tx GROUP BY 1, 2")
        leases = await book.connection.fetch("SELECT *, clock_timestamp() FROM signer_lease")
        raise AssertionError((states, leases)) from None


@pytest.mark.parametrize("mode", ["basic", "worker_queue"])
async def test_everything_is_mined_once_through_restarts_and_kills(
    dsn: str, wide: OwnChain, book: Book, tmp_path: Path, *, mode: str
) -> None:
    requests = REQUESTS if mode == "basic" else REQUESTS // 2
    fleet = Fleet(dsn, wide, tmp_path, {**MANY, "routing.mode": mode})
    crowd = Crowd(fleet, wide.accounts)
    try:
        await fleet.start("one", "two", "three")
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(crowd.send_all(requests, callers=8, rate_per_s=requests / 16))
            await crowd.until_accepted(requests // 10)
            for name in ("one", "two", "three"):
                await fleet.restart(name)
            await fleet.kill("two")
            await fleet.start("two")
            await fleet.kill("three")
            await fleet.start("three")
        await all_confirmed(book, requests)
        took_s = time.monotonic() - began
    finally:
        await fleet.stop()
    assert crowd.accepted == requests
    print(  # noqa: T201 - the figures are what one runs this for
        f"\n{mode}: {requests} transactions in {took_s:.1f} s; answers {dict(crowd.answers)}"
    )
    await check_everything_mined_once(book, wide, wide.accounts)


# ---- how long a signer is without a node


def slack() -> float:
    """1 on a machine that has a core for everyone who wants one; figures are judged by what it is now."""
    # Both nodes run in this process. Measured: 132 ms became 247 ms when coverage traced it.
    traced = 1.0 if sys.gettrace() is None else 2.0
    return traced * max(1.0, 1.5 * os.getloadavg()[0] / (os.cpu_count() or 1))


async def test_after_a_kill_the_next_send_comes_within_the_lease_and_half_a_second(
    dsn: str, wide: OwnChain, book: Book, client: Client, start_node: StartNode
) -> None:
    accounts = wide.accounts[:8]
    for account in accounts:
        await client.ask(account, 200)
    options = {**MANY, "nonce.max_in_flight": "2"}
    dies = start_node(wide, *accounts, name="dies", options=options)

    async def sends(node: str) -> dict[str, float]:
        query = (
            "SELECT signer, extract(epoch FROM min(at))::float8 AS at FROM journal"
            " WHERE node = $1 AND event = 'SendResult' GROUP BY signer"
        )
        return {row["signer"]: row["at"] for row in await book.connection.fetch(query, node)}

    async def all_sent_by(node: str) -> bool:
        return len(await sends(node)) == len(accounts)

    await eventually(lambda: all_sent_by("dies"))
    async with open_fencepost(dsn, wide, *accounts, options={**options, "node.id": "lives"}):
        killed_at = time.time()
        dies.signal(signal.SIGKILL)
        await eventually(lambda: all_sent_by("lives"))
    gaps_s = sorted(at - killed_at for at in (await sends("lives")).values())
    median_s = statistics.median(gaps_s)
    print(  # noqa: T201 - the figures are what one runs this for
        f"\nfrom kill -9 to the next send: median {median_s:.2f} s, most {gaps_s[-1]:.2f} s, lease {LEASE_S} s"
    )
    assert median_s <= LEASE_S + 0.5 * slack()


class Heard(logging.Handler):
    """Events of nodes in this process, with their times."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[float, str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append((record.created, record.getMessage(), getattr(record, "fields", {})))

    def of(self, event: str, node: str) -> dict[str, tuple[float, dict[str, Any]]]:
        """The first of each signer."""
        found: dict[str, tuple[float, dict[str, Any]]] = {}
        for at, name, fields in self.events:
            if name == event and fields["node"] == node:
                found.setdefault(str(fields["signer"]), (at, fields))
        return found


@pytest.fixture
def heard() -> Any:
    events, handler = logging.getLogger("fencepost.events"), Heard()
    level = events.level
    events.setLevel(logging.INFO)
    events.addHandler(handler)
    yield handler
    events.removeHandler(handler)
    events.setLevel(level)


async def test_a_better_owner_gets_its_signers_at_once_and_only_its_own(
    dsn: str, wide: OwnChain, book: Book, client: Client, heard: Heard
) -> None:
    accounts = wide.accounts
    for account in accounts:
        await client.ask(account, 60)
    options = {**MANY, "routing.mode": "worker_queue", "nonce.max_in_flight": "2"}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(
            open_fencepost(dsn, wide, *accounts, options={**options, "node.id": "first"})
        )

        async def holds_all() -> bool:
            return len(first.running.node.lanes) == len(accounts)

        await eventually(holds_all)
        second = await stack.enter_async_context(
            open_fencepost(dsn, wide, *accounts, options={**options, "node.id": "second"})
        )
        theirs = {
            str(client.signer(account))
            for account in accounts
            if preferred(client.signer(account), ["first", "second"]) == "second"
        }
        assert 0 < len(theirs) < len(accounts)

        async def has_its_own() -> bool:
            return {str(term.signer) for term in second.running.node.lanes.terms()} == theirs

        await eventually(has_its_own)
        await all_confirmed(book, 60 * len(accounts))
    let_go, taken = heard.of("handed_over", "first"), heard.of("acquired", "second")
    assert theirs <= let_go.keys()
    gaps_s = sorted(taken[s][0] - (let_go[s][0] - let_go[s][1]["seconds"]) for s in theirs)
    median_s = statistics.median(gaps_s)
    print(  # noqa: T201 - the figures are what one runs this for
        f"\nhand-over of {len(theirs)} signers: median {median_s * 1000:.0f} ms, most {gaps_s[-1] * 1000:.0f} ms"
    )
    assert median_s < 0.3 * slack()
    await check_everything_mined_once(book, wide, accounts)


async def test_nodes_of_both_modes_work_side_by_side(
    dsn: str, wide: OwnChain, book: Book, client: Client
) -> None:
    accounts = wide.accounts

    def node(mode: str) -> AbstractAsyncContextManager[Fencepost]:
        return open_fencepost(dsn, wide, *accounts, options={**MANY, "routing.mode": mode})

    async with node("worker_queue"), node("worker_queue") as queues:
        async with node("basic") as plain:
            for account in accounts:
                await client.ask(account, 10)
            await all_confirmed(book, 10 * len(accounts))
            held = len(plain.running.node.lanes)
        for account in accounts:
            await client.ask(account, 20)  # ten of them are known
        await all_confirmed(book, 20 * len(accounts))
        assert 0 < len(queues.running.node.lanes) < len(accounts)
    owners = await book.connection.fetchval("SELECT count(DISTINCT owner_node) FROM lease_term")
    assert owners == (3 if held else 2)
    await check_everything_mined_once(book, wide, accounts)
