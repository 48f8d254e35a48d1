"""A lane waits for an endpoint that fails for a while: the signer keeps its lease, and nothing is sent twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from fixtures.core import WITHIN_S, Client, DatabaseReader, OwnChain, check_all_mined_once
from fixtures.gateway import Gateway, gateway_to
from fixtures.nodes import open_fencepost

COUNT = 5
OPTIONS = {"nonce.mode": "pipelined", "nonce.max_in_flight": "3"}


@pytest.fixture
async def gateway(interval_chain: OwnChain) -> AsyncIterator[Gateway]:
    async with gateway_to(interval_chain) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("method", "carries_out"),
    [
        ("eth_estimateGas", False),
        ("eth_feeHistory", False),
        ("eth_getTransactionCount", False),
        ("eth_sendRawTransaction", False),
        ("eth_sendRawTransaction", True),
        ("eth_getTransactionReceipt", False),
        ("eth_getBlockByNumber", False),
    ],
)
async def test_everything_is_mined_once_in_one_term(
    dsn: str,
    interval_chain: OwnChain,
    gateway: Gateway,
    db: DatabaseReader,
    client: Client,
    *,
    method: str,
    carries_out: bool,
) -> None:
    account = interval_chain.accounts[0]
    gateway.failing, gateway.failures_left, gateway.carries_out = method, 2, carries_out
    chain = replace(interval_chain, rpc_url=gateway.url)
    async with open_fencepost(dsn, chain, account, options=OPTIONS) as fencepost:
        await client.ask(account, COUNT)
        await db.until_states(account, CONFIRMED=COUNT)
        assert fencepost.running.observer.counts["lane_lost"] == 0
    assert gateway.failed == 2
    assert len(await db.terms(account)) == 1
    await check_all_mined_once(db, interval_chain, account, COUNT)


async def test_a_nonce_too_low_answer_triggers_a_receipt_lookup_instead_of_a_failure(
    dsn: str, manual_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    """The transaction is mined while blocks cannot be read; the node learns it when it sends the bytes again."""
    account = manual_chain.accounts[0]
    (tx_id,) = await client.ask(account, 1)
    async with gateway_to(manual_chain) as gateway:
        chain = replace(manual_chain, rpc_url=gateway.url)
        options = {"resubmit.interval": "1s"}
        async with open_fencepost(dsn, chain, account, options=options) as fencepost:
            await fencepost.wait_for(tx_id, "submitted")
            gateway.failing, gateway.failures_left = "eth_getBlockByNumber", 10**6
            await manual_chain.mine()
            mined = await fencepost.wait_for(tx_id, "mined", timeout_s=WITHIN_S)
    assert mined is not None
    assert (mined.state, mined.ending, len(mined.attempts)) == ("TRACKING", None, 1)
    said = [detail["result"] for event, detail in await db.journal(tx_id) if event == "SendResult"]
    assert said[-1] == "nonce_too_low"
    assert len(await manual_chain.mined_from(account.address)) == 1
