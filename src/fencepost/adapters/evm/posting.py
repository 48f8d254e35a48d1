"""POSTs of JSON to one URL, over connections that are kept.

Contract
- `post` sends once and gives status and body, or raises: `TimeoutError`; `ConnectionLost` when the other side went away,
  said something that is not HTTP, or stopped half-way; `BodyTooLarge`; `OSError` when nobody could be reached.
- After any of those the connection is closed: whatever still comes belongs to nobody.
- HTTP does not say what an answer is to. The first on its connection can be to nothing else, and `is_first` says so; for
  a while after `doubt` every answer is one.
- No redirects, cookies, proxies or compression. Names and passwords of the URL go as basic authorization.

It exists because a general client spends ten times as long on a call as the call's own bytes need, and a transaction
waits for several calls, one after another.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode
from importlib.metadata import version
from typing import Final, NamedTuple, cast

import httptools
from aiohappyeyeballs import start_connection
from yarl import URL

_CONNECTIONS_MAX: Final = 16
_NEXT_ADDRESS_AFTER_S: Final = 0.25
_IDLE_S_MAX: Final = 60.0  # a connection that rested longer may be gone without a word
_FINAL_STATUS_MIN: Final = 200  # what is below only announces an answer
_DOUBT_S: Final = 60.0


class ConnectionLost(ConnectionError):
    """There will be no answer, or no whole one."""


class BodyTooLarge(ValueError):
    """More than anybody wants to read."""


class Posted(NamedTuple):
    status: int
    body: bytes
    is_first: bool  # nothing was asked before on its connection


class Poster:
    """For one loop; `aclose` ends what is under way."""

    def __init__(self, url: str, *, timeout_s: float, body_bytes_max: int) -> None:
        place = URL(url)
        if place.host is None or place.port is None:
            raise ValueError("the URL names no host")
        self._host, self._port = place.raw_host or place.host, place.port
        self._tls = ssl.create_default_context() if place.scheme == "https" else None
        self._head = _head(place)
        self._timeout_s = timeout_s
        self._body_bytes_max = body_bytes_max
        self._free: list[_Connection] = []  # the one that rested least comes last
        self._all: set[_Connection] = set()
        self._slots = asyncio.Semaphore(_CONNECTIONS_MAX)
        self._doubts_until_s = 0.0

    async def post(self, body: bytes) -> Posted:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._timeout_s
        if self._slots.locked():
            async with asyncio.timeout_at(deadline_s):
                await self._slots.acquire()
        else:
            await self._slots.acquire()
        try:
            rested = self._rested(loop.time())
            connection = rested or await self._connect(deadline_s)
            request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
            try:
                status, answer = await connection.ask(request, deadline_s)
            except BaseException:
                connection.close()
                raise
            if connection.used_at_s < self._doubts_until_s:
                connection.close()
            elif connection.is_open:
                self._free.append(connection)
            return Posted(status, answer, is_first=rested is None)
        finally:
            self._slots.release()

    def _rested(self, now_s: float) -> _Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_open and now_s - connection.used_at_s < _IDLE_S_MAX:
                return connection
            connection.close()
        return None

    async def _connect(self, deadline_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout_at(deadline_s):
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            # Addresses that are silent are not waited for one by one.
            reached = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_AFTER_S)
            reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, connection = await loop.create_connection(
                lambda: _Connection(loop, self._all, self._body_bytes_max),
                sock=reached,
                ssl=self._tls,
                server_hostname=self._host if self._tls else None,
            )
        return connection

    def close_resting(self) -> None:
        """What comes on them next may be something that was said before."""
        while self._free:
            self._free.pop().close()

    def doubt(self) -> None:
        """Nobody knows what it was that was answered: for a while no connection is used twice."""
        self._doubts_until_s = asyncio.get_running_loop().time() + _DOUBT_S
        self.close_resting()

    async def aclose(self) -> None:
        for connection in list(self._all):
            connection.close()
        await asyncio.sleep(0)  # their ends are told in the loop's next turn


def _head(place: URL) -> bytes:
    """All of a request but the length of its body, and that body."""
    lines = [
        f"POST {place.raw_path_qs} HTTP/1.1",
        f"host: {place.host_port_subcomponent}",
        f"user-agent: fencepost/{version('fencepost')}",  # some gateways refuse whoever has no name
        "accept: application/json",
        "accept-encoding: identity",
        "content-type: application/json",
    ]
    if place.user is not None:
        lines.append(
            "authorization: Basic " + b64encode(f"{place.user}:{place.password or ''}".encode()).decode()
        )
    return ("\r\n".join(lines) + "\r\ncontent-length: ").encode()


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, all_of_them: set[_Connection], body_bytes_max: int
    ) -> None:
        self._loop = loop
        self._all = all_of_them
        self._body_bytes_max = body_bytes_max
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None  # while one is awaited
        self.used_at_s = 0.0

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, deadline_s: float) -> tuple[int, bytes]:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._ends_by_itself = self._has_headers = False
        self._answer = self._loop.create_future()
        timer = self._loop.call_at(deadline_s, self._fail, TimeoutError())
        try:
            self._transport.write(request)
            return await self._answer
        finally:
            timer.cancel()
            self._answer = None
            self.used_at_s = self._loop.time()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # ---- what the transport says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody asked: what follows could be taken for the next answer
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ConnectionLost())
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        if exc is None and self._answer is not None and self._has_headers and not self._ends_by_itself:
            self._done()  # a body without a length ends with its connection
        self._fail(ConnectionLost())

    # ---- what the parser says

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # more than was asked for

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-length" or (
            name.lower() == b"transfer-encoding" and b"chunked" in value.lower()
        ):
            self._ends_by_itself = True

    def on_headers_complete(self) -> None:
        self._has_headers = True

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > self._body_bytes_max:
            self._fail(BodyTooLarge())
            self.close()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < _FINAL_STATUS_MIN:
            self._ends_by_itself = self._has_headers = False
            return
        self._done()

    def _done(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), bytes(self._body)))
