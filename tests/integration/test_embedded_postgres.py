"""The embedded PostgreSQL: durable, protected by a password, and able to start again after any failure."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from fencepost.dev import postgres_binaries
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.errors import EmbeddedError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")


@pytest.fixture
def base() -> Iterator[Path]:
    """Make a folder that another user can traverse: PostgreSQL does not run as root, and pytest's folder is closed."""
    path = Path(tempfile.mkdtemp(prefix="fencepost-pg-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """Share one data folder among the tests that leave it as they found it."""
    path = Path(tempfile.mkdtemp(prefix="fencepost-pg-"))
    path.chmod(0o711)
    yield path / "data"
    shutil.rmtree(path)


async def query(pg: EmbeddedPostgres, sql: str) -> object:
    connection = await asyncpg.connect(pg.dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_the_server_has_durable_settings_and_its_own_database_and_user(data_dir: Path) -> None:
    async with embedded_postgres(data_dir, options={"deadlock_timeout": "250ms", "port": "1"}) as pg:
        who = "SELECT current_user || '@' || current_database() || ' ' || rolsuper FROM pg_roles WHERE rolname = user"
        assert await query(pg, who) == "fencepost@fencepost true"
        settings = {}
        for name in (
            "fsync",
            "max_connections",
            "shared_buffers",
            "server_encoding",
            "deadlock_timeout",
            "port",
        ):
            settings[name] = await query(pg, f"SHOW {name}")
        assert settings == {
            "fsync": "on",
            "max_connections": "200",
            "shared_buffers": "128MB",
            "server_encoding": "UTF8",
            "deadlock_timeout": "250ms",
            "port": str(pg.port),
        }
        assert (await asyncio.to_thread(names, pg.bin_dir)) >= {"pg_dump", "psql", "pg_ctl"}


async def test_both_addresses_require_the_password(data_dir: Path) -> None:
    async with embedded_postgres(data_dir) as pg:
        assert pg.dsn != pg.tcp_dsn
        for dsn in (pg.dsn, pg.tcp_dsn):
            connection = await asyncpg.connect(dsn)
            verifier = await connection.fetchval(
                "SELECT rolpassword FROM pg_authid WHERE rolname = current_user"
            )
            assert verifier.startswith("SCRAM-SHA-256$4096:")  # drivers reject a server with a weaker method
            await connection.close()
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(dsn, password="wrong")
        password = (data_dir / "password").read_text(encoding="ascii")
        assert len(password) >= 24
        assert password not in repr(pg)
        assert password not in (data_dir / "server.json").read_text(encoding="utf-8")
        assert (mode(data_dir / "password"), mode(data_dir / "run")) == (0o600, 0o700)


async def test_a_path_too_long_for_a_socket_falls_back_to_tcp(base: Path) -> None:
    async with embedded_postgres(base / ("long" * 25)) as pg:
        assert pg.dsn == pg.tcp_dsn
        assert await query(pg, "SELECT 1") == 1


async def test_committed_rows_survive_a_stop_and_a_kill_of_every_process(data_dir: Path) -> None:
    async with embedded_postgres(data_dir) as pg:
        await query(pg, "CREATE TABLE IF NOT EXISTS survivor (n int)")
        await query(pg, "INSERT INTO survivor VALUES (1)")
    async with embedded_postgres(data_dir) as pg:
        await query(pg, "INSERT INTO survivor VALUES (2)")
        for pid in (pg.server.status.supervisor_pid, pg.pid):
            os.kill(pid, signal.SIGKILL)
        async with embedded_postgres(data_dir) as again:
            assert await query(again, "SELECT sum(n) FROM survivor") == 3


async def test_a_crash_restart_keeps_rows_and_port_and_breaks_connections(data_dir: Path) -> None:
    async with embedded_postgres(data_dir) as pg:
        pid, port = pg.pid, pg.port
        await query(pg, "CREATE TABLE IF NOT EXISTS crashed (n int)")
        connection = await asyncpg.connect(pg.dsn)
        await connection.execute("INSERT INTO crashed VALUES (1)")
        await pg.restart("immediate")
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, ConnectionError)):
            await connection.fetchval("SELECT 1")
        assert pg.pid != pid
        assert await query(pg, "SHOW port") == str(port)
        assert await query(pg, "SELECT count(*) FROM crashed") == 1
        await pg.restart("fast")
        assert await query(pg, "SELECT count(*) FROM crashed") == 1


@pytest.fixture
def other_program(data_dir: Path) -> Iterator[int]:
    """Yield the pid of another program that runs as the owner of the data."""
    owner = postgres_binaries.owner_of(data_dir / "cluster")
    process = subprocess.Popen(["sleep", "60"], user=None if owner is None else owner.uid)
    yield process.pid
    process.kill()
    process.wait(timeout=5)


@pytest.mark.parametrize("left_behind", ["", "{pid}\n{cluster}\n"])
async def test_a_pid_file_left_by_a_crash_does_not_prevent_the_next_start(
    data_dir: Path, other_program: int, left_behind: str
) -> None:
    async with embedded_postgres(data_dir):
        pass
    # The pid is in use again, as after a reboot or in a new container: PostgreSQL alone would never start.
    cluster = data_dir / "cluster"
    (cluster / "postmaster.pid").write_text(
        left_behind.format(pid=other_program, cluster=cluster), encoding="utf-8"
    )
    async with embedded_postgres(data_dir) as pg:
        assert await query(pg, "SELECT 1") == 1


async def test_an_interrupted_start_leaves_nothing_half_made(base: Path) -> None:
    data_dir = base / "data"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.4), embedded_postgres(data_dir):
            pytest.fail("no cluster is made as fast as that")
    assert "cluster" not in names(data_dir)
    async with embedded_postgres(data_dir) as pg:
        assert await query(pg, "SELECT 1") == 1
        assert not {name for name in names(data_dir) if name.startswith(".")}


async def test_data_of_another_version_is_not_touched(base: Path) -> None:
    async with embedded_postgres(base / "data", version=16) as pg:
        assert re.match(r"16\.", str(await query(pg, "SHOW server_version")))
        with pytest.raises(
            EmbeddedError, match="contains data of PostgreSQL 16, but 18 is needed: use another folder"
        ):
            async with embedded_postgres(base / "data"):
                pytest.fail("it can't have started")
    with pytest.raises(EmbeddedError, match="contains data of PostgreSQL 16, but 18 is needed"):
        async with embedded_postgres(base / "data"):
            pytest.fail("it can't have started")


async def test_the_password_of_other_data_is_reported(data_dir: Path) -> None:
    async with embedded_postgres(data_dir):
        right = (data_dir / "password").read_text(encoding="ascii")
    (data_dir / "password").write_text("another", encoding="ascii")
    try:
        with pytest.raises(EmbeddedError, match="does not match its data"):
            async with embedded_postgres(data_dir):
                pytest.fail("it can't have been let in")
    finally:
        (data_dir / "password").write_text(right, encoding="ascii")


async def test_a_lost_password_is_an_error_that_says_what_to_do(data_dir: Path) -> None:
    async with embedded_postgres(data_dir):
        pass
    kept = data_dir / "kept"
    (data_dir / "password").rename(kept)
    try:
        with pytest.raises(EmbeddedError, match="`password` is missing"):
            async with embedded_postgres(data_dir):
                pytest.fail("it can't have started")
    finally:
        kept.rename(data_dir / "password")


@as_root
async def test_a_folder_that_postgres_cannot_reach_is_named(base: Path) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedError, match=f"because of {closed}: choose a folder .* chmod o\\+x"):
        async with embedded_postgres(closed / "data"):
            pytest.fail("it can't have started")
    assert mode(closed) == 0o700


@as_root
async def test_unreachable_programs_are_copied_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    programs = await postgres_binaries.find_programs(base, version=18, owner=None)
    package = programs.parents[1]
    heavy = shutil.ignore_patterns("include", "*.a", "pginstall")
    for source in (package, package.with_name(f"{package.name}.libs")):
        await asyncio.to_thread(shutil.copytree, source, closed / source.name, ignore=heavy)
    monkeypatch.syspath_prepend(str(closed))
    made = []
    for _ in range(2):
        async with embedded_postgres(base / "data") as pg:
            assert pg.bin_dir.is_relative_to(base / "data")
            assert await query(pg, "SELECT 1") == 1
            made.append((pg.bin_dir, pg.bin_dir.stat().st_ino))
    assert made[0] == made[1]
    assert mode(closed) == 0o700
