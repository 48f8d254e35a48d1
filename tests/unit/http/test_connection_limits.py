"""Limits on the number of connections, and on how long a client may delay one."""

from __future__ import annotations

import asyncio
import resource

import pytest

from fakes.raw_http import (
    CLOSES,
    GET,
    WITHIN_S,
    Echo,
    RawConnection,
    ok,
    open_connection,
    post,
    serve_connections,
    until,
)
from fencepost.http.connection_limits import RESERVED_DESCRIPTORS, RESERVED_FOR_HEALTH, ConnectionLimits

QUICK = ConnectionLimits(head_timeout_s=0.2, body_timeout_s=0.2, idle_timeout_s=0.2, write_timeout_s=0.2)
LONG = ConnectionLimits(head_timeout_s=600, body_timeout_s=600, idle_timeout_s=600, write_timeout_s=600)


def status_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n")[0].removeprefix(b"HTTP/1.1 ")


async def is_closed(wire: RawConnection) -> bool:
    """Tell whether the server closes the connection within the time of a test."""
    try:
        async with asyncio.timeout(WITHIN_S):
            return await wire.reader.read(1) == b""
    except ConnectionError:
        return True


# ---- deadlines


async def test_a_silent_connection_is_closed() -> None:
    async with open_connection(Echo(), limits=QUICK) as wire:
        assert await wire.rest() == b""


async def test_an_idle_connection_is_closed_after_its_answer() -> None:
    async with open_connection(Echo(), limits=QUICK) as wire:
        wire.send(post("/echo", b"x"))
        assert await wire.rest() == ok(b"x")


async def test_trickling_bytes_do_not_extend_the_deadline_of_a_head() -> None:
    async with open_connection(Echo(), limits=QUICK) as wire:
        wire.send(b"GET /echo HTTP/1.1\r\nhost: here\r\nx-slow: ")

        async def trickle() -> None:
            while not wire.writer.is_closing():
                wire.send(b"a")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        try:
            async with asyncio.timeout(WITHIN_S):
                answer = await wire.reader.readuntil(b"\r\n\r\n")
        finally:
            trickling.cancel()
    assert status_of(answer) == b"408 Request Timeout"


async def test_an_unfinished_body_times_out() -> None:
    app = Echo()
    async with open_connection(app, limits=QUICK) as wire:
        wire.send(post("/echo").replace(b"content-length: 0", b"content-length: 9") + b"half")
        answer = await wire.rest()
        await until(lambda: not app.busy)
    assert status_of(answer) == b"408 Request Timeout"


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param((b"content-length: 9\r\n\r\nhalf",), id="overdue"),
        pytest.param((b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n", b"no chunk\r\n"), id="malformed"),
    ],
)
async def test_a_request_that_has_its_answer_gets_no_second_one(rest: tuple[bytes, ...]) -> None:
    """A proxy would take a second response for the response to the next request."""
    async with open_connection(Echo(), limits=QUICK) as wire:
        wire.send(b"POST /unread HTTP/1.1\r\nhost: here\r\n", rest[0])
        assert await wire.answer() == ok(b"not read")
        wire.send(*rest[1:])
        assert await wire.rest() == b""


async def test_a_pipelined_request_has_a_deadline_too() -> None:
    app = Echo()
    async with open_connection(app, limits=QUICK) as wire:
        wire.send(post("/slow"), b"GET /echo HT")
        await until(lambda: app.busy == 1)
        await asyncio.sleep(0.5)  # longer than any deadline: a request being answered has none
        app.may_answer.set()
        assert await wire.answer() == ok(b"slow")
        assert status_of(await wire.rest()) == b"408 Request Timeout"


async def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    app = Echo()
    async with open_connection(app, limits=QUICK) as wire:
        wire.send(post("/large"), post("/large"))
        async with asyncio.timeout(WITHIN_S):
            await app.gone.wait()
            await asyncio.sleep(2.0)  # the next sweep disconnects it; a read now would prevent that
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await wire.reader.readexactly(60_000_000)


# ---- numbers


async def test_a_new_connection_replaces_the_longest_silent_one() -> None:
    limits = ConnectionLimits(3, 3, head_timeout_s=600, idle_timeout_s=600)
    async with serve_connections(Echo(), limits=limits) as connect:
        oldest, *_others = [await connect() for _ in range(3)]
        newest = await connect()
        newest.send(GET)
        assert await newest.answer() == ok(b"")
        assert await is_closed(oldest)


