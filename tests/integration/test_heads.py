"""`watch_heads`: polling, WebSocket hints, a WebSocket that dies, and cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest
from aiohttp import WSMsgType, web

from fencepost.adapters.evm import head_source
from fencepost.adapters.evm.head_source import HeadSource, watch_heads
from fencepost.application.ports import Header
from fencepost.domain.ids import Address
from fencepost.domain.transaction import Call
from fencepost.testing import InMemoryChain

NEVER_S = 600.0
SOON_S = 0.01


def no_transactions(_raw: bytes) -> tuple[Address, int, int, int, Call]:
    raise AssertionError("nothing is sent here")


@pytest.fixture
def chain() -> InMemoryChain:
    return InMemoryChain(no_transactions)


def watching(
    chain: HeadSource, *, poll_interval_s: float, ws_url: str | None = None
) -> aclosing[AsyncGenerator[Header, None]]:
    found = watch_heads(chain, poll_interval_s=poll_interval_s, ws_url=ws_url)
    return aclosing(found)


async def number(found: AsyncIterator[Header]) -> int:
    async with asyncio.timeout(20):
        return (await anext(found)).number


class Publisher:
    """A WebSocket endpoint that grants subscriptions and sends hints on demand."""

    def __init__(self) -> None:
        self.url = ""
        self.grants = True
        self.sockets: list[web.WebSocketResponse] = []
        self.subscribed: asyncio.Queue[web.WebSocketResponse] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        asked = await socket.receive_json()
        assert (asked["method"], asked["params"]) == ("eth_subscribe", ["newHeads"])
        if self.grants:
            await socket.send_json({"jsonrpc": "2.0", "id": asked["id"], "result": "0x1"})
        else:
            await socket.send_json(
                {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}
            )
        await self.subscribed.put(socket)
        while (await socket.receive()).type is WSMsgType.TEXT:
            continue
        self.closed.set()
        return socket

    async def subscription(self) -> web.WebSocketResponse:
        async with asyncio.timeout(20):
            return await self.subscribed.get()


async def hint(socket: web.WebSocketResponse) -> None:
    params = {"subscription": "0x1", "result": {"number": "0x1"}}
    await socket.send_json({"jsonrpc": "2.0", "method": "eth_subscription", "params": params})


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    made = Publisher()
    app = web.Application()
    app.router.add_get("/s3cret", made.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"ws://127.0.0.1:{runner.addresses[0][1]}/s3cret"
    yield made
    await runner.cleanup()


async def test_polling_yields_each_new_head_once(chain: InMemoryChain) -> None:
    async with watching(chain, poll_interval_s=SOON_S) as found:
        assert await number(found) == 0
        chain.mine(10)
        assert await number(found) == 10
        chain.mine()
        assert await number(found) == 11


async def test_a_reorg_is_a_new_head(chain: InMemoryChain) -> None:
    chain.mine(3)
    async with watching(chain, poll_interval_s=SOON_S) as found:
        assert await number(found) == 3
        chain.reorg(2)
        assert await number(found) == 4


async def test_polling_continues_after_an_outage(
    chain: InMemoryChain, caplog: pytest.LogCaptureFixture
) -> None:
    class OutForThreeCalls:
        calls = 0

        async def head(self) -> Header:
            self.calls += 1
            chain.offline = 2 <= self.calls <= 4
            return await chain.head()

    async with watching(OutForThreeCalls(), poll_interval_s=SOON_S) as found:
        assert await number(found) == 0
        chain.mine()
        assert await number(found) == 1
    shown = [record.getMessage() for record in caplog.records]
    assert [words.partition(":")[0] for words in shown] == [
        "cannot read the head of the chain, retrying",
        "the head of the chain can be read again",
    ]


async def test_a_websocket_hint_triggers_a_read(chain: InMemoryChain, publisher: Publisher) -> None:
    async with watching(chain, poll_interval_s=NEVER_S, ws_url=publisher.url) as found:
        assert await number(found) == 0
        waiting = asyncio.create_task(number(found))
        socket = await publisher.subscription()
        await hint(socket)  # without a new head
        chain.mine(2)
        await hint(socket)
        assert await waiting == 2
        # Hints that arrive while the reader is busy yield one head.
        chain.mine(3)
        for _ in range(3):
            await hint(socket)
        assert await number(found) == 5
        waiting = asyncio.create_task(number(found))
        chain.mine()
        await hint(socket)
        assert await waiting == 6


async def test_polling_bridges_a_dead_websocket_until_it_reconnects(
    chain: InMemoryChain,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(head_source, "RETRY_MIN_S", SOON_S)
    async with watching(chain, poll_interval_s=SOON_S, ws_url=publisher.url) as found:
        assert await number(found) == 0
        waiting = asyncio.create_task(number(found))
        first = await publisher.subscription()
        await first.close()
        chain.mine()
        assert await waiting == 1
        waiting = asyncio.create_task(number(found))
        second = await publisher.subscription()
        assert second is not first
        chain.mine()
        await hint(second)
        assert await waiting == 2
    assert "polling" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("grants", [False, None], ids=["not granted", "no answer"])
async def test_without_a_subscription_polling_continues(
    chain: InMemoryChain, publisher: Publisher, unused_tcp_port: int, *, grants: bool | None
) -> None:
    publisher.grants = bool(grants)
    ws_url = f"ws://127.0.0.1:{unused_tcp_port}" if grants is None else publisher.url
    async with watching(chain, poll_interval_s=SOON_S, ws_url=ws_url) as found:
        for expected in range(3):
            assert await number(found) == expected
            chain.mine()


async def test_cancellation_stops_the_feed_and_closes_the_websocket(
    chain: InMemoryChain, publisher: Publisher
) -> None:
    async def follow() -> None:
        async with watching(chain, poll_interval_s=NEVER_S, ws_url=publisher.url) as found:
            async for _ in found:
                pass

    task = asyncio.create_task(follow())
    await publisher.subscription()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        await publisher.closed.wait()
