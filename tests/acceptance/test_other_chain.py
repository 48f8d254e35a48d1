"""An endpoint serves another chain, briefly or permanently: nothing fails, nothing is undone, and Fencepost names the endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from fencepost.dev.anvil import AnvilNode, anvil_node
from fencepost.errors import ChainUnusable, SettingError
from fencepost.facade import Fencepost
from fixtures.core import Account, DatabaseReader, OwnChain
from fixtures.gateway import gateway_to
from fixtures.nodes import open_fencepost
from fixtures.postgres import run_folder

COUNT = 6
OPTIONS = {"nonce.mode": "pipelined", "nonce.max_in_flight": "3", "resubmit.interval": "1s"}
RE_POINTED_FOR_S = 6.0


@asynccontextmanager
async def other_chain(binary: Path, *, chain_id: int) -> AsyncIterator[AnvilNode]:
    folder = run_folder() / f"chain-{uuid4().hex[:12]}"
    extra = ["--timestamp", "1600000000"]
    async with anvil_node(
        binary=binary, run_dir=folder, chain_id=chain_id, block_time_s=0.1, accounts=10, extra=extra
    ) as node:
        yield node


async def ask(fencepost: Fencepost, account: Account, name: str) -> None:
    for number in range(COUNT):
        await fencepost.create(
            signer=account.address, request_id=f"{name}-{number}", to=account.address, value_wei=number
        )


@pytest.mark.parametrize("chain_id", [5, 31_337])
async def test_an_endpoint_that_briefly_serves_another_chain_finishes_nothing(
    dsn: str,
    interval_chain: OwnChain,
    anvil_binary: Path,
    db: DatabaseReader,
    *,
    caplog: pytest.LogCaptureFixture,
    chain_id: int,
) -> None:
    """The gateway keeps its connections. With the same chain id but another genesis block the signer is protected."""
    account = interval_chain.accounts[0]
    async with gateway_to(interval_chain) as gateway, other_chain(anvil_binary, chain_id=chain_id) as other:
        chain = replace(interval_chain, rpc_url=gateway.url)
        async with open_fencepost(dsn, chain, account, options=OPTIONS) as fencepost:
            await ask(fencepost, account, "before")
            await db.until_states(account, CONFIRMED=COUNT)
            gateway.target = other.rpc_url
            await ask(fencepost, account, "meanwhile")
            if chain_id == interval_chain.chain_id:
                assert "use a new database" in await db.until_protected(account)
            else:
                await asyncio.sleep(RE_POINTED_FOR_S)
                assert "is on chain 5, not 31337" in caplog.text
            states = await db.states(account)
            assert set(states) <= {"QUEUED", "ALLOCATED", "SUBMITTED", "TRACKING", "CONFIRMED"}
            assert states["CONFIRMED"] >= COUNT
            gateway.target = interval_chain.rpc_url
            if chain_id == interval_chain.chain_id:
                signer = fencepost.signer(account.address)
                await fencepost.running.ledger.add_command(
                    signer, "unprotect", tx_id=None, author="test", reason=None, detail={"decision": "keep"}
                )
                fencepost.running.node.hint(signer)
            await db.until_states(account, CONFIRMED=2 * COUNT)
    mined = await interval_chain.mined_from(account.address)
    assert [int(tx["nonce"], 16) for tx in mined] == list(range(2 * COUNT))
    assert not await db.connection.fetchval("SELECT count(*) FROM journal WHERE event = 'Fork'")


async def test_a_node_does_not_start_on_a_chain_with_another_genesis_block(
    dsn: str, interval_chain: OwnChain, anvil_binary: Path
) -> None:
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account):
        pass
    async with other_chain(anvil_binary, chain_id=interval_chain.chain_id) as other:
        with pytest.raises(ChainUnusable, match="use a new database if the chain was started anew"):
            async with open_fencepost(dsn, replace(interval_chain, rpc_url=other.rpc_url), account):
                pytest.fail("it must not open")
    async with open_fencepost(dsn, interval_chain, account):
        pass


async def test_the_chain_id_is_required(dsn: str, interval_chain: OwnChain) -> None:
    with pytest.raises(SettingError, match=r"reports chain 31337.*chains.default.id = 31337"):
        async with Fencepost.open(dsn=dsn, rpc_url=interval_chain.rpc_url):
            pytest.fail("it must not open")
