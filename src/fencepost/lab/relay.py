"""A wire that can be cut: connections pass through it to a server until a fault is wanted.

`cut` ends every connection and refuses new ones, as when the server is gone; `mend` lets them through again.
`lose_answers` lets what is asked pass, then ends the connection in place of the answer: the server has done it, and
the caller does not know.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from fencepost.lab.wire import Link, Wire, laid


class Relay(Wire[Link]):
    def __init__(self, host: str, server_port: int) -> None:
        super().__init__(host, server_port)
        self.is_cut = False
        self._answers_to_lose = 0

    def cut(self) -> None:
        self.is_cut = True
        self.reset_all()

    def mend(self) -> None:
        self.is_cut = False

    def lose_answers(self, count: int) -> None:
        """Of the next `count` answers, on whatever connection they come."""
        self._answers_to_lose = count

    @property
    def refuses(self) -> bool:
        return self.is_cut

    def linked(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> Link:
        return Link(here, there)

    async def passed(
        self, _link: Link, chunk: bytes, _target: asyncio.StreamWriter, *, is_answer: bool
    ) -> bytes | None:
        if is_answer and self._answers_to_lose > 0:
            self._answers_to_lose -= 1
            return None
        return chunk


def relay(host: str, port: int) -> AbstractAsyncContextManager[Relay]:
    return laid(Relay(host, port))
