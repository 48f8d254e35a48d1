"""HTTP on a connection: requests in any pieces, and exact answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn

from fakes.raw_http import _DATE, CLOSES, GET, WITHIN_S, Echo, ok, open_connection, post, until
from fencepost.http.connection_limits import ConnectionLimits, ConnectionTable
from fencepost.http.protocol import HttpConnection


async def test_consecutive_requests_are_answered() -> None:
    async with open_connection(Echo()) as wire:
        for body in (b"one", b"", b"three" * 50_000):
            wire.send(post("/echo", body))
            assert await wire.answer() == ok(body)


async def test_the_application_gets_the_request() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(b"POST /a%20b/c%2Fd?x=%31&y HTTP/1.1\r\nHost: here\r\nX-Two: 1\r\nx-two: 2\r\n\r\n")
        await wire.answer()
    scope = app.scopes[0]
    assert (scope["type"], scope["method"], scope["http_version"]) == ("http", "POST", "1.1")
    assert (scope["path"], scope["raw_path"]) == ("/a b/c/d", b"/a%20b/c%2Fd")
    assert scope["query_string"] == b"x=%31&y"
    assert scope["headers"] == [(b"host", b"here"), (b"x-two", b"1"), (b"x-two", b"2")]
    assert scope["client"][0] == scope["server"][0] == "127.0.0.1"


async def test_an_absolute_target_is_reduced_to_its_path() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(b"GET http://here:80/echo?a=1 HTTP/1.1\r\nhost: here\r\n\r\n")
        assert await wire.answer() == ok(b"")
    assert (app.scopes[0]["path"], app.scopes[0]["query_string"]) == ("/echo", b"a=1")


async def test_a_request_may_arrive_byte_by_byte() -> None:
    async with open_connection(Echo()) as wire:
        for byte in post("/echo", b"in pieces"):
            wire.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await wire.answer() == ok(b"in pieces")


async def test_pipelined_requests_are_answered_in_order() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(*(post("/echo", b"%d" % number) for number in range(50)))
        assert [await wire.answer() for _ in range(50)] == [ok(b"%d" % number) for number in range(50)]
        wire.send(post("/echo", b"and on"))
        assert await wire.answer() == ok(b"and on")
    assert app.most_busy == 1


async def test_many_large_pipelined_requests_are_answered() -> None:
    bodies = [bytes([65 + number]) * 300_000 for number in range(8)]
    async with open_connection(Echo()) as wire:
        wire.send(*(post("/echo", body) for body in bodies))
        assert [await wire.answer() for _ in bodies] == [ok(body) for body in bodies]


async def test_a_chunked_body_and_the_following_request_are_read() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(b"POST /echo HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
        wire.send(b"3\r\none\r\n4\r\n two\r\n0\r\nauthorization: Bearer x\r\n\r\n", GET)
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
async def test_the_last_answer_announces_the_close(request_bytes: bytes) -> None:
    async with open_connection(Echo()) as wire:
        wire.send(request_bytes)
        assert await wire.rest() == ok(b"x", CLOSES)


async def test_a_client_that_expects_100_continue_gets_it_when_its_body_is_read() -> None:
    async with open_connection(Echo()) as wire:
        wire.send(post("/echo", b"", "expect: 100-continue").replace(b"length: 0", b"length: 4"))
        assert await wire.answer() == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(b"body", GET)
        assert [await wire.answer(), await wire.answer()] == [ok(b"body"), ok(b"")]


async def test_an_unread_body_gets_no_100_continue_and_the_connection_closes() -> None:
    async with open_connection(Echo()) as wire:
        wire.send(post("/unread", b"", "expect: 100-continue").replace(b"length: 0", b"length: 4"))
        assert await wire.rest() == ok(b"not read", CLOSES)


async def test_an_unread_body_does_not_corrupt_the_next_request() -> None:
    async with open_connection(Echo()) as wire:
        wire.send(post("/unread", b"GET / HTTP/1.1\r\n\r\n" * 40_000), post("/echo", b"next"))
        assert [await wire.answer(), await wire.answer()] == [ok(b"not read"), ok(b"next")]


async def test_head_and_204_have_no_body() -> None:
    async with open_connection(Echo()) as wire:
        wire.send(b"HEAD /unread HTTP/1.1\r\nhost: here\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            head = await wire.reader.readuntil(b"\r\n\r\n")
        assert _DATE.sub(b"", head) == ok(b"not read").removesuffix(b"not read")
        wire.send(post("/empty"), GET)
        assert await wire.answer() == b"HTTP/1.1 204 No Content\r\n\r\n"
        assert await wire.answer() == ok(b"")


async def test_an_upgrade_header_is_ignored() -> None:
    async with open_connection(Echo()) as wire:
        wire.send(b"GET /echo HTTP/1.1\r\nhost: here\r\nconnection: Upgrade\r\nupgrade: h2c\r\n\r\n", GET)
        assert await wire.rest() == ok(b"", CLOSES)


# ---- without a socket: when data is written


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
async def unwired(
    app: Any, *, idle_s: float = 5.0
) -> AsyncIterator[tuple[HttpConnection, FakeTransport, Any]]:
    config = uvicorn.Config(app, http=HttpConnection, ws="none", lifespan="off", log_config=None)
    config.load()
    state = uvicorn.Server(config).server_state
    table = ConnectionTable(ConnectionLimits(idle_timeout_s=idle_s))
    connection, transport = HttpConnection(config, state, {}, table=table), FakeTransport()
    connection.connection_made(transport)
    assert len(state.connections) == 1
    yield connection, transport, state
    connection.connection_lost(None)
    assert not state.connections


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_head_and_body_are_written_together() -> None:
    async with unwired(Echo()) as (connection, transport, state):
        connection.data_received(post("/echo", b"x"))
        await turns()
        assert transport.written == [ok(b"x")]
        assert not state.tasks
        assert state.total_requests == 1


async def test_only_an_idle_connection_is_closed() -> None:
    app = Echo()
    async with unwired(app, idle_s=0.1) as (connection, transport, _):
        for _ in range(4):  # each pause is shorter than the idle time-out, their sum is longer
            connection.data_received(post("/echo", b"x"))
            await asyncio.sleep(0.06)
        connection.data_received(post("/slow", b"x"))
        await asyncio.sleep(0.25)
        assert not transport.is_closed
        app.may_answer.set()
        await asyncio.sleep(0.02)
        assert not transport.is_closed
        await until(lambda: transport.is_closed)


async def test_a_stopping_server_closes_idle_connections_and_the_others_after_their_answer() -> None:
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


async def test_a_cancelled_request_cycle_closes_its_connection() -> None:
    async with unwired(Echo()) as (connection, transport, state):
        connection.data_received(post("/slow"))
        await turns()
        (task,) = state.tasks
        task.cancel()
        await turns()
        assert (transport.written, transport.is_closed, len(state.tasks)) == ([], True, 0)


# ---- failures and back-pressure


def refusal(status: bytes) -> bytes:
    said = status.partition(b" ")[2]
    lines = [b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(said), CLOSES]
    return b"\r\n".join([b"HTTP/1.1 " + status, *lines]) + b"\r\n\r\n" + said


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01 this is no HTTP\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\nnot a length\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: here\r\n\r\n",
    ],
)
async def test_an_invalid_request_is_rejected(garbage: bytes) -> None:
    async with open_connection(Echo()) as wire:
        wire.send(garbage)
        assert await wire.rest() == refusal(b"400 Bad Request")


async def test_garbage_behind_a_request_does_not_prevent_its_answer() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(post("/slow"), b"\x00 nothing\r\n\r\n")
        await asyncio.sleep(0.05)
        app.may_answer.set()
        assert await wire.rest() == ok(b"slow", CLOSES)


async def test_a_malformed_chunked_body_cancels_its_request() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(b"POST /echo HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        await asyncio.sleep(0.05)
        wire.send(b"not a length\r\n")
        assert await wire.rest() == refusal(b"400 Bad Request")
        await until(lambda: not app.busy)
    assert app.bodies == [b"one (cut)"]


async def test_an_endless_head_is_rejected() -> None:
    async with open_connection(Echo()) as wire:
        wire.send(b"GET /echo HTTP/1.1\r\n")
        for number in range(8):
            await asyncio.sleep(0.02)
            wire.send(b"x-%d: " % number, b"a" * 10_000, b"\r\n")
        assert await wire.rest() == refusal(b"431 Request Header Fields Too Large")


@pytest.mark.parametrize("endless", [b"0\r\nx-trailer: ", b"3;extension="])
async def test_endless_trailers_and_chunk_extensions_are_rejected(endless: bytes) -> None:
    """They are no part of the body, so no limit of the application applies to them."""
    async with open_connection(Echo()) as wire:
        head = b"POST /unread HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
        wire.send(head, b"3\r\none\r\n", endless)
        with suppress(ConnectionError):
            for _ in range(100):
                wire.send(b"a" * 60_000)
                await wire.writer.drain()
            async with asyncio.timeout(WITHIN_S):  # the server closes the connection
                while await wire.reader.read(1000):
                    pass


async def test_a_long_chunked_body_is_accepted() -> None:
    async with open_connection(Echo()) as wire:
        wire.send(b"POST /echo HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(40):
            wire.send(b"1;%b\r\nx\r\n" % (b"a" * 5_000))
            await asyncio.sleep(0)
        wire.send(b"%x\r\n%b\r\n0\r\nx-trailer: %b\r\n\r\n" % (500_000, b"y" * 500_000, b"a" * 5_000))
        assert await wire.answer() == ok(b"x" * 40 + b"y" * 500_000)


async def test_a_long_head_is_accepted() -> None:
    async with open_connection(Echo()) as wire:
        wire.send(post("/echo", b"long", *(f"x-{number}: {'a' * 1000}" for number in range(50))))
        assert await wire.answer() == ok(b"long")


@pytest.mark.parametrize("path", ["/broken", "/silent", "/split", "/begins_wrongly"])
async def test_a_failing_application_gives_500(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with open_connection(Echo()) as wire:
        wire.send(post(path), post("/echo", b"next"))
        said = b"Internal Server Error"
        lines = [b"content-type: text/plain; charset=utf-8", b"content-length: %d" % len(said)]
        head = b"\r\n".join([b"HTTP/1.1 500 Internal Server Error", *lines]) + b"\r\n\r\n"
        assert [await wire.answer(), await wire.answer()] == [head + said, ok(b"next")]
    assert [record.name for record in caplog.records] == ["fencepost.http.request_cycle"]


async def test_a_message_after_the_answer_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with open_connection(Echo()) as wire:
        wire.send(post("/says_more"), post("/echo", b"next"))
        assert [await wire.answer(), await wire.answer()] == [ok(b"said"), ok(b"next")]
    assert [record.name for record in caplog.records] == ["fencepost.http.request_cycle"]


async def test_a_disconnect_is_noticed() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(post("/watch", b"x"))
        await asyncio.sleep(0.05)
        wire.writer.close()
        async with asyncio.timeout(WITHIN_S):
            await app.gone.wait()


async def test_an_early_disconnect_is_noticed() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(b"POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 10\r\n\r\nhalf")
        await asyncio.sleep(0.05)
        wire.writer.close()
        await until(lambda: bool(app.bodies))
    assert app.bodies == [b"half (cut)"]


# ---- bounds


async def test_a_client_waits_until_its_body_is_read() -> None:
    app = Echo()
    body = b"x" * 30_000_000
    async with open_connection(app) as wire:
        wire.send(post("/late", body))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await wire.writer.drain()
        app.may_answer.set()
        assert len(await wire.answer()) > len(body)
    assert app.bodies == [body]


async def test_an_application_waits_until_its_answers_are_read() -> None:
    app = Echo()
    async with open_connection(app) as wire:
        wire.send(*[post("/large")] * 20)
        await asyncio.sleep(0.5)
        assert len(app.scopes) < 5
        for _ in range(20):
            assert await wire.answer() == ok(b"x" * 30_000_000)
