"""A load generator that costs little: prepared requests over kept connections, one at a time on each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast
from urllib.parse import urlsplit

from fencepost.errors import RpcUnavailable

_HEAD_END = b"\r\n\r\n"


def post(url: str, path: str, body: bytes) -> bytes:
    """The bytes of a request."""
    host = urlsplit(url).netloc
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Connection(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], answered: list[int], done: asyncio.Future[None]) -> None:
        self._requests = requests
        self._answered = answered
        self._done = done
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._next()

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
            if not self._done.done():
                self._done.set_result(None)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(_HEAD_END)
        if head_end < 0:
            return
        head = self._buffer[:head_end].lower()
        marker = head.find(b"content-length:")
        length = int(head[marker + 15 :].split(b"\r\n", 1)[0])
        if len(self._buffer) < head_end + 4 + length:
            return
        self._answered.append(int(head.split(b" ", 2)[1]))
        self._buffer = b""
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RpcUnavailable(f"the connection was lost: {exc}"))


async def drive(url: str, requests: Iterator[bytes], *, connections: int) -> list[int]:
    """All requests, over so many connections; the status of each answer."""
    place = urlsplit(url)
    host, port = str(place.hostname), int(place.port or 80)
    loop = asyncio.get_running_loop()
    answered: list[int] = []
    ends = [loop.create_future() for _ in range(connections)]
    for end in ends:
        await loop.create_connection(
            lambda end=end: _Connection(requests, answered, end),  # type: ignore[misc]  # mypy can't type a default
            host,
            port,
        )
    await asyncio.gather(*ends)
    return answered
