"""A wire that can be cut: connections pass through it to a server until a fault is wanted.

`cut` ends every connection and refuses new ones, as when the server is gone; `mend` lets them through again.
`lose_answers` lets what is asked pass, then ends the connection in place of the answer: the server has done it, and
the caller does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_CHUNK_BYTES = 64 * 1024


@dataclass(slots=True)
class Relay:
    host: str
    server_port: int
    port: int = 0
    is_cut: bool = False
    _answers_to_lose: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self.is_cut = False

    def lose_answers(self, count: int) -> None:
        """Of the next `count` answers, on whatever connection they come."""
        self._answers_to_lose = count

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(self.host, self.server_port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, there_writer}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, there_writer, writer, answers=False))
                group.create_task(self._pass_on(there_reader, writer, there_writer, answers=True))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _pass_on(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        """Until either side ends; then both do."""
        with suppress(OSError, RuntimeError):  # uvloop says RuntimeError of a connection that was just cut
            while chunk := await source.read(_CHUNK_BYTES):
                if answers and self._answers_to_lose > 0:
                    self._answers_to_lose -= 1
                    break
                target.write(chunk)
                await target.drain()
        target.transport.abort()
        other.transport.abort()


@asynccontextmanager
async def relay(host: str, port: int) -> AsyncIterator[Relay]:
    made = Relay(host, port)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut()
        await asyncio.sleep(0)
