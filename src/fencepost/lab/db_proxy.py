"""A wire to PostgreSQL with faults: one proxy a node, so that a fault can hit one of them and spare the others.

- `cut`: connections are reset and new ones are refused, as when the server or the network is gone.
- `black_hole`: nothing passes either way, and nobody is told: connections stay open and silent.
- `drop_answers`: what the node asks still reaches the server and is done; the answers never come.
- `hold_commits`: what the node asks is done, but the message that ends the transaction is kept back until `heal`.
- `delay`: every chunk takes its time, in order.

Each hits all connections and those that come, or, given dice, some of those that are open. `heal` ends any of them.
Connections that have lost bytes are reset then: they could not be understood any more. What was kept back goes on its way.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

_CHUNK_BYTES = 64 * 1024
_SYNC = b"S\x00\x00\x00\x04"  # the message that ends an implicit transaction
Fault = Literal["none", "cut", "black_hole", "drop_answers", "hold_commits"]


@dataclass(slots=True, eq=False)
class _Link:
    """One connection: both ends, and what is wrong with it alone."""

    node: asyncio.StreamWriter
    server: asyncio.StreamWriter
    fault: Fault = "none"
    may_commit: asyncio.Event = field(default_factory=asyncio.Event)

    def reset(self) -> None:
        self.may_commit.set()
        self.node.transport.abort()
        self.server.transport.abort()


@dataclass(slots=True)
class DbProxy:
    server_port: int
    host: str = "127.0.0.1"
    port: int = 0
    fault: Fault = "none"
    delay_s: float = 0.0
    _links: set[_Link] = field(default_factory=set)

    def strike(self, fault: Fault, some: random.Random | None = None) -> None:
        """On all connections, open and to come; or, with dice, on about half of those that are open."""
        if some is None:
            self.fault = fault
        for link in self._links:
            if some is None or some.random() < 0.5:  # noqa: PLR2004 - a coin each
                link.fault = fault
                link.may_commit.clear()
                if fault == "cut":
                    link.reset()

    def delay(self, seconds: float) -> None:
        self.delay_s = seconds

    @property
    def is_well(self) -> bool:
        return self.fault == "none" and not self.delay_s and all(link.fault == "none" for link in self._links)

    def heal(self) -> None:
        self.fault = "none"
        self.delay_s = 0.0
        for link in self._links:
            if link.fault == "hold_commits":
                link.fault = "none"
                link.may_commit.set()
            elif link.fault != "none":
                link.reset()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.fault == "cut":
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection(self.host, self.server_port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, there_writer, self.fault)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(link, reader, there_writer, is_answer=False))
                group.create_task(self._pass_on(link, there_reader, writer, is_answer=True))
        finally:
            self._links.discard(link)
            link.reset()

    async def _pass_on(
        self, link: _Link, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        """Until either side ends; then both do."""
        with suppress(OSError):
            while chunk := await source.read(_CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if link.fault == "black_hole" or (link.fault == "drop_answers" and is_answer):
                    continue
                if link.fault == "hold_commits" and not is_answer:
                    chunk = await self._held(link, chunk, target)
                if target.transport.is_closing():
                    break
                target.write(chunk)
                await target.drain()
        link.reset()

    async def _held(self, link: _Link, chunk: bytes, target: asyncio.StreamWriter) -> bytes:
        """What is left to pass on once it may: the end of a transaction, if the chunk has one."""
        if not chunk.endswith(_SYNC):
            return chunk
        target.write(chunk.removesuffix(_SYNC))
        await target.drain()
        await link.may_commit.wait()
        return _SYNC


@asynccontextmanager
async def db_proxy(server_port: int) -> AsyncIterator[DbProxy]:
    made = DbProxy(server_port)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.strike("cut")
        await asyncio.sleep(0)  # the connections' tasks see their end
