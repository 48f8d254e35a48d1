"""Send JSON by POST to one URL, over persistent connections.

Contract
- `post` sends once and returns status and body, or raises: `TimeoutError`; `ConnectionLost` if the server disconnected,
  sent something that is not HTTP, or stopped half-way; `BodyTooLarge`; `OSError` if there was no connection.
- After any of those the connection is closed: later bytes could not be assigned to a request.
- An HTTP response does not name its request. The first one on a connection (after the handshake) can't belong to another
  request: `is_first`. For a while after `disable_reuse` every response is a first one.
- A new connection is first passed to `handshake`, which may send requests over it; `post` raises its errors before the
  caller's body is sent. A server that closes after each response gets at most one handshake per second. `reconnect`
  makes all later calls use new connections.
- No redirects, cookies, proxies or compression. User and password of the URL are sent as basic authorization.

It exists because a general client takes ten times as long per call as this one, and a transaction waits for several
calls, one after another.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final, NamedTuple, cast

import httptools
from aiohappyeyeballs import start_connection
from yarl import URL

_MAX_CONNECTIONS: Final = 16
_NEXT_ADDRESS_AFTER_S: Final = 0.25
_MAX_IDLE_S: Final = 60.0  # after that the server may have dropped the connection silently
_MIN_FINAL_STATUS: Final = 200  # lower ones only announce a response
_NO_REUSE_S: Final = 60.0
_MAX_HANDSHAKE_BYTES: Final = 1024 * 1024
_HANDSHAKE_TTL_S: Final = 1.0  # for servers that close after each response


class ConnectionLost(ConnectionError):
    """The connection ended before the whole response arrived."""


class BodyTooLarge(ValueError):
    """The response body exceeds the limit."""


class HttpResponse(NamedTuple):
    status: int
    body: bytes
    is_first: bool  # only the handshake came before it on its connection


Exchange = Callable[[bytes], Awaitable[HttpResponse]]
Handshake = Callable[[Exchange], Awaitable[None]]


class HttpTransport:
    """Send requests in one event loop; `aclose` ends those in progress."""

    def __init__(
        self, url: str, *, timeout_s: float, body_bytes_max: int, handshake: Handshake | None = None
    ) -> None:
        parsed = URL(url)
        if parsed.host is None or parsed.port is None:
            raise ValueError("the URL has no host")
        self._host, self._port = parsed.raw_host or parsed.host, parsed.port
        self._tls = ssl.create_default_context() if parsed.scheme == "https" else None
        self._head = _head(parsed)
        self._timeout_s = timeout_s
        self._body_bytes_max = body_bytes_max
        self._free: list[_Connection] = []  # the most recently used one is last
        self._all: set[_Connection] = set()
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._no_reuse_until_s = 0.0
        self._handshake = handshake
        self._handshake_valid_until_s = 0.0  # for a server that closes after each response
        self._generation = 0  # connections of earlier generations are not used again

    async def post(self, body: bytes, *, body_bytes_max: int | None = None) -> HttpResponse:
        """Send once. `body_bytes_max` bounds the body of this answer instead of the usual bound."""
        return await self._post(body, self._body_bytes_max if body_bytes_max is None else body_bytes_max)

    async def handshake(self) -> None:
        """Open a connection and run the handshake, without another request."""
        await self._post(None, self._body_bytes_max)

    async def _post(self, body: bytes | None, body_bytes_max: int) -> HttpResponse:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        if self._slots.locked():
            async with asyncio.timeout_at(deadline_s):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            idle = None if body is None else self._idle_connection(loop.time())
            connection = idle or await self._connect_with_handshake(deadline_s, must_handshake=body is None)
            status, answer = 0, b""
            try:
                if body is not None:
                    status, answer = await connection.ask(self._request(body), deadline_s, body_bytes_max)
            except BaseException:
                connection.close()
                raise
            if connection.used_at_s < self._no_reuse_until_s or connection.generation != self._generation:
                connection.close()
            elif connection.is_open:
                self._free.append(connection)
            return HttpResponse(status, answer, is_first=idle is None)
        finally:
            self._slots.release()

    def _request(self, body: bytes) -> bytes:
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)

    async def _connect_with_handshake(self, deadline_s: float, *, must_handshake: bool) -> _Connection:
        """Connect, and run the handshake before anything else is sent."""
        loop = asyncio.get_running_loop()
        connection = await self._connect(deadline_s)
        if self._handshake is None or (not must_handshake and loop.time() < self._handshake_valid_until_s):
            return connection

        async def exchange(body: bytes) -> HttpResponse:
            nonlocal connection
            if not connection.is_open:
                connection = await self._connect(deadline_s)
            bytes_max = min(self._body_bytes_max, _MAX_HANDSHAKE_BYTES)
            response = await connection.ask(self._request(body), deadline_s, bytes_max)
            return HttpResponse(*response, is_first=True)

        try:
            await self._handshake(exchange)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            return connection
        self._handshake_valid_until_s = loop.time() + _HANDSHAKE_TTL_S
        return await self._connect(deadline_s)

    def _idle_connection(self, now_s: float) -> _Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_open and now_s - connection.used_at_s < _MAX_IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self, deadline_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(deadline_s):
            addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            # Try the addresses concurrently: a silent one must not delay the others.
            sock = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_AFTER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._all),
                sock=sock,
                ssl=self._tls,
                server_hostname=self._host if self._tls else None,
            )
        connection.generation = self._generation
        return connection

    def reconnect(self) -> None:
        """Do not reuse connections that are open now; calls in progress are not affected."""
        self._generation += 1
        self._handshake_valid_until_s = 0.0
        self.close_idle()

    def close_idle(self) -> None:
        """Close all idle connections: the next bytes on them may answer an earlier request."""
        while self._free:
            self._free.pop().close()

    def disable_reuse(self) -> None:
        """Use no connection twice for a while, because a response could not be assigned to a request."""
        self._no_reuse_until_s = asyncio.get_running_loop().time() + _NO_REUSE_S
        self.close_idle()

    async def aclose(self) -> None:
        for connection in list(self._all):
            connection.close()
        await asyncio.sleep(0)  # the loop reports closed connections in its next turn


def _head(parsed: URL) -> bytes:
    """Build the head of a request up to the value of `content-length`."""
    lines = [
        f"POST {parsed.raw_path_qs} HTTP/1.1",
        f"host: {parsed.host_port_subcomponent}",
        f"user-agent: fencepost/{version('fencepost')}",  # some gateways reject requests without one
        "accept: application/json",
        "accept-encoding: identity",
        "content-type: application/json",
    ]
    if parsed.user is not None:
        lines.append(
            "authorization: Basic " + b64encode(f"{parsed.user}:{parsed.password or ''}".encode()).decode()
        )
    return ("\r\n".join(lines) + "\r\ncontent-length: ").encode()


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_connections: set[_Connection]) -> None:
        self._loop = loop
        self._all = open_connections
        self._body_bytes_max = 0
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None  # while a response is awaited
        self.used_at_s = 0.0
        self.generation = 0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, deadline_s: float, body_bytes_max: int) -> tuple[int, bytes]:
        self._body_bytes_max = body_bytes_max
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._has_length = self._has_headers = False
        self._answer = self._loop.create_future()
        timer = self._loop.call_at(deadline_s, self._fail, TimeoutError())
        try:
            self._transport.write(request)
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None
            self._body = bytearray()  # an idle connection must not keep the last answer in memory
            self.used_at_s = self._loop.time()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # unrequested bytes: they could be taken for the next response
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ConnectionLost())
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        if exc is None and self._answer is not None and self._has_headers and not self._has_length:
            self._done()  # a body without a length ends with its connection
        self._fail(ConnectionLost())

    # ---- called by the parser

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # more responses than requests

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length" or (
            name.lower() == b"transfer-encoding" and b"chunked" in value.lower()
        ):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._has_headers = True

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > self._body_bytes_max:
            self._fail(BodyTooLarge())
            self.close()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < _MIN_FINAL_STATUS:
            self._has_length = self._has_headers = False
            return
        self._done()

    def _done(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), bytes(self._body)))
