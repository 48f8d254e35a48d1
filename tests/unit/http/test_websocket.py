"""WebSockets: authenticated before they are accepted, bounded, and counted as connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fakes.raw_http import WITHIN_S, RawConnection, until
from fencepost.http.connection_limits import ConnectionLimits
from fencepost.http.server import bind, serve
from fencepost.http.websocket import MAX_MESSAGE_BYTES

KEY = {"authorization": "Bearer good"}
_HANDSHAKE = (
    "GET /echo?a=1 HTTP/1.1\r\nhost: here\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nauthorization: Bearer good\r\n"
)


@dataclass(slots=True)
class Echo:
    """Rejects handshakes without a key; else returns each message. Answers HTTP with the number of open sockets."""

    scopes: list[Scope] = field(default_factory=list)
    open: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"http"})
            return
        self.scopes.append(scope)
        assert (await receive())["type"] == "websocket.connect"
        if dict(scope["headers"]).get(b"authorization") != b"Bearer good":
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        self.open += 1
        try:
            while (message := await receive())["type"] == "websocket.receive":
                if scope["path"] == "/flood":
                    while True:
                        await send({"type": "websocket.send", "bytes": b"x" * 65_536})
                await send({"type": "websocket.send", "text": message["text"]})
        finally:
            self.open -= 1


@dataclass(frozen=True, slots=True)
class Server:
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"ws://{self.host}:{self.port}"

    async def exchange(self, request: bytes) -> bytes:
        """Send bytes, and return everything until the server closes."""
        wire = RawConnection(*await asyncio.open_connection(self.host, self.port))
        try:
            wire.send(request)
            return await wire.rest()
        finally:
            wire.writer.close()


@asynccontextmanager
async def serving(
    app: Echo, *, limits: ConnectionLimits | None = None, allow: bool = True
) -> AsyncIterator[Server]:
    with bind("127.0.0.1", 0) as listener:
        async with (
            asyncio.timeout(2 * WITHIN_S),
            serve(app, listener, limits=limits, allow_websockets=allow),
        ):
            yield Server(*listener.getsockname())


async def test_messages_go_both_ways() -> None:
    app = Echo()
    async with serving(app) as server, connect(f"{server.url}/a%20b?c=d", additional_headers=KEY) as socket:
        for text in ("one", "zwei ü", "x" * MAX_MESSAGE_BYTES):
            await socket.send(text)
            assert await socket.recv() == text
        scope = app.scopes[0]
        assert (scope["type"], scope["path"], scope["query_string"]) == ("websocket", "/a b", b"c=d")
        assert scope["client"][0] == "127.0.0.1"


async def test_a_handshake_is_rejected_before_it_is_accepted() -> None:
    async with serving(app := Echo()) as server:
        with pytest.raises(InvalidStatus) as raised:
            await connect(server.url)
        assert (raised.value.response.status_code, app.open) == (403, 0)


async def test_a_message_above_the_limit_closes_the_socket() -> None:
    async with serving(app := Echo()) as server, connect(server.url, additional_headers=KEY) as socket:
        await socket.send("x" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(ConnectionClosed) as raised:
            await socket.recv()
        assert raised.value.rcvd is not None
        assert raised.value.rcvd.code == 1009
        await until(lambda: app.open == 0)


async def test_fragments_above_the_limit_close_the_socket() -> None:
    async with serving(app := Echo()) as server, connect(server.url, additional_headers=KEY) as socket:
        with suppress(ConnectionClosed):  # the server may close before the last fragment
            await socket.send(["x" * 10_000] * 10)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        await until(lambda: app.open == 0)


async def test_the_application_learns_that_the_client_left() -> None:
    async with serving(app := Echo()) as server, connect(server.url, additional_headers=KEY) as socket:
        await until(lambda: app.open == 1)
        socket.transport.abort()
        await until(lambda: app.open == 0)


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    limits = ConnectionLimits(idle_timeout_s=0.2, write_timeout_s=0.3)
    app = Echo()
    async with (
        serving(app, limits=limits) as server,
        connect(f"{server.url}/flood", additional_headers=KEY) as socket,
    ):
        await until(lambda: app.open == 1)
        socket.transport.pause_reading()
        await socket.send("begin")
        await until(lambda: app.open == 0)
        socket.transport.abort()


async def test_sockets_count_as_connections_until_they_end() -> None:
    app = Echo()
    async with serving(app, limits=ConnectionLimits(max_connections=2, max_per_peer=2)) as server:
        async with connect(server.url, additional_headers=KEY), connect(server.url, additional_headers=KEY):
            await until(lambda: app.open == 2)
            assert (await server.exchange(b"GET /echo HTTP/1.1\r\nhost: here\r\n\r\n")).startswith(
                b"HTTP/1.1 503 "
            )
            with pytest.raises(InvalidStatus):
                await connect(server.url, additional_headers=KEY)
        await until(lambda: app.open == 0)
        assert (
            await server.exchange(b"GET /echo HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
        ).endswith(b"http")


async def test_a_stopping_server_closes_its_sockets() -> None:
    app = Echo()
    async with serving(app) as server:
        socket = await connect(server.url, additional_headers=KEY)
    with pytest.raises(ConnectionClosed) as raised:
        await socket.recv()
    assert raised.value.rcvd is not None
    assert raised.value.rcvd.code == 1012
    await until(lambda: app.open == 0)


async def test_frames_behind_the_handshake_are_read() -> None:
    frame = b"\x81\x82\0\0\0\0hi"
    async with serving(Echo()) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        try:
            writer.write(_HANDSHAKE.encode() + b"\r\n" + frame)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            assert await reader.readexactly(4) == b"\x81\x02hi"
        finally:
            writer.close()


@pytest.mark.parametrize(
    "more",
    [
        "content-length: 2\r\n\r\nhi",
        "transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_a_handshake_with_a_body_is_a_plain_request(more: str) -> None:
    async with serving(app := Echo()) as server:
        assert (await server.exchange((_HANDSHAKE + more).encode())).endswith(
            b"connection: close\r\n\r\nhttp"
        )
        assert not app.scopes


@pytest.mark.parametrize("more", ["x-long: " + "x" * 20_000 + "\r\n", "x-many: 1\r\n" * 500])
async def test_a_handshake_that_can_not_be_read_is_rejected(more: str) -> None:
    async with serving(app := Echo()) as server:
        assert (await server.exchange((_HANDSHAKE + more + "\r\n").encode())).startswith(b"HTTP/1.1 400 ")
        assert not app.scopes


async def test_a_handshake_without_a_key_header_is_rejected() -> None:
    async with serving(app := Echo()) as server:
        assert (
            await server.exchange(
                b"GET / HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
            )
        ).startswith(b"HTTP/1.1 4")
        assert not app.scopes


async def test_an_application_without_websockets_gets_a_plain_request() -> None:
    async with serving(app := Echo(), allow=False) as server:
        assert (await server.exchange(_HANDSHAKE.encode() + b"\r\n")).endswith(
            b"connection: close\r\n\r\nhttp"
        )
        assert not app.scopes
