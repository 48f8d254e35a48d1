"""A transport in memory: it records what is written, and the test supplies the incoming data in any pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any


class FakeTransport(asyncio.Transport):
    """A transport that reports its close to the protocol in the loop's next turn, as real ones do."""

    def __init__(self, protocol: asyncio.Protocol, on_write: Callable[[bytes], None] | None = None) -> None:
        super().__init__()
        self._protocol = protocol
        self._on_write = on_write
        self._is_closing = False
        self._may_read = asyncio.Event()
        self._may_read.set()
        self.written = bytearray()
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self._is_closing, "write after close"
        self.written += data
        if self._on_write is not None:
            self._on_write(bytes(data))

    def close(self) -> None:
        self.lose(None)

    def abort(self) -> None:
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._may_read.set()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 4711) if name in {"peername", "sockname"} else default

    async def come(self, pieces: Iterable[bytes]) -> None:
        """Deliver the pieces in turn while reading is not paused."""
        for piece in pieces:
            await self._may_read.wait()
            if self._is_closing:
                return
            if piece:
                self._protocol.data_received(piece)
            else:
                await asyncio.sleep(0)  # other tasks run between two pieces


def cut(wire: bytes, places: Sequence[int]) -> tuple[bytes, ...]:
    """Split the bytes into pieces; an empty piece yields to other tasks first."""
    edges = sorted({place % (len(wire) + 1) for place in places} | {0, len(wire)})
    pieces: list[bytes] = []
    for number, (start, end) in enumerate(pairwise(edges)):
        pauses = places[number % len(places)] % 3 if places else 0
        pieces += [wire[start:end], *[b""] * pauses]
    return tuple(pieces)
