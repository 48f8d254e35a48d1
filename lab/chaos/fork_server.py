"""Fork nodes from a process that has already loaded the program, so that a start takes little time.

A forked node is a normal process with its own environment, arguments and log. It ends with the fork server, which ends with
the lab. Linux only: the lab watches processes that are not its children through their pidfd.

The server is `python -m lab.chaos.node --fork-server FD`: each message is a request with the node's standard output as a
file descriptor; the answer is the node's pid and pidfd.
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

from fencepost.dev.node_process import NodeProcess, NodeSpec, wait_until_ready

MAX_MESSAGE_BYTES = 1024 * 1024
_STOP_TIMEOUT_S = 10.0
_MAX_PID_BYTES = 20
IS_SUPPORTED = sys.platform == "linux"


class ForkRequest(msgspec.Struct, frozen=True):
    """What a forked node gets."""

    arguments: tuple[str, ...]
    environ: dict[str, str]
    log: str


class ForkedProcess:
    """A child of the fork server. The lab sees that it ended, but not how."""

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


class ForkServer:
    """The lab's side of the fork server."""

    def __init__(self, control: socket.socket) -> None:
        self._socket = control
        self._one_fork_at_a_time = asyncio.Lock()

    async def start(self, spec: NodeSpec) -> NodeProcess:
        """Fork a node, and return it when it is ready."""
        said_fd, says_fd = os.pipe()
        try:
            async with self._one_fork_at_a_time:
                process = ForkedProcess(*await asyncio.to_thread(self._fork, spec, says_fd))
        finally:
            os.close(says_fd)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        said = os.fdopen(said_fd, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), said)
        try:
            return await wait_until_ready(spec, process, reader)
        finally:
            transport.close()  # a node prints one line

    def _fork(self, spec: NodeSpec, says_fd: int) -> tuple[int, int]:
        message = msgspec.json.encode(ForkRequest(spec.arguments, dict(spec.environ), str(spec.log)))
        socket.send_fds(self._socket, [message], [says_fd])
        pid, fds, _, _ = socket.recv_fds(self._socket, _MAX_PID_BYTES, 1)
        return int(pid), fds[0]


@asynccontextmanager
async def open_fork_server(log: Path) -> AsyncIterator[ForkServer]:
    """Run a fork server until the body ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, log.open("ab") as errors:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "lab.chaos.node", "--fork-server", str(theirs.fileno()),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
        try:
            yield ForkServer(ours)
        finally:
            ours.close()
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()


def serve_forks(control: socket.socket) -> ForkRequest:
    """Serve requests in the fork server; return in each forked node, with its request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the lab gets it too, and decides
    while True:
        message, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, 1)
        if not message:
            sys.exit(0)
        pid = os.fork()
        if pid == 0:
            control.close()
            request = msgspec.json.decode(message, type=ForkRequest)
            _apply(request, fds[0])
            return request
        pidfd = os.pidfd_open(pid)
        socket.send_fds(control, [str(pid).encode()], [pidfd])
        os.close(pidfd)
        os.close(fds[0])
        _reap_children()


def _reap_children() -> None:
    """Reap children that have ended; the last ones remain until the next fork."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def _apply(request: ForkRequest, says_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd, place in ((nothing_fd, 0), (says_fd, 1), (log_fd, 2)):
        os.dup2(fd, place)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request.environ)
    sys.argv[1:] = [argument for argument in request.arguments if argument != "--while-stdin"]
