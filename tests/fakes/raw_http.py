"""An application that acts by the request path, and a client that speaks HTTP to it byte by byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope, Send

from fencepost.http.connection_limits import ConnectionLimits
from fencepost.http.server import bind, serve
from fixtures.core import eventually

WITHIN_S = 20.0
_DATE = re.compile(rb"date: [^\r]*\r\n")


@dataclass(slots=True)
class Echo:
    """Answers with what it received; the path selects other behaviour."""

    scopes: list[Scope] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    busy: int = 0
    most_busy: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            await getattr(self, scope["path"].split("/")[1], self.echo)(receive, send)
        finally:
            self.busy -= 1

    async def echo(self, receive: Receive, send: Send) -> None:
        self.bodies.append(await whole(receive))
        await asyncio.sleep(0)
        await _say(send, self.bodies[-1])

    async def unread(self, _receive: Receive, send: Send) -> None:
        await _say(send, b"not read")

    async def slow(self, receive: Receive, send: Send) -> None:
        await whole(receive)
        await self.may_answer.wait()
        await _say(send, b"slow")

    async def late(self, receive: Receive, send: Send) -> None:
        await self.may_answer.wait()
        await self.echo(receive, send)

    async def watch(self, receive: Receive, send: Send) -> None:
        await whole(receive)
        assert (await receive())["type"] == "http.disconnect"
        self.gone.set()
        await _say(send, b"after disconnect")

    async def empty(self, _receive: Receive, send: Send) -> None:
        await _say(send, b"", status=204)

    async def large(self, _receive: Receive, send: Send) -> None:
        await _say(send, b"x" * 30_000_000)
        self.gone.set()

    async def broken(self, _receive: Receive, _send: Send) -> None:
        raise ValueError("on purpose")

    async def silent(self, _receive: Receive, _send: Send) -> None:
        return

    async def split(self, _receive: Receive, send: Send) -> None:
        await _say(send, b"", (b"location", b"/a\r\nset-cookie: b"))

    async def begins_wrongly(self, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": b""})

    async def says_more(self, _receive: Receive, send: Send) -> None:
        await _say(send, b"said")
        await _say(send, b"more")


async def whole(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body + b" (cut)"
        body += message["body"]
        more = message["more_body"]
    return body


async def _say(send: Send, body: bytes, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True, slots=True)
class RawConnection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def answer(self) -> bytes:
        """Read one answer, without its date."""
        async with asyncio.timeout(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: ([0-9]+)", head)
            body = await self.reader.readexactly(int(length[1])) if length else b""
        return _DATE.sub(b"", head) + body

    async def rest(self) -> bytes:
        """Read everything until the server closes."""
        async with asyncio.timeout(WITHIN_S):
            return _DATE.sub(b"", await self.reader.read())


@asynccontextmanager
async def open_connection(
    app: Any, *, limits: ConnectionLimits | None = None
) -> AsyncIterator[RawConnection]:
    async with serve_connections(app, limits=limits) as connect:
        yield await connect()


@asynccontextmanager
async def serve_connections(
    app: Any, *, limits: ConnectionLimits | None = None
) -> AsyncIterator[Callable[[], Awaitable[RawConnection]]]:
    """Serve the application; each call of the yielded function opens another connection."""
    opened: list[RawConnection] = []
    with bind("127.0.0.1", 0) as listener:

        async def connect() -> RawConnection:
            opened.append(RawConnection(*await asyncio.open_connection(*listener.getsockname())))
            return opened[-1]

        async with serve(app, listener, limits=limits):
            try:
                yield connect
            finally:
                for wire in opened:
                    wire.writer.close()


async def until(probe: Callable[[], bool]) -> None:
    async def probed() -> bool:
        return probe()

    await eventually(probed, within_s=WITHIN_S)


def post(path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: here", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def ok(body: bytes, *more: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


CLOSES = b"connection: close"
GET = b"GET /echo HTTP/1.1\r\nhost: here\r\n\r\n"
