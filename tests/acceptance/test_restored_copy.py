"""A node starts on an older copy of its database and does not repeat what the original carried out."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from fencepost.adapters.postgres import migrate
from fencepost.dev.postgres import EmbeddedPostgres
from fixtures.core import SINK, Account, Client, DatabaseReader, OwnChain, eventually, open_ledger, own_chain
from fixtures.nodes import open_fencepost
from fixtures.postgres import with_database

MODES = pytest.mark.parametrize("mode", ["strict", "pipelined"])


def options(mode: str) -> dict[str, str]:
    return {"nonce.mode": mode, "confirmations.required": "0"}


@asynccontextmanager
async def copy_of(dsn: str, postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """Copy a database; PostgreSQL requires that the original has no connections meanwhile."""
    name = f"copy_{uuid4().hex[:16]}"
    administrator = await asyncpg.connect(postgres.dsn)
    try:
        await administrator.execute(f"CREATE DATABASE {name} TEMPLATE {urlsplit(dsn).path[1:]}")
        yield with_database(dsn, name)
        await administrator.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await administrator.close()


@asynccontextmanager
async def open_database_reader(dsn: str) -> AsyncIterator[DatabaseReader]:
    connection = await asyncpg.connect(dsn)
    try:
        yield DatabaseReader(connection)
    finally:
        await connection.close()


async def ask(dsn: str, account: Account, count: int) -> list[UUID]:
    async with open_ledger(dsn, node="client") as ledger:
        return await Client(ledger).ask(account, count)


async def carry_out(dsn: str, chain: OwnChain, account: Account, mode: str, count: int) -> list[str]:
    """Let the original carry out all requests and return the hashes by arrival."""
    async with open_fencepost(dsn, chain, account, options=options(mode)), open_database_reader(dsn) as db:
        await db.until_states(account, CONFIRMED=count)
        return [row["tx_hash"] for row in await db.rows(account)]


@MODES
@pytest.mark.parametrize("earlier", [0, 2])
async def test_requests_of_the_copy_finish_with_the_transactions_of_the_original(
    dsn: str, postgres: EmbeddedPostgres, instant_chain: OwnChain, mode: str, earlier: int
) -> None:
    """With and without a cursor in the copy."""
    account = instant_chain.accounts[0]
    if earlier:
        await ask(dsn, account, earlier)
        await carry_out(dsn, instant_chain, account, mode, earlier)
    await ask(dsn, account, earlier + 1)  # the earlier ones are duplicates
    async with copy_of(dsn, postgres) as copy:
        hashes = await carry_out(dsn, instant_chain, account, mode, earlier + 1)
        async with (
            open_fencepost(copy, instant_chain, account, options=options(mode)),
            open_database_reader(copy) as db,
        ):
            await db.until_states(account, CONFIRMED=earlier + 1)
            assert [row["tx_hash"] for row in await db.rows(account)] == hashes
            assert (await db.cursor(account))["state"] == "ACTIVE"
            last = (await db.rows(account))[-1]
            assert "Attach" in await db.events(last["tx_id"])
            assert "SubmitTransaction" not in await db.events(last["tx_id"])
    assert [tx["hash"] for tx in await instant_chain.mined_from(account.address)] == hashes


@MODES
async def test_adopting_a_foreign_transaction_sends_nothing_again(
    dsn: str, postgres: EmbeddedPostgres, instant_chain: OwnChain, mode: str
) -> None:
    account = instant_chain.accounts[0]
    await ask(dsn, account, 1)
    await carry_out(dsn, instant_chain, account, mode, 1)
    await ask(dsn, account, 2)
    async with copy_of(dsn, postgres) as copy:
        hashes = await carry_out(dsn, instant_chain, account, mode, 2)
        theirs = await instant_chain.call(
            "eth_sendTransaction", {"from": account.address, "to": SINK, "value": "0x7777"}
        )
        async with (
            open_fencepost(copy, instant_chain, account, options=options(mode)) as fencepost,
            open_database_reader(copy) as db,
        ):
            reason = await db.until_protected(account)
            assert theirs in reason
            assert SINK in reason
            await db.until_states(account, CONFIRMED=2)
            async with open_ledger(copy, node="person") as ledger:
                await ledger.add_command(
                    fencepost.signer(account.address),
                    "unprotect",
                    tx_id=None,
                    author="Ada",
                    reason="our own wallet",
                    detail={"decision": "adopt"},
                )
            await eventually(lambda: is_active(db, account))
            third = await fencepost.create(signer=account.address, request_id="order-3", to=SINK, value_wei=3)
            await fencepost.wait_for(third, "confirmed")
            assert [row["tx_hash"] for row in (await db.rows(account))[:2]] == hashes
    mined = await instant_chain.mined_from(account.address)
    assert [tx["hash"] for tx in mined[:3]] == [*hashes, theirs]
    assert [int(tx["value"], 16) for tx in mined if tx["to"] == SINK] == [1, 2, 0x7777, 3]


async def is_active(db: DatabaseReader, account: Account) -> bool:
    return str((await db.cursor(account))["state"]) == "ACTIVE"


async def cli(*words: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command as an operator does: return the exit code and the printed JSON."""
    command = [sys.executable, "-m", "fencepost", *words, "--json"]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, timeout=120)
    assert ran.returncode in (0, 1), ran.stderr.decode()
    return ran.returncode, json.loads(ran.stdout)


