"""A streamed response: its source is closed when the client leaves, and runs no further ahead than the client reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from fakes.raw_http import RawConnection, open_connection, until
from fencepost.api.context import StreamResponse
from fencepost.api.streaming import send_stream
from fencepost.http.connection_limits import ConnectionLimits

PART = b"x" * 65_536


@dataclass(slots=True)
class Source:
    """Yields parts without end; `/quiet` yields one and waits."""

    produced: int = 0
    closed: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = self._parts(is_quiet=scope["path"] == "/quiet")
        response = StreamResponse(parts, lambda: self.closed.append("ended"), {"X-A": "b"}, "text/plain")
        await send_stream(response, scope, receive, send)

    async def _parts(self, *, is_quiet: bool) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                self.produced += 1
                yield PART
                if is_quiet:
                    await asyncio.Event().wait()
        finally:
            self.closed.append("source")


def ask(wire: RawConnection, path: str, method: str = "GET") -> None:
    wire.send(f"{method} {path} HTTP/1.1\r\nhost: here\r\n\r\n".encode())


async def test_a_client_that_does_not_read_is_disconnected_and_nothing_piles_up() -> None:
    source = Source()
    async with open_connection(source, limits=ConnectionLimits(write_timeout_s=0.3)) as wire:
        ask(wire, "/flood")
        await until(lambda: source.closed == ["source", "ended"])
        assert source.produced * len(PART) < 64 * 1024 * 1024  # what the kernel buffers, and one part


async def test_a_client_that_leaves_ends_a_quiet_stream() -> None:
    source = Source()
    async with open_connection(source) as wire:
        ask(wire, "/quiet")
        await until(lambda: source.produced == 1)
        wire.writer.close()
        await until(lambda: source.closed == ["source", "ended"])


async def test_head_sends_no_part() -> None:
    source = Source()
    async with open_connection(source) as wire:
        ask(wire, "/flood", "HEAD")
        await until(lambda: source.closed == ["ended"])
        assert source.produced == 0
