"""The world around nodes for the acceptance suite: real Anvil, real PostgreSQL, and whoever asks for something.

`ticking`, `by_hand` and `at_once` are chains of a test's own that differ in how they mine. `book` looks into the test's
database; `client` stores requests without being a node. What must hold after every fault stands in
`check_all_mined_once` and `check_sealed`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import asyncpg
import pytest_asyncio
from eth_account import Account as EthAccount

from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.signers import load_keys
from fencepost.application.accept import Accept, Request
from fencepost.dev.anvil import anvil_node
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import Intent
from fencepost.domain.transaction import Call, Fees
from fencepost.runtime.clock import MonotonicClock
from fix_anvil import TestChain, test_chain
from fix_postgres import run_folder

SINK = Address("0x" + "5e" * 20)
WITHIN_S = 90.0
GWEI = 10**9


@dataclass(frozen=True, slots=True)
class Account:
    address: Address
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OwnChain(TestChain):
    """A chain that no other test shares."""

    @property
    def accounts(self) -> list[Account]:
        keys = ["0x" + key.hex() for key in self.private_keys]
        return [Account(Address(EthAccount.from_key(key).address.lower()), key) for key in keys]

    async def all_mined(self) -> list[dict[str, Any]]:
        """Every transaction of the canonical chain, in its order; the whole chain in one request."""
        head = int(await self.call("eth_blockNumber"), 16)
        wanted = [
            {"jsonrpc": "2.0", "id": number, "method": "eth_getBlockByNumber", "params": [hex(number), True]}
            for number in range(head + 1)
        ]
        async with aiohttp.ClientSession() as session, session.post(self.rpc_url, json=wanted) as response:
            answers = sorted(await response.json(), key=lambda answer: int(answer["id"]))
        return [tx for answer in answers for tx in answer["result"]["transactions"]]

    async def mined_from(self, address: str) -> list[dict[str, Any]]:
        return [tx for tx in await self.all_mined() if tx["from"] == address]

    async def pool_size(self) -> int:
        status = await self.call("txpool_status")
        return int(status["pending"], 16) + int(status["queued"], 16)

    async def reorg(self, depth: int, *included: tuple[str, int]) -> None:
        """Replaces the newest blocks; `included` are raw transactions and the new block, from 0, that gets them."""
        await self.call("anvil_reorg", depth, [list(pair) for pair in included])

    async def reverts(self, snapshot: str) -> None:
        assert await self.call("evm_revert", snapshot)


async def _own_chain(
    binary: Path, *, block_time_s: float = 0, extra: Sequence[str] = ()
) -> AsyncIterator[OwnChain]:
    folder = run_folder() / f"chain-{uuid4().hex[:12]}"
    async with anvil_node(
        binary=binary, run_dir=folder, accounts=10, block_time_s=block_time_s, extra=extra
    ) as node:
        plain = test_chain(node)
        yield OwnChain(plain.rpc_url, plain.ws_url, plain.chain_id, plain.private_keys, plain.pid)


@pytest_asyncio.fixture
async def ticking(anvil_binary: Path) -> AsyncIterator[OwnChain]:
    """A block every tenth of a second, as chains have them, with room for many transactions."""
    async for chain in _own_chain(anvil_binary, block_time_s=0.1):
        yield chain


@pytest_asyncio.fixture
async def by_hand(anvil_binary: Path) -> AsyncIterator[OwnChain]:
    """No block but those that the test mines."""
    async for chain in _own_chain(anvil_binary, extra=["--no-mining"]):
        yield chain


@pytest_asyncio.fixture
async def at_once(anvil_binary: Path) -> AsyncIterator[OwnChain]:
    """A block for each transaction."""
    async for chain in _own_chain(anvil_binary):
        yield chain


async def eventually(
    probe: Callable[[], Awaitable[object]], *, within_s: float = WITHIN_S, why: str = "it never came true"
) -> None:
    """For what other processes do, which nobody here is told about."""
    deadline = asyncio.get_running_loop().time() + within_s
    while not await probe():
        assert asyncio.get_running_loop().time() < deadline, why
        await asyncio.sleep(0.02)


# ---- the database


@dataclass(frozen=True, slots=True)
class Book:
    """What the database says, to a reader of its own."""

    connection: asyncpg.Connection[asyncpg.Record]

    async def rows(self, account: Account) -> list[asyncpg.Record]:
        """The transactions of an account by arrival, with what was asked for."""
        return await self.connection.fetch(
            "SELECT *, (payload->>'value')::numeric AS value FROM managed_tx WHERE signer = $1 ORDER BY seq",
            account.address,
        )

    async def states(self, account: Account) -> dict[str, int]:
        found = await self.connection.fetch(
            "SELECT state, count(*) AS n FROM managed_tx WHERE signer = $1 GROUP BY state", account.address
        )
        return {row["state"]: row["n"] for row in found}

    async def until_states(self, account: Account, within_s: float = WITHIN_S, **wanted: int) -> None:
        deadline = asyncio.get_running_loop().time() + within_s
        while (now := await self.states(account)) != wanted:
            assert asyncio.get_running_loop().time() < deadline, f"{now}, not {wanted}"
            await asyncio.sleep(0.02)

    async def journal(self, tx_id: UUID) -> list[tuple[str, dict[str, Any]]]:
        found = await self.connection.fetch(
            "SELECT event, detail FROM journal WHERE tx_id = $1 ORDER BY id", tx_id
        )
        return [(row["event"], json.loads(row["detail"] or "{}")) for row in found]

    async def events(self, tx_id: UUID) -> list[str]:
        return [event for event, _ in await self.journal(tx_id)]

    async def until_event(self, tx_id: UUID, event: str, times: int = 1) -> None:
        async def happened() -> bool:
            return (await self.events(tx_id)).count(event) >= times

        await eventually(happened, why=f"no {event} for {tx_id}")

    async def cursor(self, account: Account) -> asyncpg.Record:
        row = await self.connection.fetchrow(
            "SELECT * FROM signer_nonce_cursor WHERE signer = $1", account.address
        )
        assert row is not None
        return row

    async def until_protected(self, account: Account) -> str:
        async def is_protected() -> bool:
            query = "SELECT state = 'PROTECT' FROM signer_nonce_cursor WHERE signer = $1"
            return bool(await self.connection.fetchval(query, account.address))

        await eventually(is_protected, why="the signer was never protected")
        return str((await self.cursor(account))["reason"])

    async def terms(self, account: Account) -> list[asyncpg.Record]:
        return await self.connection.fetch(
            "SELECT * FROM lease_term WHERE signer = $1 ORDER BY fencing_token", account.address
        )

    async def attempts(self, tx_id: UUID) -> list[asyncpg.Record]:
        return await self.connection.fetch(
            "SELECT * FROM tx_attempt WHERE tx_id = $1 ORDER BY attempt", tx_id
        )


@pytest_asyncio.fixture
async def book(dsn: str) -> AsyncIterator[Book]:
    connection = await asyncpg.connect(dsn)
    try:
        yield Book(connection)
    finally:
        await connection.close()


async def check_sealed(book: Book) -> None:
    """No term wrote anything after a newer one had begun: whatever an older token wrote, the newer term could see."""
    late = await book.connection.fetch(
        "SELECT j.event, j.node, j.fencing_token AS wrote, t.fencing_token AS began"
        "  FROM journal j JOIN lease_term t ON t.chain_id = j.chain_id AND t.signer = j.signer"
        " WHERE j.fencing_token < t.fencing_token AND NOT pg_visible_in_snapshot(j.xid, t.sealed_snapshot)"
    )
    assert not late, late


async def check_all_mined_once(book: Book, chain: OwnChain, account: Account, count: int) -> None:
    """Each request is CONFIRMED and on the chain exactly once, in an unbroken sequence that only holds stored bytes."""
    rows = await book.rows(account)
    assert [row["state"] for row in rows] == ["CONFIRMED"] * count
    by_nonce = sorted(rows, key=lambda row: row["nonce"])
    assert [row["nonce"] for row in by_nonce] == list(range(count))
    mined = await chain.mined_from(account.address)
    assert [int(tx["nonce"], 16) for tx in mined] == list(range(count))
    assert [tx["hash"] for tx in mined] == [row["tx_hash"] for row in by_nonce]
    assert [int(tx["value"], 16) for tx in mined] == [row["value"] for row in by_nonce]
    assert await chain.nonce(account.address, "pending") == count
    cursor = await book.cursor(account)
    assert (cursor["start_nonce"], cursor["next_nonce"], cursor["state"]) == (0, count, "ACTIVE")
    await check_sealed(book)


# ---- who asks


@dataclass(frozen=True, slots=True)
class Client:
    """Stores requests as any node would, and does nothing about them."""

    ledger: PostgresLedger
    chain_id: int = 31337

    def signer(self, account: Account) -> Signer:
        return Signer(self.chain_id, account.address)

    async def ask(self, account: Account, count: int, *, fees: Fees | None = None) -> list[UUID]:
        """`count` transfers; the value of each is its number, from 1."""
        accept = Accept(
            self.ledger,
            await load_keys(private_keys=[account.key]),
            frozenset({self.chain_id}),
            lambda _: None,
        )
        requests = [
            Request(self.signer(account), Intent(Call(SINK, value_wei=i), fees=fees), f"order-{i}")
            for i in range(1, count + 1)
        ]
        return [accepted.tx_id for accepted in await accept.accept(requests)]


@asynccontextmanager
async def open_ledger(dsn: str, *, node: str, lease_s: float = 2.0) -> AsyncIterator[PostgresLedger]:
    """The ledger of a node that has no loops: what it does, the test does."""
    async with open_pool(
        dsn, size=4, connect_timeout_s=5, lease_duration_s=lease_s, application=node
    ) as pool:
        yield PostgresLedger(
            pool,
            clock=MonotonicClock(),
            node=node,
            incarnation=uuid4(),
            lease_duration_s=lease_s,
            skew_allowance_s=0,
        )


@pytest_asyncio.fixture
async def client(dsn: str) -> AsyncIterator[Client]:
    async with open_ledger(dsn, node="client") as ledger:
        yield Client(ledger)