@MODES
async def test_a_copy_is_checked_and_reconciled_before_a_node_starts(
    dsn: str, postgres: EmbeddedPostgres, instant_chain: OwnChain, mode: str
) -> None:
    account = instant_chain.accounts[0]
    await ask(dsn, account, 1)
    await carry_out(dsn, instant_chain, account, mode, 1)
    await ask(dsn, account, 3)
    async with copy_of(dsn, postgres) as copy:
        hashes = await carry_out(dsn, instant_chain, account, mode, 3)
        where = (
            "--dsn",
            copy,
            "--rpc-url",
            instant_chain.rpc_url,
            "--chain-id",
            "31337",
            "--set",
            f"nonce.mode={mode}",
        )
        async with open_database_reader(copy) as db:
            code, (report,) = await cli("restore", "check", *where)
            assert (code, report["verdict"]) == (0, "attach")
            assert (report["nextNonce"], report["chainNonce"]) == (1, 3)
            assert [one["hash"] for one in report["attached"]] == hashes[1:]
            assert await db.states(account) == {"CONFIRMED": 1, "QUEUED": 2}
            code, (done,) = await cli("restore", "reconcile", *where)
            assert (code, done["attached"]) == (0, report["attached"])
            rows = await db.rows(account)
            assert [row["tx_hash"] for row in rows] == hashes
            assert [row["state"] for row in rows] == ["CONFIRMED", "ALLOCATED", "ALLOCATED"]
            code, (again,) = await cli("restore", "check", *where)
            assert (code, again["attached"], again["requestsWait"]) == (0, [], False)
            theirs = await instant_chain.call(
                "eth_sendTransaction", {"from": account.address, "to": SINK, "value": "0x7777"}
            )
            code, (finding,) = await cli("restore", "check", *where)
            assert (code, finding["verdict"]) == (1, "decide")
            assert theirs in finding["decisions"][0]
            async with open_fencepost(copy, instant_chain, account, options=options(mode)):
                await db.until_states(account, CONFIRMED=3)
    assert [tx["hash"] for tx in await instant_chain.mined_from(account.address)] == [*hashes, theirs]


@pytest_asyncio.fixture
async def chain_of_2020(anvil_binary: Path) -> AsyncIterator[OwnChain]:
    """Start a chain whose clock is years behind."""
    async for chain in own_chain(anvil_binary, extra=["--timestamp", "1600000000"]):
        yield chain


@MODES
async def test_a_chain_whose_clock_is_behind_does_not_make_its_transactions_look_older(
    dsn: str, empty_dsn: str, chain_of_2020: OwnChain, mode: str
) -> None:
    """A disk snapshot without a cursor: what the original carried out has a time before the request was accepted."""
    account = chain_of_2020.accounts[0]
    await migrate.apply(empty_dsn)
    for database in (empty_dsn, dsn):
        await ask(database, account, 1)
    (carried_out,) = await carry_out(dsn, chain_of_2020, account, mode, 1)
    where = (
        "--dsn",
        empty_dsn,
        "--rpc-url",
        chain_of_2020.rpc_url,
        "--chain-id=31337",
        f"--set=nonce.mode={mode}",
    )
    code, (report,) = await cli("restore", "check", *where)
    assert (code, report["verdict"], carried_out in str(report["decisions"])) == (1, "decide", True)
    async with (
        open_fencepost(empty_dsn, chain_of_2020, account, options=options(mode)) as fencepost,
        open_database_reader(empty_dsn) as db,
    ):
        reason = await db.until_protected(account)
        (request,) = await db.rows(account)
        assert carried_out in reason
        assert str(request["tx_id"]) in reason
        assert "behind the database's" in reason
        signer = fencepost.signer(account.address)
        async with open_ledger(empty_dsn, node="person") as ledger:
            for command, tx_id, detail in (
                ("unprotect", None, {"decision": "adopt"}),
                ("cancel", request["tx_id"], {}),
                ("unprotect", None, {"decision": "adopt"}),
            ):
                await ledger.add_command(
                    signer, command, tx_id=tx_id, author="Ada", reason=None, detail=detail
                )
        await eventually(lambda: is_active(db, account))
        assert await db.states(account) == {"CANCELLED": 1}
        second = await fencepost.create(signer=account.address, request_id="order-2", to=SINK, value_wei=2)
        await fencepost.wait_for(second, "confirmed")
    mined = await chain_of_2020.mined_from(account.address)
    assert [int(tx["value"], 16) for tx in mined] == [1, 2]


async def test_an_idle_chain_whose_clock_is_right_has_older_transactions(
    dsn: str, empty_dsn: str, chain_of_2020: OwnChain
) -> None:
    """Its newest block is old, but the next one would have the present time: an equal transaction of 2020 is older."""
    account = chain_of_2020.accounts[0]
    await ask(dsn, account, 1)
    earlier = await carry_out(dsn, chain_of_2020, account, "pipelined", 1)
    await chain_of_2020.call("evm_setTime", int(time.time()))
    await migrate.apply(empty_dsn)
    await ask(empty_dsn, account, 1)
    later = await carry_out(empty_dsn, chain_of_2020, account, "pipelined", 1)
    assert [tx["hash"] for tx in await chain_of_2020.mined_from(account.address)] == earlier + later
