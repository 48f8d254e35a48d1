"""The database restarts, cuts connections, or loses commits in a fail-over: nodes recover and continue by themselves."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from fencepost.adapters.postgres import migrate
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.dev.postgres_binaries import owner_of, run_as
from fencepost.facade import Fencepost
from fixtures.core import (
    Account,
    Client,
    DatabaseReader,
    OwnChain,
    check_all_mined_once,
    eventually,
    open_ledger,
)
from fixtures.nodes import FAST, open_fencepost
from fixtures.postgres import run_folder

LEASE_S = float(FAST["lease.duration"].removesuffix("s"))
WINDOW = {"nonce.mode": "pipelined", "nonce.max_in_flight": "4", "resubmit.interval": "2s"}

# After a fail-over that may have lost commits the lane sends a window of fillers before any request.
FILLERS = 4


@pytest_asyncio.fixture
async def own_server() -> AsyncIterator[EmbeddedPostgres]:
    """Start a server that no other test shares: this test damages it."""
    folder = run_folder() / f"suffers-{uuid4().hex[:8]}"
    options = {"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on"}
    async with embedded_postgres(folder, options=options) as server:
        await migrate.apply(server.dsn)
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def reading(dsn: str) -> AsyncIterator[tuple[DatabaseReader, Client]]:
    connection = await asyncpg.connect(dsn)
    try:
        async with open_ledger(dsn, node="client") as ledger:
            yield DatabaseReader(connection), Client(ledger)
    finally:
        await connection.close()


async def asked(dsn: str, account: Account, count: int) -> None:
    async with reading(dsn) as (_, client):
        await client.ask(account, count)


async def confirmed(dsn: str, account: Account) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        query = "SELECT count(*) FROM managed_tx WHERE signer = $1 AND state = 'CONFIRMED'"
        return int(await connection.fetchval(query, account.address))
    finally:
        await connection.close()


async def until_confirmed(dsn: str, account: Account, count: int) -> None:
    async def are_confirmed() -> bool:
        with suppress(OSError, asyncpg.PostgresError):
            return await confirmed(dsn, account) >= count
        return False

    await eventually(are_confirmed)


async def test_a_database_crash_only_costs_time(
    own_server: EmbeddedPostgres, interval_chain: OwnChain, caplog: pytest.LogCaptureFixture
) -> None:
    dsn, account = own_server.dsn, interval_chain.accounts[0]
    await asked(dsn, account, 120)
    async with (
        open_fencepost(dsn, interval_chain, account, options=WINDOW),
        open_fencepost(dsn, interval_chain, account, options=WINDOW),
    ):
        for done in (10, 40):
            await until_confirmed(dsn, account, done)
            await own_server.restart("immediate")
        await until_confirmed(dsn, account, 120)
        async with reading(dsn) as (db, _):
            await db.until_states(account, CONFIRMED=120)
            await check_all_mined_once(db, interval_chain, account, 120)
    ours = [record for record in caplog.records if record.name.startswith("fencepost")]
    assert any("the database does not answer" in record.getMessage() for record in ours)
    assert not any(record.exc_info for record in ours), "an outage is a line, not a trace"


async def test_repeated_connection_cuts_only_cost_time(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    account = interval_chain.accounts[0]
    await client.ask(account, 120)
    async with open_fencepost(dsn, interval_chain, account, options=WINDOW):
        for done in range(10, 110, 10):
            await until_confirmed(dsn, account, done)
            await db.connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'fencepost here%'"
            )
        await db.until_states(account, CONFIRMED=120)
    await check_all_mined_once(db, interval_chain, account, 120)


async def test_the_lease_holder_finds_a_request_whose_notification_is_lost(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    """The lease is kept for an hour, so only the periodic count can find the second request."""
    account = interval_chain.accounts[0]
    async with open_fencepost(dsn, interval_chain, account, options={**WINDOW, "lease.idle_release": "1h"}):
        await client.ask(account, 1)  # without a notification
        await db.until_states(account, CONFIRMED=1)
        await client.ask(account, 2)
        await db.until_states(account, CONFIRMED=2)


async def test_a_lease_is_renewed_while_slow_statements_use_every_other_connection(
    dsn: str, interval_chain: OwnChain, db: DatabaseReader, client: Client
) -> None:
    account = interval_chain.accounts[0]

    async def expires_at() -> float:
        query = "SELECT extract(epoch FROM expires_at)::float8 FROM signer_lease WHERE signer = $1"
        return float(await db.connection.fetchval(query, account.address))

    async with (
        open_fencepost(
            dsn, interval_chain, account, options={**WINDOW, "lease.idle_release": "1h"}
        ) as fencepost,
        AsyncExitStack() as taken,
    ):
        await client.ask(account, 1)
        await db.until_states(account, CONFIRMED=1)
        pool = fencepost.running.pool
        connections = [await taken.enter_async_context(pool.acquire()) for _ in range(pool.get_max_size())]
        full_since = await expires_at()

        async def is_renewed_for_long() -> bool:
            await asyncio.gather(*(connection.execute("SELECT pg_sleep(0.1)") for connection in connections))
            return await expires_at() > full_since + 2 * LEASE_S

        await eventually(is_renewed_for_long)
        assert len(await db.terms(account)) == 1


# ---- fail-over


@dataclass(slots=True)
class Switch:
    """The one address that nodes know; it leads to the current primary."""

    port: int
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, away = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            return
        self.connections |= {writer, away}
        with suppress(OSError):
            await asyncio.wait(
                [asyncio.create_task(_pump(reader, away)), asyncio.create_task(_pump(there, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
        for one in (writer, away):
            self.connections.discard(one)
            one.close()

    def to(self, port: int) -> None:
        self.port = port
        for connection in list(self.connections):
            connection.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()


@dataclass(slots=True)
class Standby:
    server: EmbeddedPostgres
    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    async def copy(self) -> None:
        """Copy the primary's state as it is now; commits made later will be lost."""
        owner = owner_of(self.server.data_dir / "cluster")
        self.folder.mkdir(mode=0o700)
        if owner is not None:
            shutil.chown(self.folder, owner.uid, owner.gid)
        command = [str(self.server.bin_dir / "pg_basebackup"), "-d", self.server.tcp_dsn]
        ran = await run_as(owner, [*command, "-D", str(self.folder / "data"), "-X", "stream", "-c", "fast"])
        assert ran.returncode == 0, ran.stderr
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def promote(self) -> None:
        """Start the copy as a primary with a new timeline, like a promoted replica."""
        data = self.folder / "data"
        owner = owner_of(self.server.data_dir / "cluster")
        (data / "recovery.signal").touch()
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\nrecovery_target_timeline = 'current'\n")
        if owner is not None:
            shutil.chown(data / "recovery.signal", owner.uid, owner.gid)
        # A standby needs at least the primary's value to start.
        options = ["-cmax_connections=500", "-clisten_addresses=127.0.0.1", "-cunix_socket_directories="]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(self.server.bin_dir / "postgres"), "-D", str(data), f"-p{self.port}", *options],
                user=None if owner is None else owner.uid,
                group=None if owner is None else owner.gid,
                extra_groups=None if owner is None else [],
                cwd=self.folder,
                env={"LC_ALL": "C"},
                stderr=log,
            )

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout=10)
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(slots=True)
class Pair:
    """A primary that nodes reach through a switch, and a replica that lags behind."""

    switch: Switch
    standby: Standby
    dsn: str  # the current primary's pool

    async def fail_over(self) -> None:
        """Replace the primary by the copy: everything committed after the copy was made is lost."""
        self.standby.promote()
        own_dsn = with_port(self.dsn, self.standby.port)

        async def is_primary() -> bool:
            with suppress(OSError, asyncpg.PostgresError):
                connection = await asyncpg.connect(own_dsn)
                try:
                    return not await connection.fetchval("SELECT pg_is_in_recovery()")
                finally:
                    await connection.close()
            return False

        await eventually(is_primary, why="the copy never opened")
        self.switch.to(self.standby.port)


