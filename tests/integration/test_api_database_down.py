"""The database is unavailable: 503 with Retry-After and nothing half-accepted; a request that got 202 is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit, urlunsplit

import asyncpg

from fixtures.anvil import TestChain
from fixtures.api import open_api


@dataclass(slots=True)
class Cable:
    """A connection to PostgreSQL that can be cut and restored."""

    host: str
    port: int
    whole: bool = True
    _silent: set[asyncio.StreamWriter] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.whole:
            writer.transport.abort()
            return
        try:
            if self.host.startswith("/"):
                far = await asyncio.open_unix_connection(f"{self.host}/.s.PGSQL.{self.port}")
            else:
                far = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far[1]}
        with suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, far[1]), self._pump(far[0], writer))
        self._writers -= {writer, far[1]}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while part := await reader.read(65536):
                if writer in self._silent:
                    continue
                writer.write(part)
                await writer.drain()
        writer.transport.abort()

    def silence(self) -> None:
        """Drop everything on the current connections; new connections work."""
        self._silent |= self._writers

    def cut(self) -> None:
        self.whole = False
        for writer in list(self._writers):
            writer.transport.abort()


@asynccontextmanager
async def cabled(dsn: str) -> AsyncIterator[tuple[Cable, str]]:
    parts = urlsplit(dsn)
    host = parts.hostname or parse_qs(parts.query)["host"][0]
    cable = Cable(host, parts.port or int(parse_qs(parts.query).get("port", ["5432"])[0]))
    server = await asyncio.start_server(cable.connect, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = f"{parts.username}:{parts.password}@" if parts.password else f"{parts.username or 'postgres'}@"
    try:
        yield cable, urlunsplit(("postgresql", f"{user}127.0.0.1:{port}", parts.path, "", ""))
    finally:
        cable.cut()
        server.close()


async def test_an_unavailable_database_gives_503_and_nothing_half_accepted(
    dsn: str, anvil: TestChain
) -> None:
    async with (
        cabled(dsn) as (cable, through),
        open_api(through, anvil, database__connect_timeout="1s") as api,
    ):
        kept = await api.post("/tx", api.transfer("before"))
        assert kept.status == 202
        cable.cut()
        for _ in range(3):
            refused = await api.post("/tx", api.transfer("while"))
            assert refused.problem[:2] == (503, "database_unavailable")
            assert int(refused.headers["Retry-After"]) >= 1
        assert (await api.get("/tx")).problem[:2] == (503, "database_unavailable")
        assert (await api.get("//readyz")).problem[:2] == (503, "database_unavailable")
        assert (await api.get("//healthz")).status == 200
        direct = await asyncpg.connect(dsn)
        rows = await direct.fetch("SELECT request_id FROM managed_tx")
        await direct.close()
        assert [row["request_id"] for row in rows] == ["before"]
        cable.whole = True
        done = await api.get(f"/tx/{kept.json['txId']}", wait="confirmed", timeout=60)
        assert done.json["state"] == "CONFIRMED"
        again = await api.post("/tx", api.transfer("while"), wait="confirmed", timeout=60)
        assert again.json["state"] == "CONFIRMED"
        assert len(await anvil.mined_from(api.signers[0])) == 2
