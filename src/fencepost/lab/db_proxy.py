"""A wire to PostgreSQL with faults: one proxy a node, so that a fault can hit one of them and spare the others.

- `cut`: every connection is reset and new ones are refused, as when the server or the network is gone.
- `black_hole`: nothing passes either way, and nobody is told: connections stay open and silent.
- `drop_answers`: what the node asks still reaches the server and is done; the answers never come.
- `delay`: every chunk takes its time, in order.

`heal` ends any of them. Connections that have lost bytes are reset then: they could not be understood any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

_CHUNK_BYTES = 64 * 1024
Fault = Literal["none", "cut", "black_hole", "drop_answers"]


@dataclass(slots=True)
class DbProxy:
    server_port: int
    host: str = "127.0.0.1"
    port: int = 0
    fault: Fault = "none"
    delay_s: float = 0.0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def cut(self) -> None:
        self.fault = "cut"
        self._reset_all()

    def black_hole(self) -> None:
        self.fault = "black_hole"

    def drop_answers(self) -> None:
        self.fault = "drop_answers"

    def delay(self, seconds: float) -> None:
        self.delay_s = seconds

    def heal(self) -> None:
        if self.fault in ("black_hole", "drop_answers"):
            self._reset_all()
        self.fault = "none"
        self.delay_s = 0.0

    def _reset_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fault == "cut":
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
                group.create_task(self._pass_on(reader, there_writer, is_answer=False))
                group.create_task(self._pass_on(there_reader, writer, is_answer=True))
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        """Until either side ends; aborting the target ends the other direction, too."""
        with suppress(OSError):
            while chunk := await source.read(_CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.fault == "black_hole" or (self.fault == "drop_answers" and is_answer):
                    continue
                target.write(chunk)
                await target.drain()
        target.transport.abort()


@asynccontextmanager
async def db_proxy(server_port: int) -> AsyncIterator[DbProxy]:
    made = DbProxy(server_port)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.cut()
        await asyncio.sleep(0)  # the connections' tasks see their end
