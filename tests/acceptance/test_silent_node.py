"""A node of the chain that fails for a while is waited for: the signer stays where it is, and nothing is doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp
import pytest
from aiohttp import web

from fix_core import WITHIN_S, Book, Client, OwnChain, check_all_mined_once
from fix_nodes import open_fencepost

COUNT = 5
OPTIONS = {"nonce.mode": "pipelined", "nonce.max_in_flight": "3"}


@dataclass(slots=True)
class Gateway:
    """In front of a chain: fails the next calls of a method, either instead of them or after they were carried out."""

    target: str
    url: str = ""
    failing: str = ""
    failures_left: int = 0
    carries_out: bool = False
    failed: int = field(default=0)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        fails = self.failures_left > 0 and f'"{self.failing}"'.encode() in body
        if fails:
            self.failures_left -= 1
            self.failed += 1
        if fails and not self.carries_out:
            return web.Response(status=503)
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.target, data=body, headers=headers) as answer,
        ):
            content = await answer.read()
        return web.Response(status=503) if fails else web.Response(body=content, headers=headers)


@asynccontextmanager
async def gateway_to(chain: OwnChain) -> AsyncIterator[Gateway]:
    gateway = Gateway(chain.rpc_url)
    app = web.Application()
    app.router.add_post("/", gateway.handle)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        gateway.url = f"http://{host}:{port}/"
        yield gateway
    finally:
        await runner.cleanup()


@pytest.fixture
async def gateway(ticking: OwnChain) -> AsyncIterator[Gateway]:
    async with gateway_to(ticking) as gateway:
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
    ticking: OwnChain,
    gateway: Gateway,
    book: Book,
    client: Client,
    *,
    method: str,
    carries_out: bool,
) -> None:
    account = ticking.accounts[0]
    gateway.failing, gateway.failures_left, gateway.carries_out = method, 2, carries_out
    chain = replace(ticking, rpc_url=gateway.url)
    async with open_fencepost(dsn, chain, account, options=OPTIONS) as fencepost:
        await client.ask(account, COUNT)
        await book.until_states(account, CONFIRMED=COUNT)
        assert fencepost.running.observer.counts["lane_lost"] == 0
    assert gateway.failed == 2
    assert len(await book.terms(account)) == 1
    await check_all_mined_once(book, ticking, account, COUNT)


async def test_a_nonce_too_low_sends_a_node_to_look_and_not_to_give_up(
    dsn: str, by_hand: OwnChain, book: Book, client: Client
) -> None:
    """It is mined while blocks can't be read; the node learns of it when it sends the bytes once more."""
    account = by_hand.accounts[0]
    (tx_id,) = await client.ask(account, 1)
    async with gateway_to(by_hand) as gateway:
        chain = replace(by_hand, rpc_url=gateway.url)
        options = {"resubmit.interval": "1s"}
        async with open_fencepost(dsn, chain, account, options=options) as fencepost:
            await fencepost.wait_for(tx_id, "submitted")
            gateway.failing, gateway.failures_left = "eth_getBlockByNumber", 10**6
            await by_hand.mine()
            mined = await fencepost.wait_for(tx_id, "mined", timeout_s=WITHIN_S)
    assert mined is not None
    assert (mined.state, mined.ending, len(mined.attempts)) == ("TRACKING", None, 1)
    said = [detail["result"] for event, detail in await book.journal(tx_id) if event == "SendResult"]
    assert said[-1] == "nonce_too_low"
    assert len(await by_hand.mined_from(account.address)) == 1
