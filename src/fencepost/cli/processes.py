"""N nodes on one machine, a process each, behind one port.

The parent listens and hands the socket to its children: they take connections from one queue, so a child that dies
refuses nobody who waits there. Each child is a node of its own with a name of its own, and also listens on a port that
is its alone: its figures are there, and other nodes reach it there. A child that ends by itself is started again, after
a pause that grows while it keeps ending. When the parent is told to stop, all end within a bounded time; when the
parent dies, the children notice and end.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from fencepost.errors import Unready
from fencepost.settings import Settings

_log = logging.getLogger(__name__)

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 9.0  # longer than a node takes at most that the database leaves hanging
FIRST_PAUSE_S = 0.5
MOST_PAUSE_S = 15.0
STEADY_S = 30.0  # after this long a child that ends is no longer one that keeps ending
MOST_PROCESSES = 64

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Orders:
    """All that a child needs; it goes through a pipe, so secrets stay out of arguments and environment."""

    settings: Settings
    dsn: str
    private_keys: tuple[str, ...]
    listener: socket.socket


# A node until it is told to stop; it sends "" when it is ready, or why it can't be.
Child = Callable[[Orders, Connection], None]


def orders_of(
    settings: Settings, *, name: str, dsn: str, private_keys: tuple[str, ...], listener: socket.socket
) -> Orders:
    """The settings as plain values: read-only views don't go through a pipe."""
    plain = replace(
        settings,
        node=replace(settings.node, id=name),
        chains=dict(settings.chains),
        signers=dict(settings.signers),
    )
    return Orders(plain, dsn, private_keys, listener)


@asynccontextmanager
async def processes(child: Child, all_orders: list[Orders]) -> AsyncIterator[None]:
    """All at work while the body runs. Raises `Unready` if one of them can't start."""
    stop = asyncio.Event()
    kept = [_Kept(child, orders) for orders in all_orders]
    try:
        for one in kept:
            one.start()
        for said in await asyncio.gather(*(one.until_ready() for one in kept)):
            if said:
                raise Unready(said)
        keeping = [asyncio.create_task(one.keep(stop)) for one in kept]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*keeping)
    finally:
        await asyncio.gather(*(one.end() for one in kept))


class _Kept:
    def __init__(self, child: Child, orders: Orders) -> None:
        self._child = child
        self._orders = orders
        self._process: SpawnProcess | None = None
        self._hears: Connection

    @property
    def name(self) -> str:
        return self._orders.settings.node.id

    def start(self) -> None:
        self._hears, says = _spawn.Pipe(duplex=False)
        self._process = _spawn.Process(target=self._child, args=(self._orders, says), name=self.name)
        self._process.start()
        says.close()

    async def until_ready(self) -> str:
        """Why it is not; empty when it is."""
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await _readable(self._hears.fileno())
        except TimeoutError:
            return f"node {self.name} was not ready within {READY_WITHIN_S:.0f} s"
        try:
            return str(self._hears.recv())
        except EOFError:
            return f"node {self.name} ended before it was ready; its log tells why"
        finally:
            self._hears.close()

    async def keep(self, stop: asyncio.Event) -> None:
        """Start it again whenever it ends by itself, until told to stop."""
        loop = asyncio.get_running_loop()
        pause_s, began_s = FIRST_PAUSE_S, loop.time()
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                assert self._process is not None  # noqa: S101 - it was started
                ended = asyncio.ensure_future(_readable(self._process.sentinel))
                await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if stop.is_set():
                    return
                self._process.join()
                pause_s = (
                    FIRST_PAUSE_S if loop.time() - began_s > STEADY_S else min(MOST_PAUSE_S, 2 * pause_s)
                )
                _log.error("node %s ended (%s); again in %.1f s", self.name, self._process.exitcode, pause_s)
                await asyncio.wait({stopped}, timeout=pause_s)
                if not stop.is_set():
                    began_s = loop.time()
                    self.start()
                    self._hears.close()  # what it has to say goes to the log
        finally:
            stopped.cancel()

    async def end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.is_alive():
            process.terminate()
            try:
                async with asyncio.timeout(STOP_WITHIN_S):
                    await _readable(process.sentinel)
            except TimeoutError:
                _log.error("node %s does not end; it is killed", self.name)
                process.kill()
        process.join()


async def _readable(descriptor: int) -> None:
    """Until there is something to read, or the other end is gone."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


def stop_with_parent(stop: asyncio.Event) -> None:
    """For a child: SIGTERM, SIGINT or the end of the parent stop it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - children only call this

    def parent_is_gone() -> None:
        loop.remove_reader(parent.sentinel)
        stop.set()

    loop.add_reader(parent.sentinel, parent_is_gone)
