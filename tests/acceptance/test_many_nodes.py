"""Three nodes with restarts and kills under load: every request is mined once, without nonce gaps, in time."""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio

from fencepost.dev.anvil import anvil_node
from fencepost.dev.node_process import NodeProcess, start_node
from fencepost.facade import Fencepost
from fencepost.runtime.routing import preferred
from fixtures.anvil import test_chain
from fixtures.core import SINK, Account, Client, DatabaseReader, OwnChain, check_sealed, eventually
from fixtures.nodes import FAST, PIPELINED, StartNode, open_fencepost
from fixtures.nodes import NodeProcess as ToldProcess
from fixtures.postgres import run_folder

# Long enough that the delays of a busy machine are small in comparison.
DEAD_LEASE_S = 6.0
LONG_LEASE_S = 60.0
LONG_LEASE = {"lease.duration": f"{LONG_LEASE_S}s", "lease.renew_interval": "5s"}

MANY = {
    **FAST,
    **PIPELINED,
    "nonce.max_in_flight": "16",
    "database.pool_size": "5",
    "confirmations.required": "1",
    "resubmit.interval": "5s",
}
SIGNERS = 20
REQUESTS = 2_000


@pytest_asyncio.fixture
async def wide(anvil_binary: Path) -> AsyncIterator[OwnChain]:
    """Start a chain with many accounts and a block every quarter of a second."""
    folder = run_folder() / f"chain-{uuid4().hex[:12]}"
    async with anvil_node(binary=anvil_binary, run_dir=folder, accounts=SIGNERS, block_time_s=0.25) as node:
        plain = test_chain(node)
        yield OwnChain(plain.rpc_url, plain.ws_url, plain.chain_id, plain.private_keys, plain.pid)


@dataclass(slots=True)
class Fleet:
    """Nodes as processes, each with its own URL."""

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
        """Restart a node without notice to the callers."""
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
    """Callers who send each request to a random node, and again to another one on an error or without an answer."""

    fleet: Fleet
    accounts: Sequence[Account]
    accepted: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    async def send_all(self, count: int, *, callers: int, rate_per_s: float) -> None:
        numbers = iter(range(count))
        began = asyncio.get_running_loop().time()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:

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

        await eventually(are_accepted)


async def check_everything_mined_once(
    db: DatabaseReader, chain: OwnChain, accounts: Sequence[Account]
) -> None:
    mined: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for tx in await chain.all_mined():
        mined[tx["from"]].append(tx)
    for account in accounts:
        rows = sorted(await db.rows(account), key=lambda row: row["nonce"])
        assert {row["state"] for row in rows} == {"CONFIRMED"}
        assert [row["nonce"] for row in rows] == list(range(len(rows)))
        on_chain = mined[account.address]
        assert [int(tx["nonce"], 16) for tx in on_chain] == list(range(len(rows)))
        assert [tx["hash"] for tx in on_chain] == [row["tx_hash"] for row in rows]
        assert [int(tx["value"], 16) for tx in on_chain] == [row["value"] for row in rows]
        assert (await db.cursor(account))["next_nonce"] == len(rows)
    await check_sealed(db)


async def all_confirmed(db: DatabaseReader, count: int) -> None:
    async def are_confirmed() -> bool:
        query = "SELECT count(*) FROM managed_tx WHERE state = 'CONFIRMED'"
        return int(await db.connection.fetchval(query)) == count

    try:
        await eventually(are_confirmed)
    except AssertionError:
        states = await db.connection.fetch("SELECT signer, state, count(*) FROM managed_tx GROUP BY 1, 2")
        leases = await db.connection.fetch("SELECT *, clock_timestamp() FROM signer_lease")
        raise AssertionError((states, leases)) from None


