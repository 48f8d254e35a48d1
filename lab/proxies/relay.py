"""A proxy that can be cut.

`cut` ends every connection and rejects new ones, as when the server is gone; `restore` accepts them again.
`lose_answers` forwards the request, then ends the connection instead of returning the answer: the server has done the
work, and the caller does not know.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

from lab.proxies.tcp_proxy import ProxiedConnection, TcpProxy, listening


class Relay(TcpProxy[ProxiedConnection]):
    """A TCP proxy that can be cut and that can lose answers."""

    def __init__(self, host: str, server_port: int) -> None:
        super().__init__(host, server_port)
        self.is_cut = False
        self._answers_to_lose = 0

    def cut(self) -> None:
        self.is_cut = True
        self.reset_all()

    def restore(self) -> None:
        self.is_cut = False

    def lose_answers(self, count: int) -> None:
        """Lose the next `count` answers, on any connection."""
        self._answers_to_lose = count

    @property
    def rejects(self) -> bool:
        return self.is_cut

    def make_connection(self, here: asyncio.StreamWriter, there: asyncio.StreamWriter) -> ProxiedConnection:
        return ProxiedConnection(here, there)

    async def filter_chunk(
        self, _link: ProxiedConnection, chunk: bytes, _target: asyncio.StreamWriter, *, is_answer: bool
    ) -> bytes | None:
        if is_answer and self._answers_to_lose > 0:
            self._answers_to_lose -= 1
            return None
        return chunk


def relay(host: str, port: int) -> AbstractAsyncContextManager[Relay]:
    """Open a relay to a server."""
    return listening(Relay(host, port))
