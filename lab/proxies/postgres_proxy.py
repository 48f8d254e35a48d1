"""A proxy to PostgreSQL with faults: one per node, so that a fault can affect one node only.

- `cut`: connections are reset and new ones are rejected, as when the server or the network is gone.
- `black_hole`: no byte passes in either direction; connections stay open.
- `drop_answers`: statements reach the server and take effect; the answers are dropped.
- `hold_commits`: statements reach the server, but the message that ends the transaction is held until `heal`.
- `delay`: every chunk is delayed, in order.

A fault affects all connections, open and new, or, with a random generator, some of the open ones. `heal` ends it:
connections that lost bytes are reset, and held messages are forwarded.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from typing import Literal

from lab.proxies.tcp_proxy import ProxiedConnection, TcpProxy, listening

_SYNC = b"S\x00\x00\x00\x04"  # the message that ends an implicit transaction
Fault = Literal["none", "cut", "black_hole", "drop_answers", "hold_commits"]


class _FaultyConnection(ProxiedConnection):
    """A connection and its fault."""

    def __init__(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter, fault: Fault) -> None:
        super().__init__(here, there)
        self.fault = fault
        self.may_commit = asyncio.Event()

    def reset(self) -> None:
        self.may_commit.set()
        super().reset()


class PostgresProxy(TcpProxy[_FaultyConnection]):
    """A TCP proxy that understands where a PostgreSQL transaction ends."""

    def __init__(self, server_port: int) -> None:
        super().__init__("127.0.0.1", server_port)
        self.fault: Fault = "none"
        self.delay_s = 0.0

    def inject(self, fault: Fault, some: random.Random | None = None) -> None:
        """Start a fault on all connections, open and new; with a random generator, on half of the open ones."""
        if some is None:
            self.fault = fault
        for connection in self.connections:
            if some is None or some.random() < 0.5:  # noqa: PLR2004 - half of them
                connection.fault = fault
                connection.may_commit.clear()
                if fault == "cut":
                    connection.reset()

    def delay(self, seconds: float) -> None:
        """Delay every chunk."""
        self.delay_s = seconds

    @property
    def is_healthy(self) -> bool:
        return (
            self.fault == "none"
            and not self.delay_s
            and all(connection.fault == "none" for connection in self.connections)
        )

    def heal(self) -> None:
        """End the fault."""
        self.fault = "none"
        self.delay_s = 0.0
        for connection in self.connections:
            if connection.fault == "hold_commits":
                connection.fault = "none"
                connection.may_commit.set()
            elif connection.fault != "none":
                connection.reset()

    @property
    def rejects(self) -> bool:
        return self.fault == "cut"

    def make_connection(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> _FaultyConnection:
        return _FaultyConnection(here, there, self.fault)

    async def filter_chunk(
        self, connection: _FaultyConnection, chunk: bytes, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> bytes | None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if connection.fault == "black_hole" or (connection.fault == "drop_answers" and is_answer):
            return b""
        if connection.fault == "hold_commits" and not is_answer:
            return await self._hold_commit(connection, chunk, target)
        return chunk

    async def _hold_commit(
        self, connection: _FaultyConnection, chunk: bytes, target: asyncio.StreamWriter
    ) -> bytes:
        """Forward the chunk without the end of its transaction; return that end when it may pass."""
        if not chunk.endswith(_SYNC):
            return chunk
        target.write(chunk.removesuffix(_SYNC))
        await target.drain()
        await connection.may_commit.wait()
        return _SYNC


def postgres_proxy(server_port: int) -> AbstractAsyncContextManager[PostgresProxy]:
    return listening(PostgresProxy(server_port))
