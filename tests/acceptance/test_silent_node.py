"""A node of the chain that fails for a while is waited for: the signer stays where it is, and nothing is doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import aiohttp
import pytest
from aiohttp import web

from fix_core import Book, Client, OwnChain, check_all_mined_once, open_fencepost

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


@pytest.fixture
async def gateway(ticking: OwnChain) -> AsyncIterator[Gateway]:
    gateway = Gateway(ticking.rpc_url)
    app = web.Application()
    app.router.add_post("/", gateway.handle)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    gateway.url = f"http://{host}:{port}/"
    yield gateway
    await runner.cleanup()


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
