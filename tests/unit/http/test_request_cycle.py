"""Responses of several body messages: flushed as sent, held back for slow readers, ended when the client leaves."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import cast

import pytest
from starlette.types import Receive, Scope, Send

from fakes.raw_http import _DATE, WITHIN_S, RawConnection, open_connection, until
from fencepost.http.connection_limits import ConnectionLimits
from fencepost.http.request_cycle import ClientLeft

_EVENT_STREAM = [(b"content-type", b"text/event-stream"), (b"content-length", b"7")]


@dataclass(slots=True)
class Events:
    """Sends each part of the queue, and ends at None; the path selects other behaviour."""

    parts: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    sent_bytes: int = 0
    ended_by: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 204 if scope["path"] == "/bodiless" else 200
        await send({"type": "http.response.start", "status": status, "headers": _EVENT_STREAM})
        try:
            match scope["path"]:
                case "/flood":
                    await self._flood(send)
                case "/watch":
                    await send({"type": "http.response.body", "body": b"on", "more_body": True})
                    await self._watch(receive)
                case "/cut" | "/bodiless":
                    await send({"type": "http.response.body", "body": b"on", "more_body": True})
                    raise ValueError("on purpose")
                case "/open":
                    await send({"type": "http.response.body", "body": b"on", "more_body": True})
                case _:
                    await self._stream(send)
        except (ClientLeft, asyncio.CancelledError) as error:
            self.ended_by.append(type(error).__name__)
            raise

    async def _stream(self, send: Send) -> None:
        while (part := await self.parts.get()) is not None:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})

    async def _flood(self, send: Send) -> None:
        while True:
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            self.sent_bytes += 65_536

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.ended_by.append("disconnect")


def _get(path: str, version: str = "1.1", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/{version}\r\nhost: here\r\n\r\n".encode()


def _transport(wire: RawConnection) -> asyncio.Transport:
    return cast("asyncio.Transport", wire.writer.transport)


async def _head(wire: RawConnection) -> bytes:
    async with asyncio.timeout(WITHIN_S):
        return _DATE.sub(b"", await wire.reader.readuntil(b"\r\n\r\n"))


async def _exactly(wire: RawConnection, expected: bytes) -> None:
    async with asyncio.timeout(WITHIN_S):
        assert await wire.reader.readexactly(len(expected)) == expected


async def test_each_message_is_flushed_as_a_chunk_and_the_connection_goes_on() -> None:
    app = Events()
    async with open_connection(app) as wire:
        for _ in range(2):
            wire.send(_get("/"))
            app.parts.put_nowait(b"")  # the head alone: an empty chunk would end the body
            head = await _head(wire)
            assert head == (
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for part in (b"data: 1\n\n", b"y" * 300):
                app.parts.put_nowait(part)
                await _exactly(wire, b"%x\r\n%b\r\n" % (len(part), part))
            app.parts.put_nowait(None)
            await _exactly(wire, b"3\r\nend\r\n0\r\n\r\n")


async def test_a_pipelined_request_waits_for_the_end_of_the_stream() -> None:
    app = Events()
    async with open_connection(app) as wire:
        wire.send(_get("/"), _get("/"))
        for part in (b"a", None, b"b", None):
            app.parts.put_nowait(part)
        for part in (b"a", b"b"):
            await _head(wire)
            await _exactly(wire, b"1\r\n%b\r\n3\r\nend\r\n0\r\n\r\n" % part)


async def test_a_client_of_http_1_0_gets_the_parts_until_the_connection_closes() -> None:
    app = Events()
    async with open_connection(app) as wire:
        for part in (b"one", b"two", None):
            app.parts.put_nowait(part)
        wire.send(_get("/", "1.0"))
        assert await _head(wire) == (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        )
        assert await wire.rest() == b"onetwoend"


async def test_head_gets_no_body() -> None:
    app = Events()
    async with open_connection(app) as wire:
        wire.send(_get("/", method="HEAD"), _get("/"))
        for part in (b"a", None, b"b", None):
            app.parts.put_nowait(part)
        await _head(wire)
        assert (await _head(wire)).startswith(b"HTTP/1.1 200 OK")
        await _exactly(wire, b"1\r\nb\r\n")


async def test_the_application_waits_while_the_client_does_not_read() -> None:
    app = Events()
    async with open_connection(app) as wire:
        _transport(wire).pause_reading()
        wire.send(_get("/flood"))
        await until(lambda: app.sent_bytes > 0)
        before = -1
        while before != app.sent_bytes:  # until the buffers of both sides are full
            before = app.sent_bytes
            await asyncio.sleep(0.2)
        assert app.sent_bytes < 64 * 2**20
        _transport(wire).resume_reading()
        async with asyncio.timeout(WITHIN_S):
            while app.sent_bytes <= before + 2**20:
                await wire.reader.read(2**20)
    assert app.ended_by


async def test_a_client_that_never_reads_is_disconnected() -> None:
    app = Events()
    limits = ConnectionLimits(idle_timeout_s=0.2, write_timeout_s=0.3)
    async with open_connection(app, limits=limits) as wire:
        _transport(wire).pause_reading()
        wire.send(_get("/flood"))
        await until(lambda: app.ended_by == ["ClientLeft"])


async def test_a_stream_ends_when_the_client_leaves(caplog: pytest.LogCaptureFixture) -> None:
    app = Events()
    with caplog.at_level(logging.ERROR):
        async with open_connection(app) as wire:
            wire.send(_get("/"))
            app.parts.put_nowait(b"a")
            await _head(wire)
            wire.writer.transport.abort()

            def left() -> bool:
                app.parts.put_nowait(b"more")
                return app.ended_by == ["ClientLeft"]

            await until(left)
    assert not caplog.records


async def test_an_application_that_waits_learns_that_the_client_left() -> None:
    app = Events()
    async with open_connection(app) as wire:
        wire.send(_get("/watch"))
        await _head(wire)
        wire.writer.close()
        await until(lambda: app.ended_by == ["disconnect"])


@pytest.mark.parametrize(("path", "said"), [("/cut", "failed"), ("/open", "did not end its response")])
async def test_a_stream_that_fails_has_no_last_chunk(
    path: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        async with open_connection(Events()) as wire:
            wire.send(_get(path))
            await _head(wire)
            assert await wire.rest() == b"2\r\non\r\n"
    assert said in caplog.text


async def test_a_status_without_a_body_can_not_be_streamed() -> None:
    async with open_connection(Events()) as wire:
        wire.send(_get("/bodiless"))
        assert (await _head(wire)).startswith(b"HTTP/1.1 500 ")


async def test_a_stopping_server_cuts_a_stream() -> None:
    app = Events()
    async with open_connection(app) as wire:
        wire.send(_get("/"))
        app.parts.put_nowait(b"a")
        await _head(wire)
    assert app.ended_by in (["CancelledError"], ["ClientLeft"])
    assert b"0\r\n\r\n" not in await wire.rest()