async def test_a_peer_at_its_limit_loses_its_own_connections() -> None:
    limits = ConnectionLimits(100, 2, head_timeout_s=600, idle_timeout_s=600)
    async with serve_connections(Echo(), limits=limits) as connect:
        first = await connect()
        first.send(GET)
        assert await first.answer() == ok(b"")
        await asyncio.gather(*(connect() for _ in range(2)))
        assert await is_closed(first)


async def test_clients_that_do_not_read_their_answers_make_room_for_others() -> None:
    app = Echo()
    limits = ConnectionLimits(2, 2, head_timeout_s=600, idle_timeout_s=600, write_timeout_s=600)
    async with serve_connections(app, limits=limits) as connect:
        for _ in range(2):
            unread = await connect()
            unread.send(post("/large"), post("/large"))
        await until(lambda: len(app.scopes) == 4)
        newest = await connect()
        newest.send(GET)
        assert await newest.answer() == ok(b"")


async def test_when_all_connections_are_busy_only_health_is_answered() -> None:
    app = Echo()
    limits = ConnectionLimits(2, 2, head_timeout_s=600, idle_timeout_s=600)
    async with serve_connections(app, limits=limits) as connect:
        busy = [await connect() for _ in range(2)]
        for wire in busy:
            wire.send(post("/slow"))
        await until(lambda: app.busy == len(busy))
        beyond = await connect()
        beyond.send(GET)
        assert status_of(await beyond.rest()) == b"503 Service Unavailable"
        health = await connect()
        health.send(GET.replace(b"/echo", b"/healthz"))
        assert await health.rest() == ok(b"", CLOSES)
        held = [await connect() for _ in range(RESERVED_FOR_HEALTH)]
        rejected = await connect()
        assert status_of(await rejected.rest()) == b"503 Service Unavailable"
        app.may_answer.set()
        for wire in busy:
            assert await wire.answer() == ok(b"slow")
        assert len(held) == RESERVED_FOR_HEALTH


def test_file_descriptors_are_reserved_for_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft in (64, 128, 256, 1024, 100_000):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        limits = ConnectionLimits().within_descriptors()
        assert limits.max_per_peer < limits.max_connections
        if soft >= 128:
            assert limits.max_connections + limits.backlog + RESERVED_DESCRIPTORS < soft
    assert (limits.max_connections, limits.max_per_peer) == (4096, 1024)


# ---- invalid requests


@pytest.mark.parametrize("line", [b"GET /echo", b"GET /echo HTTP/0.9", b"GET /echo HTTP/2.0"])
async def test_another_http_version_is_rejected(line: bytes) -> None:
    app = Echo()
    async with open_connection(app, limits=LONG) as wire:
        wire.send(line, b"\r\nhost: here\r\n\r\n")
        assert status_of(await wire.rest())[:3] in (b"400", b"505")
    assert not app.scopes


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /echo HTTP/1.1\r\nhost: here\r\nHost: there\r\n\r\n", b"400"),
        (b"GET /echo HTTP/1.1\r\n\r\n", b"400"),
        (b"POST /echo HTTP/1.0\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"POST /echo HTTP/1.1\r\nhost: here\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"501"),
    ],
)
async def test_an_ambiguous_request_is_rejected(head: bytes, status: bytes) -> None:
    app = Echo()
    async with open_connection(app, limits=LONG) as wire:
        wire.send(head)
        assert status_of(await wire.rest())[:3] == status
    assert not app.scopes


@pytest.mark.parametrize(
    ("target", "host"),
    [(b"http://there/echo", b"there"), (b"http://[::1]:80/echo", b"[::1]:80"), (b"/echo", b"here")],
)
async def test_the_host_of_an_absolute_target_replaces_the_header(target: bytes, host: bytes) -> None:
    app = Echo()
    async with open_connection(app, limits=LONG) as wire:
        wire.send(b"GET ", target, b" HTTP/1.1\r\nhost: here\r\n\r\n")
        assert await wire.answer() == ok(b"")
    assert [value for name, value in app.scopes[0]["headers"] if name == b"host"] == [host]
