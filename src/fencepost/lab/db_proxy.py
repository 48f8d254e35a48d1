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
from contextlib import AbstractAsyncContextManager
from typing import Literal

from fencepost.lab.wire import Link, Wire, laid

_SYNC = b"S\x00\x00\x00\x04"  # the message that ends an implicit transaction
Fault = Literal["none", "cut", "black_hole", "drop_answers", "hold_commits"]


class _Struck(Link):
    """A connection, and what is wrong with it alone."""

    def __init__(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter, fault: Fault) -> None:
        super().__init__(here, there)
        self.fault = fault
        self.may_commit = asyncio.Event()

    def reset(self) -> None:
        self.may_commit.set()
        super().reset()


class DbProxy(Wire[_Struck]):
    def __init__(self, server_port: int) -> None:
        super().__init__("127.0.0.1", server_port)
        self.fault: Fault = "none"
        self.delay_s = 0.0

    def strike(self, fault: Fault, some: random.Random | None = None) -> None:
        """On all connections, open and to come; or, with dice, on about half of those that are open."""
        if some is None:
            self.fault = fault
        for link in self.links:
            if some is None or some.random() < 0.5:  # noqa: PLR2004 - a coin each
                link.fault = fault
                link.may_commit.clear()
                if fault == "cut":
                    link.reset()

    def delay(self, seconds: float) -> None:
        self.delay_s = seconds

    @property
    def is_well(self) -> bool:
        return self.fault == "none" and not self.delay_s and all(link.fault == "none" for link in self.links)

    def heal(self) -> None:
        self.fault = "none"
        self.delay_s = 0.0
        for link in self.links:
            if link.fault == "hold_commits":
                link.fault = "none"
                link.may_commit.set()
            elif link.fault != "none":
                link.reset()

    @property
    def refuses(self) -> bool:
        return self.fault == "cut"

    def linked(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> _Struck:
        return _Struck(here, there, self.fault)

    async def passed(
        self, link: _Struck, chunk: bytes, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> bytes | None:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if link.fault == "black_hole" or (link.fault == "drop_answers" and is_answer):
            return b""
        if link.fault == "hold_commits" and not is_answer:
            return await self._held(link, chunk, target)
        return chunk

    async def _held(self, link: _Struck, chunk: bytes, target: asyncio.StreamWriter) -> bytes:
        """What is left to pass on once it may: the end of a transaction, if the chunk has one."""
        if not chunk.endswith(_SYNC):
            return chunk
        target.write(chunk.removesuffix(_SYNC))
        await target.drain()
        await link.may_commit.wait()
        return _SYNC


def db_proxy(server_port: int) -> AbstractAsyncContextManager[DbProxy]:
    return laid(DbProxy(server_port))
