"""A TCP proxy base class, into which subclasses inject faults.

It forwards bytes in both directions and closes both sides when either side closes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

_CHUNK_BYTES = 64 * 1024


class ProxiedConnection:
    """Both ends of one connection."""

    def __init__(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> None:
        self._here = here
        self._there = there

    def reset(self) -> None:
        self._here.transport.abort()
        self._there.transport.abort()


ConnectionT = TypeVar("ConnectionT", bound=ProxiedConnection)


class TcpProxy(ABC, Generic[ConnectionT]):
    """Accept connections on a port, and forward them to a server."""

    def __init__(self, host: str, server_port: int) -> None:
        self.host = host
        self.server_port = server_port
        self.port = 0  # the port it listens on
        self.connections: set[ConnectionT] = set()
        self._is_closed = False

    @property
    @abstractmethod
    def rejects(self) -> bool:
        """Return whether new connections are rejected, as if the server did not listen."""

    @abstractmethod
    def make_connection(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> ConnectionT:
        """Return the object for a new connection."""

    @abstractmethod
    async def filter_chunk(
        self, connection: ConnectionT, chunk: bytes, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> bytes | None:
        """Return the bytes to forward; None ends the connection."""

    def end(self) -> None:
        """Close all connections for good, and reject new ones."""
        self._is_closed = True
        self.reset_all()

    def reset_all(self) -> None:
        for connection in self.connections:
            connection.reset()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.rejects or self._is_closed:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(self.host, self.server_port)
        except OSError:
            writer.transport.abort()
            return
        connection = self.make_connection(writer, there_writer)
        self.connections.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(connection, reader, there_writer, is_answer=False))
                group.create_task(self._forward(connection, there_reader, writer, is_answer=True))
        finally:
            self.connections.discard(connection)
            connection.reset()

    async def _forward(
        self,
        connection: ConnectionT,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        is_answer: bool,
    ) -> None:
        """Forward bytes until either side closes; then close both."""
        with suppress(OSError, RuntimeError):  # uvloop raises RuntimeError for a connection that was just cut
            while chunk := await source.read(_CHUNK_BYTES):
                left = await self.filter_chunk(connection, chunk, target, is_answer=is_answer)
                if left is None or (left and target.transport.is_closing()):
                    break
                if left:
                    target.write(left)
                    await target.drain()
        connection.reset()


ProxyT = TypeVar("ProxyT", bound=TcpProxy)  # type: ignore[type-arg]  # of any connections


@asynccontextmanager
async def listening(proxy: ProxyT) -> AsyncIterator[ProxyT]:
    """Listen on a free port until the body ends."""
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.end()
        await asyncio.sleep(0)  # lets the tasks of the connections end
