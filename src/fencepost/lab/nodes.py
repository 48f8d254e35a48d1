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

from fencepost.errors import Unready

READY_WITHIN_S = 60.0
STOP_WITHIN_S = 6.0
_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class NodeProcess:
    name: str
    url: str
    process: asyncio.subprocess.Process = field(repr=False)

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
    """A `fencepost up` of its own, once it says that it is ready. Secrets go through the environment, not the arguments.

    `module` is what is run: the command itself, or something that prepares the process and then runs it.
    """
    keys = {f"FENCEPOST_KEY_{index}": key for index, key in enumerate(private_keys)}
    environ = {
        **os.environ,
        **keys,
        **more_environ,
        "FENCEPOST_DATABASE_DSN": dsn,
        "FENCEPOST_RPC_URL": rpc_url,
    }
    arguments = [
        f"--set={key}={value}" for key, value in {"node.id": name, "api.port": "0", **settings}.items()
    ]
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, "up", "--json", "--while-stdin", *arguments,
            env=environ, stdout=asyncio.subprocess.PIPE, stderr=errors, stdin=asyncio.subprocess.PIPE,
        )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - it was asked for
    try:
        async with asyncio.timeout(READY_WITHIN_S):
            line = await process.stdout.readline()
        url = json.loads(line)["url"]
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if not isinstance(error, TimeoutError | ValueError | KeyError):
            raise
        raise Unready(f"node {name} did not start: {_last_words(log)}") from error
    return NodeProcess(name, url, process)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else "it said nothing"
