"""HTTP on a connection: what a client sends in whatever pieces, and what it gets back, to the byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from fencepost.connection import Connection
from fencepost.serving import bind, serve
from fix_core import eventually

WITHIN_S = 20.0
_DATE = re.compile(rb"date: [^\r]*\r\n")


@dataclass(slots=True)
class Echo:
    """Answers with what it got; what it does besides is said by the path."""

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
        self.bodies.append(await _whole(receive))
        await asyncio.sleep(0)
        await _say(send, self.bodies[-1])

    async def unread(self, _receive: Receive, send: Send) -> None:
        await _say(send, b"not read")

    async def slow(self, receive: Receive, send: Send) -> None:
        await _whole(receive)
        await self.may_answer.wait()
        await _say(send, b"slow")

    async def late(self, receive: Receive, send: Send) -> None:
        await self.may_answer.wait()
        await self.echo(receive, send)

    async def watch(self, receive: Receive, send: Send) -> None:
        await _whole(receive)
        assert (await receive())["type"] == "http.disconnect"
        self.gone.set()
        await _say(send, b"nobody hears it")

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


async def _whole(receive: Receive) -> bytes:
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
class Wire:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def say(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def answer(self) -> bytes:
        """One answer, without its date."""
        async with asyncio.timeout(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: ([0-9]+)", head)
            body = await self.reader.readexactly(int(length[1])) if length else b""
        return _DATE.sub(b"", head) + body

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(WITHIN_S):
            return _DATE.sub(b"", await self.reader.read())


@asynccontextmanager
async def wired(app: Any) -> AsyncIterator[Wire]:
    with bind("127.0.0.1", 0) as listener:
        async with serve(app, listener):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            try:
                yield Wire(reader, writer)
            finally:
                writer.close()


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


async def test_one_request_after_the_other() -> None:
    async with wired(Echo()) as wire:
        for body in (b"one", b"", b"three" * 50_000):
            wire.say(post("/echo", body))
            assert await wire.answer() == ok(body)


async def test_what_the_application_gets() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(b"POST /a%20b/c%2Fd?x=%31&y HTTP/1.1\r\nHost: here\r\nX-Two: 1\r\nx-two: 2\r\n\r\n")
        await wire.answer()
    scope = app.scopes[0]
    assert (scope["type"], scope["method"], scope["http_version"]) == ("http", "POST", "1.1")
    assert (scope["path"], scope["raw_path"]) == ("/a b/c/d", b"/a%20b/c%2Fd")
    assert scope["query_string"] == b"x=%31&y"
    assert scope["headers"] == [(b"host", b"here"), (b"x-two", b"1"), (b"x-two", b"2")]
    assert scope["client"][0] == scope["server"][0] == "127.0.0.1"


async def test_an_absolute_target_is_its_path() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(b"GET http://here:80/echo?a=1 HTTP/1.1\r\nhost: here\r\n\r\n")
        assert await wire.answer() == ok(b"")
    assert (app.scopes[0]["path"], app.scopes[0]["query_string"]) == ("/echo", b"a=1")


async def test_a_request_byte_by_byte() -> None:
    async with wired(Echo()) as wire:
        for byte in post("/echo", b"in pieces"):
            wire.say(bytes([byte]))
            await asyncio.sleep(0)
        assert await wire.answer() == ok(b"in pieces")


async def test_requests_that_come_together_are_answered_in_turn() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(*(post("/echo", b"%d" % number) for number in range(50)))
        assert [await wire.answer() for _ in range(50)] == [ok(b"%d" % number) for number in range(50)]
        wire.say(post("/echo", b"and on"))
        assert await wire.answer() == ok(b"and on")
    assert app.most_busy == 1


async def test_many_large_requests_that_come_together() -> None:
    bodies = [bytes([65 + number]) * 300_000 for number in range(8)]
    async with wired(Echo()) as wire:
        wire.say(*(post("/echo", body) for body in bodies))
        assert [await wire.answer() for _ in bodies] == [ok(body) for body in bodies]


async def test_a_body_in_chunks_and_what_stands_behind_it() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(b"POST /echo HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
        wire.say(b"3\r\none\r\n4\r\n two\r\n0\r\nauthorization: Bearer x\r\n\r\n", GET)
        assert [await wire.answer(), await wire.answer()] == [ok(b"one two"), ok(b"")]
    assert [b"authorization" in dict(scope["headers"]) for scope in app.scopes] == [False, False]


@pytest.mark.parametrize(
    "request_bytes",
    [
        post("/echo", b"x", "connection: close"),
        b"POST /echo HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx",
        post("/echo", b"x", "connection: close") + post("/echo", b"y"),
    ],
)
async def test_the_last_answer_says_so(request_bytes: bytes) -> None:
    async with wired(Echo()) as wire:
        wire.say(request_bytes)
        assert await wire.rest() == ok(b"x", CLOSES)


async def test_a_client_that_waits_for_a_word_gets_it_when_its_body_is_wanted() -> None:
    async with wired(Echo()) as wire:
        wire.say(post("/echo", b"", "expect: 100-continue").replace(b"length: 0", b"length: 4"))
        assert await wire.answer() == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.say(b"body", GET)
        assert [await wire.answer(), await wire.answer()] == [ok(b"body"), ok(b"")]


async def test_a_client_whose_body_is_not_wanted_gets_no_word_and_has_to_come_again() -> None:
    async with wired(Echo()) as wire:
        wire.say(post("/unread", b"", "expect: 100-continue").replace(b"length: 0", b"length: 4"))
        assert await wire.rest() == ok(b"not read", CLOSES)


async def test_a_body_that_nobody_read_does_not_spoil_the_next_request() -> None:
    async with wired(Echo()) as wire:
        wire.say(post("/unread", b"GET / HTTP/1.1\r\n\r\n" * 40_000), post("/echo", b"next"))
        assert [await wire.answer(), await wire.answer()] == [ok(b"not read"), ok(b"next")]


async def test_head_and_no_content_have_no_body() -> None:
    async with wired(Echo()) as wire:
        wire.say(b"HEAD /unread HTTP/1.1\r\nhost: here\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            head = await wire.reader.readuntil(b"\r\n\r\n")
        assert _DATE.sub(b"", head) == ok(b"not read").removesuffix(b"not read")
        wire.say(post("/empty"), GET)
        assert await wire.answer() == b"HTTP/1.1 204 No Content\r\n\r\n"
        assert await wire.answer() == ok(b"")


async def test_a_wish_for_another_protocol_is_not_heard() -> None:
    async with wired(Echo()) as wire:
        wire.say(b"GET /echo HTTP/1.1\r\nhost: here\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n", GET)
        assert await wire.rest() == ok(b"", CLOSES)


# ---- what goes wrong


def refusal(status: bytes) -> bytes:
    said = status.partition(b" ")[2]
    lines = [b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(said), CLOSES]
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines]) + b"\r\n\r\n" + said


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nnot a length\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused(garbage: bytes) -> None:
    async with wired(Echo()) as wire:
        wire.say(garbage)
        assert await wire.rest() == refusal(b"400 Bad Request")


async def test_garbage_behind_a_request_does_not_cost_its_answer() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(post("/slow"), b"\x00 nothing\r\n\r\n")
        await asyncio.sleep(0.05)
        app.may_answer.set()
        assert await wire.rest() == ok(b"slow", CLOSES)


async def test_a_body_that_turns_into_garbage_ends_what_waits_for_it() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await asyncio.sleep(0.05)
        wire.say(b"not a length\r\n")
        assert await wire.rest() == refusal(b"400 Bad Request")
        await until(lambda: not app.busy)
    assert app.bodies == [b"one (cut)"]


async def test_an_endless_head_is_refused() -> None:
    async with wired(Echo()) as wire:
        wire.say(b"GET /echo HTTP/1.1\r\n")
        for number in range(8):
            await asyncio.sleep(0.02)
            wire.say(b"x-%d: " % number, b"a" * 10_000, b"\r\n")
        assert await wire.rest() == refusal(b"431 Request Header Fields Too Large")


async def test_a_long_head_is_taken() -> None:
    async with wired(Echo()) as wire:
        wire.say(post("/echo", b"long", *(f"x-{number}: {'a' * 1000}" for number in range(50))))
        assert await wire.answer() == ok(b"long")


@pytest.mark.parametrize("path", ["/broken", "/silent", "/split", "/begins_wrongly"])
async def test_an_application_that_fails_is_a_mistake_of_ours(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with wired(Echo()) as wire:
        wire.say(post(path), post("/echo", b"next"))
        said = b"Internal Server Error"
        lines = [b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(said)]
        head = b"\r\n".join([b"HTTP/1.1 500 Internal Server Error", *lines]) + b"\r\n\r\n"
        assert [await wire.answer(), await wire.answer()] == [head + said, ok(b"next")]
    assert [record.name for record in caplog.records] == ["fencepost.exchange"]


async def test_what_is_said_after_the_answer_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with wired(Echo()) as wire:
        wire.say(post("/says_more"), post("/echo", b"next"))
        assert [await wire.answer(), await wire.answer()] == [ok(b"said"), ok(b"next")]
    assert [record.name for record in caplog.records] == ["fencepost.exchange"]


async def test_a_client_that_hangs_up_is_noticed() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(post("/watch", b"x"))
        await asyncio.sleep(0.05)
        wire.writer.close()
        async with asyncio.timeout(WITHIN_S):
            await app.gone.wait()


async def test_a_client_that_hangs_up_early_is_noticed() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(b"POST /echo HTTP/1.1\r\ncontent-length: 10\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        wire.writer.close()
        await until(lambda: bool(app.bodies))
    assert app.bodies == [b"half (cut)"]


# ---- bounds


async def test_a_client_waits_while_nobody_reads_its_body() -> None:
    app = Echo()
    body = b"x" * 30_000_000
    async with wired(app) as wire:
        wire.say(post("/late", body))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await wire.writer.drain()
        app.may_answer.set()
        assert len(await wire.answer()) > len(body)
    assert app.bodies == [body]


async def test_an_application_waits_while_nobody_reads_its_answers() -> None:
    app = Echo()
    async with wired(app) as wire:
        wire.say(*[post("/large")] * 20)
        await asyncio.sleep(0.5)
        assert len(app.scopes) < 5
        for _ in range(20):
            assert await wire.answer() == ok(b"x" * 30_000_000)


# ---- without a wire: what leaves when


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


@asynccontextmanager
async def unwired(app: Any, *, idle_s: float = 5.0) -> AsyncIterator[tuple[Connection, FakeTransport, Any]]:
    config = uvicorn.Config(app, http=Connection, ws="none", lifespan="off", log_config=None)
    config.timeout_keep_alive = idle_s  # type: ignore[assignment]  # a test can't wait for whole seconds
    config.load()
    state = uvicorn.Server(config).server_state
    connection, transport = Connection(config, state, {}), FakeTransport()
    connection.connection_made(transport)
    assert len(state.connections) == 1
    yield connection, transport, state
    connection.connection_lost(None)
    assert not state.connections


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_head_and_body_leave_together() -> None:
    async with unwired(Echo()) as (connection, transport, state):
        connection.data_received(post("/echo", b"x"))
        await turns()
        assert transport.written == [ok(b"x")]
        assert not state.tasks
        assert state.total_requests == 1


async def test_only_an_idle_connection_is_closed() -> None:
    app = Echo()
    async with unwired(app, idle_s=0.1) as (connection, transport, _):
        for _ in range(4):  # each pause is shorter than what counts as idle, all of them are not
            connection.data_received(post("/echo", b"x"))
            await asyncio.sleep(0.06)
        connection.data_received(post("/slow", b"x"))
        await asyncio.sleep(0.25)
        assert not transport.is_closed
        app.may_answer.set()
        await asyncio.sleep(0.02)
        assert not transport.is_closed
        await until(lambda: transport.is_closed)


async def test_a_server_that_stops_closes_at_once_what_rests_and_the_others_after_their_answer() -> None:
    app = Echo()
    async with unwired(app) as (resting, rested, _), unwired(app) as (busy, worked, state):
        busy.data_received(post("/slow"))
        await turns()
        resting.shutdown()
        busy.shutdown()
        assert (rested.is_closed, worked.is_closed, len(state.tasks)) == (True, False, 1)
        app.may_answer.set()
        await turns()
        assert (worked.written, worked.is_closed) == ([ok(b"slow", CLOSES)], True)


async def test_a_cancelled_exchange_closes_its_connection() -> None:
    async with unwired(Echo()) as (connection, transport, state):
        connection.data_received(post("/slow"))
        await turns()
        (task,) = state.tasks
        task.cancel()
        await turns()
        assert (transport.written, transport.is_closed, len(state.tasks)) == ([], True, 0)
