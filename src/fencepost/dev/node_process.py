"""Run nodes as processes, with the command that users run."""

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

from fencepost.dev.embedded import DEV_CHAIN_ID
from fencepost.errors import Unready

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 6.0
_EMPTY: Mapping[str, str] = MappingProxyType({})


class Process(Protocol):
    """The part of a process that is used here, whether it is a child or not."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def send_signal(self, signal: int) -> None: ...
    def kill(self) -> None: ...
    async def wait(self) -> int: ...


@dataclass(slots=True)
class NodeProcess:
    """A running node."""

    name: str
    url: str
    process: Process = field(repr=False)

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        """Kill the node (SIGKILL)."""
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        """Stop the node (SIGTERM); kill it at the time-out."""
        if not self.is_alive:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
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
    """Start several nodes in parallel; if one fails, stop the others and raise its error."""
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
class NodeSpec:
    """The arguments and environment of one `fencepost up`. Secrets are in the environment, not in the arguments."""

    name: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    log: Path


def node_spec(
    name: str,
    *,
    dsn: str,
    rpc_url: str,
    private_keys: Sequence[str],
    settings: Mapping[str, str],
    log: Path,
    chain_id: int = DEV_CHAIN_ID,
    more_environ: Mapping[str, str] = _EMPTY,
) -> NodeSpec:
    """Describe a node."""
    keys = {f"FENCEPOST_KEY_{index}": key for index, key in enumerate(private_keys)}
    environ = {
        **os.environ,
        **keys,
        **more_environ,
        "FENCEPOST_DATABASE_DSN": dsn,
        "FENCEPOST_RPC_URL": rpc_url,
        "FENCEPOST_CHAIN_ID": str(chain_id),
    }
    asked = {"node.id": name, "api.port": "0", **settings}
    sets = [f"--set={key}={value}" for key, value in asked.items()]
    return NodeSpec(name, ("up", "--json", "--while-stdin", *sets), environ, log)


async def start_node(
    name: str,
    *,
    dsn: str,
    rpc_url: str,
    private_keys: Sequence[str],
    settings: Mapping[str, str],
    log: Path,
    module: str = "fencepost",
    more_environ: Mapping[str, str] = _EMPTY,
) -> NodeProcess:
    """Start a node, and return it when it is ready."""
    spec = node_spec(
        name,
        dsn=dsn,
        rpc_url=rpc_url,
        private_keys=private_keys,
        settings=settings,
        log=log,
        more_environ=more_environ,
    )
    return await start_from_spec(spec, module=module)


async def start_from_spec(spec: NodeSpec, *, module: str = "fencepost") -> NodeProcess:
    """Start a described node, and return it when it is ready.

    `module` is the command itself, or a module that prepares the process and then runs the command.
    """
    with spec.log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *spec.arguments,
            env=spec.environ, stdout=asyncio.subprocess.PIPE, stderr=errors, stdin=asyncio.subprocess.PIPE,
        )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - it was asked for
    return await wait_until_ready(spec, process, process.stdout)


async def wait_until_ready(spec: NodeSpec, process: Process, output: asyncio.StreamReader) -> NodeProcess:
    """Return the node when it prints its URL; otherwise end the process and raise `Unready` with its last log line."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            line = await output.readline()
        url = json.loads(line)["url"]
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if not isinstance(error, TimeoutError | ValueError | KeyError):
            raise
        raise Unready(f"node {spec.name} did not start: {_last_log_line(spec.log)}") from error
    return NodeProcess(spec.name, url, process)


def _last_log_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it printed nothing"
