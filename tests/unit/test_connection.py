"""HTTP on a connection: what a client sends in whatever pieces, and what it gets back, to the byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from fakes.wire import _DATE, CLOSES, GET, WITHIN_S, Echo, ok, post, until, wired
from fencepost.connection import Connection


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
