"""Run the demo: three nodes, five signers, a few hundred transactions, one node killed half-way, then a check.

Requests go to the API of a random node, and again to another one if that node is dead: the request id makes that safe. The
check at the end compares the requests with the transactions on the chain.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import aiohttp
import asyncpg

from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.adapters.postgres.pool import DriverPool
from fencepost.adapters.signers.local import LocalKeys
from fencepost.dev.anvil import AnvilNode, anvil_node, find_anvil
from fencepost.dev.embedded import data_folder
from fencepost.dev.node_process import NodeProcess, start_nodes
from fencepost.dev.paths import default_cache_dir
from fencepost.dev.postgres import embedded_postgres
from fencepost.settings import Settings

NODES = 3
SIGNERS = 5
BLOCK_TIME_S = 0.25
LEASE_S = 2.0
FINISH_TIMEOUT_S = 90.0
POST_TIMEOUT_S = 30.0
_SETTINGS = {
    "nonce.mode": "pipelined",
    "nonce.max_in_flight": "16",
    "confirmations.required": "2",
    "lease.duration": f"{LEASE_S}s",
    "lease.renew_interval": "0.5s",
    "lease.skew_allowance": "0s",
    "lanes.workers": "16",
    "chains.default.poll_interval": "0.1s",
    "log.format": "json",
}


# Nodes with transactions that are sent but not mined, the busiest first.
_IN_FLIGHT = (
    "SELECT l.owner_node, count(*) AS count FROM signer_lease l JOIN managed_tx t USING (chain_id, signer)"
    " WHERE l.expires_at > clock_timestamp() AND t.state IN ('ALLOCATED', 'SUBMITTED')"
    " GROUP BY l.owner_node ORDER BY count DESC"
)


@dataclass(frozen=True, slots=True)
class Progress:
    """One row per signer (queued, in flight, confirmed, lease holder), and the nodes that run."""

    rows: tuple[tuple[str, int, int, int, str], ...]
    alive: tuple[str, ...]
    note: str


@dataclass(slots=True)
class Outcome:
    """The result of the demo."""

    requests: int
    mined_once: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    failover_s: float | None = None
    killed: str = ""

    @property
    def is_ok(self) -> bool:
        return not self.problems and self.mined_once == self.requests

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "ok": self.is_ok}


@dataclass(slots=True)
class Demo:
    """The running database, chain and nodes; `run` sends the transactions."""

    dsn: str
    chain: AnvilNode
    nodes: list[NodeProcess]
    database: DriverPool
    addresses: tuple[str, ...]
    transactions: int
    _note: str = "submitting"
    _released_up_to: int = 0  # requests from this number on are held back

    async def run(self, show: Callable[[Progress], None]) -> Outcome:
        """Send everything, kill a node half-way, wait for the end, and check the result."""
        began_s = time.monotonic()
        outcome = Outcome(requests=self.transactions)
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._show_until_cancelled(show))
            self._released_up_to = self.transactions // 2
            submissions = group.create_task(self._submit_all())
            killed_at = await self._kill_half_way(outcome)
            self._released_up_to = self.transactions
            await submissions
            self._note = "waiting for the last confirmations"
            await self._wait_until_all_finished(outcome)
            watcher.cancel()
        outcome.failover_s = await self._failover_s(killed_at)
        if outcome.failover_s is None:
            outcome.problems.append(f"nothing was sent for the signers of {outcome.killed} after its death")
        outcome.seconds = round(time.monotonic() - began_s, 2)
        await self._check(outcome)
        show(await self._progress())
        return outcome

    # ---- the phases

    async def _submit_all(self) -> None:
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
            limit = asyncio.Semaphore(8)
            for index in range(self.transactions):
                group.create_task(self._post(session, index, limit))

    async def _post(self, session: aiohttp.ClientSession, index: int, limit: asyncio.Semaphore) -> None:
        body = {
            "signer": self.addresses[index % SIGNERS],
            "requestId": f"demo-{index}",
            "payload": {"to": self.addresses[(index + 1) % SIGNERS], "value": "1"},
        }
        while index >= self._released_up_to:  # noqa: ASYNC110 - the pace of the demo
            await asyncio.sleep(0.02)
        async with limit:
            await asyncio.sleep(0.02)
            deadline_s = time.monotonic() + POST_TIMEOUT_S
            while time.monotonic() < deadline_s:
                node = random.choice([node for node in self.nodes if node.is_alive])
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(f"{node.url}/api/v1/tx", json=body) as response:
                        if response.ok:
                            return
                await asyncio.sleep(0.1)
        raise TimeoutError(f"request demo-{index} was not accepted by any node")

    async def _kill_half_way(self, outcome: Outcome) -> float:
        """Kill the node with the most work in flight, and return the time.

        Half of the requests are held back until then, some of each signer, so that the next lease holders have work.
        """
        while await self._count("state = 'CONFIRMED'") < self.transactions // 4:  # noqa: ASYNC110 - another process's work
            await asyncio.sleep(0.02)
        while (victim := await self._stop_busy_node()) is None:
            # All released requests have finished: release more, but keep the last ones of each signer for the next lease holder.
            self._released_up_to = min(self._released_up_to + 5 * SIGNERS, self.transactions - SIGNERS)
            await asyncio.sleep(0.02)
        killed_at = float(await self.database.fetchval("SELECT extract(epoch FROM clock_timestamp())"))
        await victim.kill()
        outcome.killed = victim.name
        self._note = f"{victim.name} was killed with kill -9; the other nodes take over"
        return killed_at

    async def _stop_busy_node(self) -> NodeProcess | None:
        """Stop and return a node with transactions in flight; they stay in flight until it continues or dies."""
        for row in await self.database.fetch(_IN_FLIGHT):
            victim = next(node for node in self.nodes if node.name == row["owner_node"])
            victim.process.send_signal(signal.SIGSTOP)
            still_busy = {row["owner_node"] for row in await self.database.fetch(_IN_FLIGHT)}
            if victim.name in still_busy:
                return victim
            victim.process.send_signal(signal.SIGCONT)
        return None

    async def _wait_until_all_finished(self, outcome: Outcome) -> None:
        deadline_s = time.monotonic() + FINISH_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if await self._count("state IN ('CONFIRMED', 'FAILED', 'CANCELLED')") >= self.transactions:
                return
            await asyncio.sleep(0.05)
        outcome.problems.append(f"not every transaction finished within {FINISH_TIMEOUT_S:.0f} s")

    async def _count(self, condition: str) -> int:
        return int(await self.database.fetchval(f"SELECT count(*) FROM managed_tx WHERE {condition}"))  # noqa: S608 - the conditions are constants

    # ---- progress

    async def _show_until_cancelled(self, show: Callable[[Progress], None]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                show(await self._progress())
                await asyncio.sleep(0.1)

    async def _progress(self) -> Progress:
        records = await self.database.fetch(
            "SELECT t.signer, count(*) FILTER (WHERE t.state = 'QUEUED') AS queued,"
            " count(*) FILTER (WHERE t.state IN ('ALLOCATED', 'SUBMITTED', 'TRACKING')) AS in_flight,"
            " count(*) FILTER (WHERE t.state = 'CONFIRMED') AS confirmed,"
            " coalesce(max(l.owner_node), '') AS owner"
            " FROM managed_tx t LEFT JOIN signer_lease l USING (chain_id, signer) GROUP BY t.signer ORDER BY t.signer"
        )
        rows = tuple((r["signer"], r["queued"], r["in_flight"], r["confirmed"], r["owner"]) for r in records)
        return Progress(rows, tuple(node.name for node in self.nodes if node.is_alive), self._note)

    # ---- the check

    async def _failover_s(self, killed_at: float) -> float | None:
        """Return the time from the kill to the first send by another node for a signer of the killed one."""
        first_send_s = await self.database.fetchval(
            "SELECT min(extract(epoch FROM j.at)) FROM journal j JOIN lease_term n USING (chain_id, signer, fencing_token)"
            " WHERE j.event = 'SendResult' AND extract(epoch FROM n.acquired_at) > $1 AND EXISTS"
            " (SELECT 1 FROM lease_term o WHERE o.signer = n.signer AND o.fencing_token < n.fencing_token)",
            killed_at,
        )
        return None if first_send_s is None else round(float(first_send_s) - killed_at, 2)

    async def _check(self, outcome: Outcome) -> None:
        """Check on the chain that every request is mined exactly once, without a nonce gap."""
        mined = await self._mined_from_chain()
        stored = await self.database.fetch("SELECT request_id, signer, nonce, tx_hash, state FROM managed_tx")
        hashes: Counter[str] = Counter(tx_hash for txs in mined.values() for _, tx_hash in txs)
        for row in stored:
            if row["state"] != "CONFIRMED":
                outcome.problems.append(f"{row['request_id']} ended as {row['state']}")
            elif hashes[row["tx_hash"]] != 1:
                outcome.problems.append(f"{row['request_id']} is mined {hashes[row['tx_hash']]} times")
            else:
                outcome.mined_once += 1
        for address, txs in mined.items():
            if [nonce for nonce, _ in txs] != list(range(len(txs))):
                outcome.problems.append(f"{address} has a nonce gap or a repeated nonce")
        total = sum(len(txs) for txs in mined.values())
        if total != self.transactions or len(stored) != self.transactions:
            outcome.problems.append(f"{self.transactions} submitted, {len(stored)} stored, {total} mined")

    async def _mined_from_chain(self) -> dict[str, list[tuple[int, str]]]:
        rpc = JsonRpc(self.chain.rpc_url, timeout_s=10, max_body_bytes=64 * 1024 * 1024)
        try:
            head = int(await rpc.call("eth_blockNumber", []), 16)
            blocks = await rpc.batch([("eth_getBlockByNumber", [hex(n), True]) for n in range(head + 1)])
        finally:
            await rpc.close()
        mined: dict[str, list[tuple[int, str]]] = {address: [] for address in self.addresses}
        for block in blocks:
            if isinstance(block, Exception):
                raise block
            for tx in block["transactions"]:
                mined[tx["from"].lower()].append((int(tx["nonce"], 16), tx["hash"]))
        return mined


@asynccontextmanager
async def open_demo(
    settings: Settings, *, transactions: int, report: Callable[[str], None]
) -> AsyncIterator[Demo]:
    """Start everything that the demo needs, and remove it afterwards, except the database server's folder."""
    async with AsyncExitStack() as stack:
        logs = Path(tempfile.mkdtemp(prefix="fencepost-demo-"))
        stack.callback(shutil.rmtree, logs, ignore_errors=True)
        binary = await find_anvil(default_cache_dir(), report=report)
        report("starting PostgreSQL and the chain")
        server = await stack.enter_async_context(embedded_postgres(data_folder(settings) / "postgres"))
        chain = await stack.enter_async_context(
            anvil_node(binary=binary, run_dir=logs / "anvil", block_time_s=BLOCK_TIME_S, accounts=SIGNERS)
        )
        dsn = await stack.enter_async_context(_own_database(server.dsn))
        keys = [f"0x{key.hex()}" for key in chain.private_keys[:SIGNERS]]
        report(f"starting {NODES} nodes")
        nodes = await start_nodes(
            [f"node-{number}" for number in range(1, NODES + 1)],
            dsn=dsn,
            rpc_url=chain.rpc_url,
            private_keys=keys,
            settings=_SETTINGS,
            logs=logs,
        )
        for node in nodes:
            stack.push_async_callback(node.stop)
        database = await stack.enter_async_context(asyncpg.create_pool(dsn, min_size=1, max_size=3))
        addresses = tuple(LocalKeys.from_hex(keys).addresses())
        yield Demo(dsn, chain, nodes, database, addresses, transactions)


@asynccontextmanager
async def _own_database(dsn: str) -> AsyncIterator[str]:
    name = f"demo_{uuid4().hex[:12]}"
    await _administer(dsn, f"CREATE DATABASE {name}")
    try:
        yield urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
    finally:
        await _administer(dsn, f"DROP DATABASE {name} WITH (FORCE)")


async def _administer(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
