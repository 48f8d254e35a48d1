"""A node as a process of its own, the command run against it, both kinds of client in one form, and a bad network.

`node_url` is the URL of a `fencepost up` with three signers of the test chain. `Caller` calls either kind of client the
same way. `Dropper` stands between a client and a node, and cuts the line when the answer is on its way back.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fencepost.client import AsyncClient, Client
from fencepost.lab.nodes import start_node
from fix_anvil import TestChain

FAST = {
    "lease.duration": "2s",
    "lease.renew_interval": "400ms",
    "lease.skew_allowance": "0s",
    "chains.default.poll_interval": "50ms",
    "confirmations.required": "0",
}


@asynccontextmanager
async def node_at(
    dsn: str, chain: TestChain, log: Path, *, keys: int = 3, **options: str
) -> AsyncIterator[str]:
    """The URL of a ready `fencepost up`; options are settings, with `__` for the dots."""
    node = await start_node(
        "node-1",
        dsn=dsn,
        rpc_url=chain.rpc_url,
        private_keys=["0x" + key.hex() for key in chain.private_keys[:keys]],
        settings=FAST | {name.replace("__", "."): value for name, value in options.items()},
        log=log,
    )
    try:
        yield node.url
    finally:
        await node.stop()


async def run_fencepost(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> tuple[int, str, str]:
    """Exit code, output and errors of the command as users run it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fencepost", *arguments,
        env={**os.environ, **(env or {})}, cwd=cwd, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(60):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


@dataclass(frozen=True, slots=True)
class Caller:
    """Calls by name; what gives items one by one comes as a list."""

    client: Client | AsyncClient

    async def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self.client, name)
        if isinstance(self.client, Client):
            return await asyncio.to_thread(_collected, method, args, kwargs)
        made = method(*args, **kwargs)
        return [item async for item in made] if hasattr(made, "__aiter__") else await made


def _collected(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    made = method(*args, **kwargs)
    return list(made) if hasattr(made, "__next__") else made


@asynccontextmanager
async def caller_of(kind: str, url: str | list[str], **options: Any) -> AsyncIterator[Caller]:
    if kind == "blocking":
        with Client(url, **options) as client:
            yield Caller(client)
    else:
        async with AsyncClient(url, **options) as client:
            yield Caller(client)


@dataclass(slots=True)
class Dropper:
    """Lets everything through to the node; of the next `drops` answers it lets nothing back."""

    target: str
    url: str = ""
    drops: int = 0
    dropped: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Dropper]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for writer in list(self._open):
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        where = urlsplit(self.target)
        to_node: asyncio.StreamWriter | None = None
        self._open.add(writer)
        try:
            from_node, to_node = await asyncio.open_connection(where.hostname, where.port)
            self._open.add(to_node)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forth(reader, to_node))
                group.create_task(self._back(from_node, writer, to_node))
        except* OSError:
            pass  # either side hung up, which is all that a line can do
        finally:
            for one in (writer, to_node):
                if one is not None:
                    one.transport.abort()
                    self._open.discard(one)

    async def _forth(self, reader: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            to_node.write(piece)
            await to_node.drain()
        with suppress(OSError):
            to_node.write_eof()

    async def _back(
        self, from_node: asyncio.StreamReader, writer: asyncio.StreamWriter, to_node: asyncio.StreamWriter
    ) -> None:
        while piece := await from_node.read(65536):
            if self.drops:
                self.drops -= 1
                self.dropped += 1
                break
            writer.write(piece)
            await writer.drain()
        writer.transport.abort()
        to_node.transport.abort()
