"""A nursery for nodes: a process that has loaded the program once, and forks a node whenever one is wanted.

A start then costs what a node does, and not what Python does before it: under faults nodes are started all the time.
A forked node is a process like any other: it has its own environment, arguments and log, dies alone, and ends with the
nursery, which ends with the lab. Linux only: processes that are not children are watched through their pidfd.

The other side is `python -m fencepost.lab.chaos_node --nursery FD`: each message there is an order with the node's
standard output as a descriptor; the answer is the node's pid and pidfd.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from fencepost.lab.nodes import NodeOrder, NodeProcess, until_ready

MESSAGE_BYTES_MAX = 1024 * 1024
_STOP_WITHIN_S = 10.0
_PID_BYTES_MAX = 20
IS_POSSIBLE = sys.platform == "linux"


class Order(msgspec.Struct, frozen=True):
    arguments: tuple[str, ...]
    environ: dict[str, str]
    log: str


class ForkedProcess:
    """Somebody else's child. How it ended is not known, only that it did."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._has_ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, self._ended)

    @property
    def returncode(self) -> int | None:
        return 0 if self._has_ended.is_set() else None

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._has_ended.set()

    def send_signal(self, number: int) -> None:
        if self._has_ended.is_set():
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        await self._has_ended.wait()
        return 0


class Nursery:
    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._one_at_a_time = asyncio.Lock()

    async def start(self, order: NodeOrder) -> NodeProcess:
        """Once it says that it is ready."""
        said_fd, says_fd = os.pipe()
        try:
            async with self._one_at_a_time:
                process = ForkedProcess(*await asyncio.to_thread(self._fork, order, says_fd))
        finally:
            os.close(says_fd)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        said = os.fdopen(said_fd, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), said)
        try:
            return await until_ready(order, process, reader)
        finally:
            transport.close()  # a node says one line

    def _fork(self, order: NodeOrder, says_fd: int) -> tuple[int, int]:
        message = msgspec.json.encode(Order(order.arguments, dict(order.environ), str(order.log)))
        socket.send_fds(self._wire, [message], [says_fd])
        pid, fds, _, _ = socket.recv_fds(self._wire, _PID_BYTES_MAX, 1)
        return int(pid), fds[0]


@asynccontextmanager
async def nursery(log: Path) -> AsyncIterator[Nursery]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, log.open("ab") as errors:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "fencepost.lab.chaos_node", "--nursery", str(theirs.fileno()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        try:
            yield Nursery(ours)
        finally:
            ours.close()
            async with asyncio.timeout(_STOP_WITHIN_S):
                await process.wait()


def raise_nodes(wire: socket.socket) -> Order:
    """In the nursery: returns in every node that it forks, as that node; ends with the lab."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the lab gets it too, and decides
    while True:
        message, fds, _, _ = socket.recv_fds(wire, MESSAGE_BYTES_MAX, 1)
        if not message:
            sys.exit(0)
        pid = os.fork()
        if pid == 0:
            wire.close()
            order = msgspec.json.decode(message, type=Order)
            _dress(order, fds[0])
            return order
        pidfd = os.pidfd_open(pid)
        socket.send_fds(wire, [str(pid).encode()], [pidfd])
        os.close(pidfd)
        os.close(fds[0])
        _bury()


def _bury() -> None:
    """Those that have ended; the last of them stay until the next one is born."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def _dress(order: Order, says_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd, place in ((nothing_fd, 0), (says_fd, 1), (log_fd, 2)):
        os.dup2(fd, place)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order.environ)
    sys.argv[1:] = [argument for argument in order.arguments if argument != "--while-stdin"]
