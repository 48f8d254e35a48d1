"""Nodes as processes: started with the command that users run, ended as machines end them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from fencepost.errors import Unready

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 6.0
_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


class Process(Protocol):
    """What is needed of a process, whoever is its parent."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def send_signal(self, signal: int) -> None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...


@dataclass(slots=True)
class NodeProcess:
    name: str
    url: str
    process: Process = field(repr=False)

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        """As when the power goes: no last words."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        if not self.is_alive:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            await self.kill()


async def start_nodes(
    names: Sequence[str],
    *,
    dsn: str,
    rpc_url: str,
    private_keys: Sequence[str],
    settings: Mapping[str, str],
    logs: Path,
) -> list[NodeProcess]:
    """All of them, side by side; or none, and the reason."""
    started = await asyncio.gather(
        *(
            start_node(
                name,
                dsn=dsn,
                rpc_url=rpc_url,
                private_keys=private_keys,
                settings=settings,
                log=logs / f"{name}.log",
            )
            for name in names
        ),
        return_exceptions=True,
    )
    failures = [failure for failure in started if isinstance(failure, BaseException)]
    nodes = [node for node in started if isinstance(node, NodeProcess)]
    if failures:
        for node in nodes:
            await node.stop()
        raise failures[0]
    return nodes


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """A `fencepost up` of its own. Secrets go through the environment, not the arguments."""

    name: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    log: Path


def order_node(
    name: str,
    *,
    dsn: str,
    rpc_url: str,
    private_keys: Sequence[str],
    settings: Mapping[str, str],
    log: Path,
    more_environ: Mapping[str, str] = _NOTHING_MORE,
) -> NodeOrder:
    keys = {f"FENCEPOST_KEY_{index}": key for index, key in enumerate(private_keys)}
    environ = {
        **os.environ,
        **keys,
        **more_environ,
        "FENCEPOST_DATABASE_DSN": dsn,
        "FENCEPOST_RPC_URL": rpc_url,
    }
    asked = {"node.id": name, "api.port": "0", **settings}
    sets = [f"--set={key}={value}" for key, value in asked.items()]
    return NodeOrder(name, ("up", "--json", "--while-stdin", *sets), environ, log)


async def start_node(
    name: str,
    *,
    dsn: str,
    rpc_url: str,
    private_keys: Sequence[str],
    settings: Mapping[str, str],
    log: Path,
    module: str = "fencepost",
    more_environ: Mapping[str, str] = _NOTHING_MORE,
) -> NodeProcess:
    """With the command that users run, once it says that it is ready."""
    order = order_node(
        name,
        dsn=dsn,
        rpc_url=rpc_url,
        private_keys=private_keys,
        settings=settings,
        log=log,
        more_environ=more_environ,
    )
    return await start_ordered(order, module=module)


async def start_ordered(order: NodeOrder, *, module: str = "fencepost") -> NodeProcess:
    """Once it says that it is ready. `module` is the command itself, or what prepares the process and then runs it."""
    with order.log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *order.arguments,
            env=order.environ, stdout=asyncio.subprocess.PIPE, stderr=errors, stdin=asyncio.subprocess.PIPE,
        )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - it was asked for
    return await until_ready(order, process, process.stdout)


async def until_ready(order: NodeOrder, process: Process, said: asyncio.StreamReader) -> NodeProcess:
    """The node, or its end and the reason."""
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            line = await said.readline()
        url = json.loads(line)["url"]
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if not isinstance(error, TimeoutError | ValueError | KeyError):
            raise
        raise Unready(f"node {order.name} did not start: {_last_words(order.log)}") from error
    return NodeProcess(order.name, url, process)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"
