"""A node as a process of its own, the command run against it, both kinds of client in one form, and a bad network.

`node_at` is a `fencepost up` with signers of the test chain. `Caller` calls either kind of client the same way. `line_to`
stands between a client and a node.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fencepost.client import AsyncClient, Client
from fencepost.lab.nodes import start_node
from fencepost.lab.relay import Relay, relay
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


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[tuple[Relay, str]]:
    """A wire between a client and a node that can lose answers, and the URL at its near end."""
    where = urlsplit(url)
    assert where.hostname is not None
    assert where.port is not None
    async with relay(where.hostname, where.port) as wire:
        yield wire, f"http://127.0.0.1:{wire.port}"
