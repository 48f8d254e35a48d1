"""What every figure needs: a server with fsync on, a database of its own, signers, and nodes as processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from fencepost.adapters.postgres import migrate
from fencepost.dev.anvil import AnvilNode, anvil_node, find_anvil
from fencepost.dev.paths import default_cache_dir
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.errors import Unready
from fencepost.lab.nodes import NodeProcess, start_node

QUIET = {
    "nonce.mode": "pipelined",
    "nonce.max_in_flight": "256",
    "nonce.chain_query": "off",
    "confirmations.required": "0",
    "gas.refuse_reverting": "false",
    "chains.default.poll_interval": "0.05s",
    "log.level": "error",
    "intake.max_queued": "1000000",
    "intake.max_queued_per_signer": "1000000",
}

# Files of the database's log that are made before anything is measured.
LOG_FILES = 24
LOG_FILE_MIB = 16

_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Stage:
    server: EmbeddedPostgres
    folder: Path
    quick: bool

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def steps(self, full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        return quick if self.quick else full

    async def version(self) -> str:
        connection = await asyncpg.connect(self.server.dsn)
        try:
            return str(await connection.fetchval("SELECT current_setting('server_version')"))
        finally:
            await connection.close()

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """A fresh database with our schema."""
        name = f"bench_{uuid4().hex[:12]}"
        await self._administer(f"CREATE DATABASE {name}")
        dsn = urlunsplit(urlsplit(self.server.dsn)._replace(path=f"/{name}"))
        try:
            await migrate.apply(dsn)
            yield dsn
        finally:
            await self._administer(f"DROP DATABASE {name} WITH (FORCE)")

    async def _administer(self, statement: str) -> None:
        connection = await asyncpg.connect(self.server.dsn)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    @asynccontextmanager
    async def node(
        self,
        dsn: str,
        rpc_url: str,
        keys: Sequence[str],
        settings: Mapping[str, str] = _NOTHING_MORE,
        *,
        module: str = "fencepost",
        more_environ: Mapping[str, str] = _NOTHING_MORE,
    ) -> AsyncIterator[NodeProcess]:
        """One node process; its keys lie in a file, because thousands of them don't fit into an environment."""
        key_file = self.folder / f"keys-{uuid4().hex[:8]}"
        key_file.touch(mode=0o600)
        key_file.write_text("\n".join(keys) + "\n")
        node = await start_node(
            "bench",
            dsn=dsn,
            rpc_url=rpc_url,
            private_keys=(),
            settings={**QUIET, "keys.file": str(key_file), **settings},
            log=self.folder / "node.log",
            module=module,
            more_environ=more_environ,
        )
        try:
            yield node
        finally:
            await node.stop()

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[str]:
        """A chain that answers at once."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "fencepost.lab.bench.stub_chain",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - it was asked for
        assert process.stdin is not None  # noqa: S101 - it was asked for
        try:
            yield json.loads(await process.stdout.readline())["url"]
        finally:
            process.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                async with asyncio.timeout(5):
                    await process.wait()

    async def anvil_version(self) -> str:
        process = await asyncio.create_subprocess_exec(
            str(await self._anvil()), "--version", stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        return re.sub(r"^.*?(\d+\.\d+\.\d+).*", r"\1", said.decode(), flags=re.DOTALL)

    async def _anvil(self) -> Path:
        return await find_anvil(default_cache_dir(), report=lambda _: None)

    @asynccontextmanager
    async def anvil(self, *, block_time_s: float) -> AsyncIterator[AnvilNode]:
        binary = await self._anvil()
        folder = self.folder / f"anvil-{uuid4().hex[:8]}"
        extra = ("--gas-limit", "30000000000")
        async with anvil_node(binary=binary, run_dir=folder, block_time_s=block_time_s, extra=extra) as node:
            yield node


@asynccontextmanager
async def open_stage(*, quick: bool) -> AsyncIterator[Stage]:
    folder = _folder()
    try:
        async with embedded_postgres(folder / "postgres") as server:
            await _fill_log(server.dsn)
            yield Stage(server, folder, quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _fill_log(dsn: str) -> None:
    """As on a server that has run for a while: what is written ahead goes over files that are there.

    A new one makes each of them when it is needed, which holds all commits up for a tenth of a second.
    """
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"ALTER SYSTEM SET min_wal_size = '{LOG_FILES * LOG_FILE_MIB}MB'")
        await connection.execute("SELECT pg_reload_conf()")
        for _ in range(LOG_FILES):
            await connection.execute("SELECT pg_logical_emit_message(true, 'bench', 'full'), pg_switch_wal()")
        await connection.execute("CHECKPOINT")  # those before it are free to be written over
    finally:
        await connection.close()


# What came last is nearly always what ends last: while it lives, no more is looked at.
_IS_ANY_LIVE = """
SELECT coalesce((SELECT is_live FROM managed_tx ORDER BY tx_id DESC LIMIT 1), false)
       OR EXISTS (SELECT FROM managed_tx WHERE is_live)
"""


async def until_ended(dsn: str, *, within_s: float) -> None:
    """Wait until nothing is left to do. Looking costs the database next to nothing: its work is measured."""
    connection = await asyncpg.connect(dsn)
    try:
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            if not await connection.fetchval(_IS_ANY_LIVE):
                return
            await asyncio.sleep(0.02)
    finally:
        await connection.close()
    raise Unready(f"not all transactions ended within {within_s:.0f} s")


async def require_confirmed(dsn: str, count: int) -> None:
    """All of them ended, and ended well: a figure of something else is worth nothing."""
    confirmed = await count_confirmed(dsn)
    if confirmed != count:
        raise Unready(f"{confirmed} of {count} transactions were confirmed")


async def count_confirmed(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM managed_tx WHERE state = 'CONFIRMED'"))
    finally:
        await connection.close()


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    folder.chmod(0o711)  # PostgreSQL may run as another user, and passes through
    return folder
