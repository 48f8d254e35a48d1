"""Run several nodes on one machine, one process per node, behind one port.

The parent binds the socket and passes it to its children. They accept connections from one queue, so connections that
wait there survive the death of a child. Each child is a separate node with its own name and also listens on its own
port, which serves its metrics and lets other nodes reach it. A child that exits by itself is restarted after a pause;
the pause grows while the child keeps exiting. When the parent is stopped, all children exit within a bounded time; when
the parent dies, the children notice and exit.
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

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 9.0  # longer than the shutdown of a node whose database does not answer
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 15.0
STEADY_S = 30.0  # a child that ran this long restarts after the first pause again
MAX_PROCESSES = 64

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """Hold what a child needs. It is sent through a pipe, so secrets stay out of arguments and environment."""

    settings: Settings
    dsn: str
    private_keys: tuple[str, ...]
    listener: socket.socket


# Run a node until it is stopped. It sends "" when it is ready, or the reason why it can't start.
Child = Callable[[ChildConfig, Connection], None]


def child_config(
    settings: Settings, *, name: str, dsn: str, private_keys: tuple[str, ...], listener: socket.socket
) -> ChildConfig:
    """Name the child and copy mappings into plain dicts: read-only views can't be pickled."""
    plain = replace(
        settings,
        node=replace(settings.node, id=name),
        chains=dict(settings.chains),
        signers=dict(settings.signers),
    )
    return ChildConfig(plain, dsn, private_keys, listener)


@asynccontextmanager
async def processes(child: Child, configs: list[ChildConfig]) -> AsyncIterator[None]:
    """Keep all children running while the body runs. Raise `Unready` if one of them can't start."""
    stop = asyncio.Event()
    children = [_SupervisedProcess(child, config) for config in configs]
    try:
        for one in children:
            one.start()
        for failure in await asyncio.gather(*(one.until_ready() for one in children)):
            if failure:
                raise Unready(failure)
        supervisors = [asyncio.create_task(one.supervise(stop)) for one in children]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*supervisors)
    finally:
        await asyncio.gather(*(one.end() for one in children))


class _SupervisedProcess:
    def __init__(self, child: Child, config: ChildConfig) -> None:
        self._child = child
        self._config = config
        self._process: SpawnProcess | None = None
        self._ready_pipe: Connection

    @property
    def name(self) -> str:
        return self._config.settings.node.id

    def start(self) -> None:
        self._ready_pipe, child_end = _spawn.Pipe(duplex=False)
        self._process = _spawn.Process(target=self._child, args=(self._config, child_end), name=self.name)
        self._process.start()
        child_end.close()

    async def until_ready(self) -> str:
        """Wait until the child is ready; return the empty string, or the reason why it is not."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await _readable(self._ready_pipe.fileno())
        except TimeoutError:
            return f"node {self.name} was not ready within {READY_TIMEOUT_S:.0f} s"
        try:
            return str(self._ready_pipe.recv())
        except EOFError:
            return f"node {self.name} exited before it was ready; see its log for the reason"
        finally:
            self._ready_pipe.close()

    async def supervise(self, stop: asyncio.Event) -> None:
        """Restart the child whenever it exits by itself, until `stop` is set."""
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
                pause_s = FIRST_PAUSE_S if loop.time() - began_s > STEADY_S else min(MAX_PAUSE_S, 2 * pause_s)
                _log.error(
                    "node %s exited with status %s; restarting it in %.1f s",
                    self.name,
                    self._process.exitcode,
                    pause_s,
                )
                await asyncio.wait({stopped}, timeout=pause_s)
                if not stop.is_set():
                    began_s = loop.time()
                    self.start()
                    self._ready_pipe.close()  # a restarted child reports failures in its log only
        finally:
            stopped.cancel()

    async def end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.is_alive():
            process.terminate()
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await _readable(process.sentinel)
            except TimeoutError:
                _log.error("node %s did not stop within %.0f s; killing it", self.name, STOP_TIMEOUT_S)
                process.kill()
        process.join()


async def _readable(descriptor: int) -> None:
    """Wait until the descriptor has data or its other end is closed."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


def stop_with_parent(stop: asyncio.Event) -> None:
    """Set `stop` in a child on SIGTERM, on SIGINT, or when the parent exits."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - only children call this function

    def parent_is_gone() -> None:
        loop.remove_reader(parent.sentinel)
        stop.set()

    loop.add_reader(parent.sentinel, parent_is_gone)
