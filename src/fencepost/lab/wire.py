"""Connections that pass through this process on their way to a server, so that something can happen to them.

`Wire` carries bytes both ways and ends both sides when either ends. Which faults there are, its kinds say: `relay.py` is
cut and mended, `db_proxy.py` knows what travels to PostgreSQL.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

_CHUNK_BYTES = 64 * 1024


class Link:
    """One connection: both ends."""

    def __init__(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> None:
        self._here = here
        self._there = there

    def reset(self) -> None:
        self._here.transport.abort()
        self._there.transport.abort()


LinkT = TypeVar("LinkT", bound=Link)


class Wire(ABC, Generic[LinkT]):
    def __init__(self, host: str, server_port: int) -> None:
        self.host = host
        self.server_port = server_port
        self.port = 0  # where it listens
        self.links: set[LinkT] = set()
        self._is_over = False

    @property
    @abstractmethod
    def refuses(self) -> bool:
        """New connections, as if nobody listened."""

    @abstractmethod
    def linked(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> LinkT: ...

    @abstractmethod
    async def passed(
        self, link: LinkT, chunk: bytes, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> bytes | None:
        """What of it goes on to the target, if anything; None ends the connection."""

    def end(self) -> None:
        """For good: one that came in the last moment is refused."""
        self._is_over = True
        self.reset_all()

    def reset_all(self) -> None:
        for link in self.links:
            link.reset()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses or self._is_over:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(self.host, self.server_port)
        except OSError:
            writer.transport.abort()
            return
        link = self.linked(writer, there_writer)
        self.links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(link, reader, there_writer, is_answer=False))
                group.create_task(self._pass_on(link, there_reader, writer, is_answer=True))
        finally:
            self.links.discard(link)
            link.reset()

    async def _pass_on(
        self, link: LinkT, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        """Until either side ends; then both do."""
        with suppress(OSError, RuntimeError):  # uvloop says RuntimeError of a connection that was just cut
            while chunk := await source.read(_CHUNK_BYTES):
                left = await self.passed(link, chunk, target, is_answer=is_answer)
                if left is None or (left and target.transport.is_closing()):
                    break
                if left:
                    target.write(left)
                    await target.drain()
        link.reset()


WireT = TypeVar("WireT", bound=Wire)  # type: ignore[type-arg]  # of any links


@asynccontextmanager
async def laid(wire: WireT) -> AsyncIterator[WireT]:
    """It listens on a port of its own until the body ends."""
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        wire.end()
        await asyncio.sleep(0)  # the connections' tasks see their end