def with_port(dsn: str, port: int) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{port}"))


@pytest_asyncio.fixture
async def pair(own_server: EmbeddedPostgres) -> AsyncIterator[Pair]:
    switch = Switch(own_server.port)
    standby = Standby(own_server, own_server.data_dir.parent / f"copy-{uuid4().hex[:8]}")
    server = await asyncio.start_server(switch.serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield Pair(switch, standby, with_port(own_server.tcp_dsn, port))
    finally:
        server.close()
        switch.to(0)
        standby.end()


async def knows_of_it(fencepost: Fencepost) -> None:
    async def noticed() -> bool:
        return fencepost.running.observer.counts["history_changed"] == 1

    await eventually(noticed)


async def until_mined(chain: OwnChain, account: Account, count: int) -> None:
    async def are_mined() -> bool:
        await chain.mine()
        return await chain.nonce(account.address) >= count

    await eventually(are_mined)


async def test_after_a_fail_over_lost_receipts_are_read_again_and_work_continues(
    pair: Pair, manual_chain: OwnChain
) -> None:
    account = manual_chain.accounts[0]
    await asked(pair.dsn, account, 4)
    async with open_fencepost(pair.dsn, manual_chain, account, options=WINDOW) as fencepost:
        async with reading(pair.dsn) as (db, _):
            await db.until_states(account, SUBMITTED=4)
            await pair.standby.copy()
            await until_mined(manual_chain, account, 4)
            await manual_chain.mine(2)
            await db.until_states(account, CONFIRMED=4)
            (old,) = {row["fencing_token"] for row in await db.terms(account)}
        await pair.fail_over()
        await knows_of_it(fencepost)
        async with reading(pair.dsn) as (db, client):
            await db.until_states(account, CONFIRMED=4)
            await client.ask(account, 6)
            await until_mined(manual_chain, account, 4 + FILLERS)
            await manual_chain.mine(2)
            await until_mined(manual_chain, account, 6 + FILLERS)
            await manual_chain.mine(2)
            await db.until_states(account, CONFIRMED=6 + FILLERS)
            await check_all_mined_once(db, manual_chain, account, 6 + FILLERS)
            newest = (await db.terms(account))[-1]["fencing_token"]
            assert newest >> 40 > old >> 40


async def test_a_fail_over_that_lost_nonces_protects_the_signer_and_nothing_is_sent_twice(
    pair: Pair, manual_chain: OwnChain
) -> None:
    account, other_account = manual_chain.accounts[:2]
    await asked(pair.dsn, account, 12)
    async with open_fencepost(pair.dsn, manual_chain, account, other_account, options=WINDOW) as fencepost:
        async with reading(pair.dsn) as (db, _):
            await db.until_states(account, SUBMITTED=4, QUEUED=8)
            await pair.standby.copy()
            await until_mined(manual_chain, account, 8)  # the copy does not contain four of them
        await pair.fail_over()
        await knows_of_it(fencepost)
        async with reading(pair.dsn) as (db, client):
            assert "lost commits" in await db.until_protected(account)
            sent = await manual_chain.nonce(account.address, "pending")
            await client.ask(other_account, 2)
            await until_mined(manual_chain, other_account, FILLERS)
            await manual_chain.mine(2)
            await until_mined(manual_chain, other_account, 2 + FILLERS)
            await manual_chain.mine(2)
            await db.until_states(other_account, CONFIRMED=2 + FILLERS)
            await check_all_mined_once(db, manual_chain, other_account, 2 + FILLERS)
            assert await manual_chain.nonce(account.address, "pending") == sent
    values = [int(tx["value"], 16) for tx in await manual_chain.mined_from(account.address)]
    assert len(set(values)) == len(values)