@pytest.mark.parametrize("mode", ["basic", "worker_queue"])
async def test_everything_is_mined_once_through_restarts_and_kills(
    dsn: str, wide: OwnChain, db: DatabaseReader, tmp_path: Path, *, mode: str
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
        await all_confirmed(db, requests)
        took_s = time.monotonic() - began
    finally:
        await fleet.stop()
    assert crowd.accepted == requests
    print(  # noqa: T201 - the figures are what one runs this for
        f"\n{mode}: {requests} transactions in {took_s:.1f} s; answers {dict(crowd.answers)}"
    )
    await check_everything_mined_once(db, wide, wide.accounts)


# ---- how long a signer is without an owner


async def test_after_a_kill_the_next_send_comes_soon_after_the_lease_expires(
    dsn: str, wide: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode
) -> None:
    accounts = wide.accounts[:8]
    for account in accounts:
        await client.ask(account, 200)
    options = {
        **MANY,
        "nonce.max_in_flight": "2",
        "lease.duration": f"{DEAD_LEASE_S}s",
        "lease.renew_interval": "500ms",
    }
    dies = start_node(wide, *accounts, name="dies", options=options)

    async def sends(node: str) -> dict[str, float]:
        query = (
            "SELECT signer, extract(epoch FROM min(at))::float8 AS at FROM journal"
            " WHERE node = $1 AND event = 'SendResult' GROUP BY signer"
        )
        return {row["signer"]: row["at"] for row in await db.connection.fetch(query, node)}

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
        f"\nfrom kill -9 to the next send: median {median_s:.2f} s, most {gaps_s[-1]:.2f} s, lease {DEAD_LEASE_S} s"
    )
    assert median_s <= 1.5 * DEAD_LEASE_S


async def test_a_preferred_owner_gets_only_its_own_signers_long_before_a_lease_would_expire(
    wide: OwnChain, db: DatabaseReader, client: Client, start_node: StartNode
) -> None:
    accounts = wide.accounts
    for account in accounts:
        await client.ask(account, 60)
    options = {
        **MANY,
        **LONG_LEASE,
        "routing.mode": "worker_queue",
        "nonce.max_in_flight": "2",
        "lease.idle_release": "1h",
    }
    first = start_node(wide, *accounts, name="first", options=options)
    signers = {str(client.signer(account)): client.signer(account) for account in accounts}

    async def held_by(node: str) -> set[str]:
        query = (
            "SELECT chain_id || ':' || signer AS signer FROM signer_lease"
            " WHERE owner_node = $1 AND expires_at > clock_timestamp()"
        )
        return {row["signer"] for row in await db.connection.fetch(query, node)}

    async def first_holds_all() -> bool:
        return await held_by("first") == signers.keys()

    await eventually(first_holds_all)
    second = start_node(wide, *accounts, name="second", options=options)
    theirs = {name for name, signer in signers.items() if preferred(signer, ["first", "second"]) == "second"}
    assert 0 < len(theirs) < len(accounts)

    async def each_has_its_own() -> bool:
        return await held_by("second") == theirs and await held_by("first") == signers.keys() - theirs

    await eventually(each_has_its_own)
    await all_confirmed(db, 60 * len(accounts))
    let_go, taken = first_of_each("handed_over", first), first_of_each("acquired", second)
    assert theirs == let_go.keys() == taken.keys()
    gaps_s = sorted(
        float(taken[signer]["at"]) - (float(let_go[signer]["at"]) - float(let_go[signer]["seconds"]))
        for signer in theirs
    )
    median_s = statistics.median(gaps_s)
    print(  # noqa: T201 - the figures are what one runs this for
        f"\nhand-over of {len(theirs)} signers: median {median_s * 1000:.0f} ms, most {gaps_s[-1] * 1000:.0f} ms"
    )
    assert median_s < LONG_LEASE_S / 10, "that is no hand-over: leases ran out"
    await check_everything_mined_once(db, wide, accounts)


def first_of_each(event: str, node: ToldProcess) -> dict[str, dict[str, str]]:
    """Return the first such event by signer, as the node noted it."""
    found: dict[str, dict[str, str]] = {}
    for noted in node.events():
        if noted.get("event") == event:
            found.setdefault(noted["signer"], noted)
    return found


async def test_nodes_of_both_modes_work_side_by_side(
    dsn: str, wide: OwnChain, db: DatabaseReader, client: Client
) -> None:
    accounts = wide.accounts

    def node(mode: str) -> AbstractAsyncContextManager[Fencepost]:
        return open_fencepost(dsn, wide, *accounts, options={**MANY, "routing.mode": mode})

    async with node("worker_queue"), node("worker_queue") as queues:
        async with node("basic") as plain:
            for account in accounts:
                await client.ask(account, 10)
            await all_confirmed(db, 10 * len(accounts))
            held = len(plain.running.node.lanes)
        for account in accounts:
            await client.ask(account, 20)  # ten of them are duplicates
        await all_confirmed(db, 20 * len(accounts))
        assert 0 < len(queues.running.node.lanes) < len(accounts)
    owners = await db.connection.fetchval("SELECT count(DISTINCT owner_node) FROM lease_term")
    assert owners == (3 if held else 2)
    await check_everything_mined_once(db, wide, accounts)
