"""What every figure needs: a PostgreSQL with fsync, databases, chains, and nodes as processes."""

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
from fencepost.dev.node_process import NodeProcess, start_node
from fencepost.dev.paths import default_cache_dir
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.errors import Unready

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

# Log files that are created before anything is measured.
LOG_FILES = 24
LOG_FILE_MIB = 16

_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Testbed:
    """A running server and a folder for the files of a benchmark."""

    server: EmbeddedPostgres
    folder: Path
    quick: bool

    def count(self, full: int, quick: int) -> int:
        """Return the full count, or the smaller one of a quick run."""
        return quick if self.quick else full

    def steps(self, full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        """Return the full steps, or the smaller ones of a quick run."""
        return quick if self.quick else full

    async def version(self) -> str:
        connection = await asyncpg.connect(self.server.dsn)
        try:
            return str(await connection.fetchval("SELECT current_setting('server_version')"))
        finally:
            await connection.close()

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """Create a database with Fencepost's schema, and drop it afterwards."""
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
        """Run one node process; its keys are in a file, because an environment can't hold thousands."""
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
        """Run a stub chain, and yield its URL."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lab.bench.stub_chain",
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
        """Run an Anvil."""
        binary = await self._anvil()
        folder = self.folder / f"anvil-{uuid4().hex[:8]}"
        extra = ("--gas-limit", "30000000000")
        async with anvil_node(binary=binary, run_dir=folder, block_time_s=block_time_s, extra=extra) as node:
            yield node


@asynccontextmanager
async def open_testbed(*, quick: bool) -> AsyncIterator[Testbed]:
    folder = _folder()
    try:
        async with embedded_postgres(folder / "postgres") as server:
            await _fill_log(server.dsn)
            yield Testbed(server, folder, quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _fill_log(dsn: str) -> None:
    """Prepare the write-ahead log as on a server that has run for a while.

    A new server creates each log file when it is needed, which delays all commits by a tenth of a second.
    """
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"ALTER SYSTEM SET min_wal_size = '{LOG_FILES * LOG_FILE_MIB}MB'")
        await connection.execute("SELECT pg_reload_conf()")
        for _ in range(LOG_FILES):
            await connection.execute("SELECT pg_logical_emit_message(true, 'bench', 'full'), pg_switch_wal()")
        await connection.execute("CHECKPOINT")  # files before it may be overwritten
    finally:
        await connection.close()


# The newest transaction nearly always ends last: while it is live, no other row is read.
_IS_ANY_LIVE = """
SELECT coalesce((SELECT is_live FROM managed_tx ORDER BY tx_id DESC LIMIT 1), false)
       OR EXISTS (SELECT FROM managed_tx WHERE is_live)
"""


async def wait_until_ended(dsn: str, *, within_s: float) -> None:
    """Wait until no transaction is live. The query costs next to nothing, because database work is measured."""
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
    """Raise `Unready` unless this number of transactions is confirmed."""
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
    folder.chmod(0o711)  # PostgreSQL may run as another user, which must be able to enter
    return folder
