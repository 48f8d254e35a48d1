"""A node whose database role does not own the tables: the program prints the required grants, and a missing one is one line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import PLANNING, Connection
from fencepost.adapters.postgres.queries import load_all
from fencepost.adapters.postgres.rights import MAX_ROLE_BYTES, grants, needed_rights, require_rights
from fencepost.application.ports import Cursor, LaneWrite
from fencepost.domain.states import State
from fencepost.errors import DatabaseUnusable
from fixtures.anvil import TestChain
from fixtures.client import run_fencepost
from fixtures.core import OwnChain, open_ledger
from fixtures.nodes import open_fencepost
from integration.stage import SIGNER


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    dsn: str
    admin: Connection

    async def grant(self, *, without: str = " nothing ") -> None:
        for statement in grants(self.name):
            if without not in statement:
                await self.admin.execute(statement)


@pytest_asyncio.fixture
async def role(dsn: str) -> AsyncIterator[Role]:
    """Create a role that may only connect."""
    name = f"plain {uuid4().hex[:12]}"
    admin = await asyncpg.connect(dsn)
    try:
        await admin.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'secret'")
        await admin.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        await admin.execute("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC")
        parts = urlsplit(dsn)
        place = parts.netloc.rpartition("@")[2]
        netloc = f"{name.replace(' ', '%20')}:secret@{place}"
        yield Role(name, urlunsplit(parts._replace(netloc=netloc)), admin)
    finally:
        await admin.execute(f'DROP OWNED BY "{name}"')
        await admin.execute(f'DROP ROLE "{name}"')
        await admin.close()


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(dsn, server_settings=PLANNING)
    try:
        yield connection
    finally:
        await connection.close()


async def test_the_printed_grants_allow_every_statement(role: Role) -> None:
    await role.grant()
    await require_rights(role.dsn, timeout_s=5)
    assert await migrate.apply(role.dsn) == []  # the schema is current: no right to create is needed
    async with connected(role.dsn) as connection:
        for name, query in load_all().items():
            parameters = max((number for number in range(1, 100) if f"${number}" in query.sql), default=0)
            values = f"({', '.join(['NULL'] * parameters)})" if parameters else ""
            await connection.execute(f"PREPARE {name} AS {query.sql}")
            await connection.execute(f"EXPLAIN EXECUTE {name}{values}")  # checks the rights, changes nothing
    async with open_ledger(role.dsn, node="plain", lease_s=30) as ledger:
        (term,) = await ledger.acquire([SIGNER])
        assert (await ledger.commit(LaneWrite(term, cursor_after=Cursor(0, 0)))).applied


async def test_with_the_printed_grants_a_node_does_its_work(role: Role, instant_chain: OwnChain) -> None:
    """EXPLAIN does not check what a statement's functions draw from: only a node that works shows that."""
    await role.grant()
    account = instant_chain.accounts[0]
    async with open_fencepost(
        role.dsn, instant_chain, account, options={"confirmations.required": "0"}
    ) as fencepost:
        tx_id = await fencepost.create(signer=account.address, request_id="order-1", to=account.address)
        tx = await fencepost.wait_for(tx_id, "finished")
    assert tx is not None
    assert tx.state is State.CONFIRMED


async def test_a_sequence_without_a_grant_is_named(role: Role) -> None:
    await role.grant(without="SEQUENCE")
    with pytest.raises(DatabaseUnusable, match="lacks USAGE on managed_tx_seq_seq: run what"):
        await require_rights(role.dsn, timeout_s=5)


async def test_every_granted_right_is_used_by_a_statement() -> None:
    rights = needed_rights()
    assert rights["journal_batch"] == ("SELECT", "INSERT", "DELETE")
    assert rights["tx_attempt"] == ("SELECT", "INSERT")
    assert rights["journal"] == rights["schema_migration"] == ("SELECT",)
    assert set(rights["managed_tx"]) == {"SELECT", "INSERT", "UPDATE"}
    assert rights["signer_lease"] == (
        "SELECT",
        "INSERT",
        "UPDATE",
    )  # a deleted lease would start its tokens again
    assert "DELETE" in rights["fencepost_node"]


async def test_a_missing_right_is_reported_in_one_line(role: Role) -> None:
    with pytest.raises(DatabaseUnusable, match=r"lacks .* more: run what `fencepost migrate grants plain "):
        await require_rights(role.dsn, timeout_s=5)
    await role.grant(without="journal_batch")
    with pytest.raises(DatabaseUnusable) as refused:
        await require_rights(role.dsn, timeout_s=5)
    assert "lacks DELETE on journal_batch, INSERT on journal_batch, SELECT on journal_batch: run what" in str(
        refused.value
    )
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "x" * (MAX_ROLE_BYTES + 1), "a\0b"])
def test_an_impossible_role_name_is_rejected(name: str) -> None:
    with pytest.raises(DatabaseUnusable, match="a role name must have"):
        grants(name)


async def test_the_commands_report_missing_rights_and_print_the_grants(role: Role, anvil: TestChain) -> None:
    key = {"FENCEPOST_KEY_0": anvil.private_keys[0].hex()}
    up = ("up", "--port=0", "--dsn", role.dsn, "--rpc-url", anvil.rpc_url)
    status, _, errors = await run_fencepost(*up, env=key)
    assert (status, errors.count("\n")) == (2, 1), errors
    assert "fencepost migrate grants" in errors

    status, out, errors = await run_fencepost("migrate", "grants", role.name)
    assert status == 0, errors
    for statement in out.splitlines():
        if "fencepost_node" not in statement:
            await role.admin.execute(statement)
    status, _, errors = await run_fencepost(*up, env=key)
    assert (status, errors.count("\n")) == (2, 1), errors
    assert "on fencepost_node" in errors

    status, out, _ = await run_fencepost(
        "doctor", "--json", "--dsn", role.dsn, "--rpc-url", anvil.rpc_url, env=key
    )
    assert status == 1
    assert "on fencepost_node" in out
    status, _, errors = await run_fencepost("migrate", "grants")
    assert status == 2
    assert "fencepost migrate grants ROLE" in errors
