"""The embedded PostgreSQL: durable, closed to strangers, and startable again whatever happened to it."""

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

from fencepost.dev import postgres_programs
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.errors import EmbeddedError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")


@pytest.fixture
def base() -> Iterator[Path]:
    """As root, PostgreSQL runs as somebody else, who must be able to pass through: pytest's own folder is closed."""
    path = Path(tempfile.mkdtemp(prefix="fencepost-pg-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """One for the tests that leave it as good as they found it."""
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


async def test_durable_settings_on_a_database_and_user_of_its_own(data_dir: Path) -> None:
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


async def test_both_addresses_ask_for_the_password(data_dir: Path) -> None:
    async with embedded_postgres(data_dir) as pg:
        assert pg.dsn != pg.tcp_dsn
        for dsn in (pg.dsn, pg.tcp_dsn):
            connection = await asyncpg.connect(dsn)
            await connection.close()
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(dsn, password="wrong")
        password = (data_dir / "password").read_text(encoding="ascii")
        assert len(password) >= 24
        assert password not in repr(pg)
        assert password not in (data_dir / "server.json").read_text(encoding="utf-8")
        assert (mode(data_dir / "password"), mode(data_dir / "run")) == (0o600, 0o700)


async def test_a_path_too_long_for_a_socket_means_tcp(base: Path) -> None:
    async with embedded_postgres(base / ("long" * 25)) as pg:
        assert pg.dsn == pg.tcp_dsn
        assert await query(pg, "SELECT 1") == 1


async def test_committed_rows_outlive_a_stop_and_a_kill_of_everything(data_dir: Path) -> None:
    async with embedded_postgres(data_dir) as pg:
        await query(pg, "CREATE TABLE IF NOT EXISTS survivor (n int)")
        await query(pg, "INSERT INTO survivor VALUES (1)")
    async with embedded_postgres(data_dir) as pg:
        await query(pg, "INSERT INTO survivor VALUES (2)")
        for pid in (pg.server.status.guardian_pid, pg.pid):
            os.kill(pid, signal.SIGKILL)
        async with embedded_postgres(data_dir) as again:
            assert await query(again, "SELECT sum(n) FROM survivor") == 3


async def test_restart_as_after_a_crash_keeps_rows_and_port_and_breaks_connections(data_dir: Path) -> None:
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
def stranger(data_dir: Path) -> Iterator[int]:
    """The pid of a program that is no PostgreSQL, of the same user as the data."""
    owner = postgres_programs.owner_of(data_dir / "cluster")
    process = subprocess.Popen(["sleep", "60"], user=None if owner is None else owner.uid)
    yield process.pid
    process.kill()
    process.wait(timeout=5)


@pytest.mark.parametrize("left_behind", ["", "{pid}\n{cluster}\n"])
async def test_pid_file_of_a_crash_does_not_stop_the_next_start(
    data_dir: Path, stranger: int, left_behind: str
) -> None:
    async with embedded_postgres(data_dir):
        pass
    # A pid that lives again, as after a reboot or in a new container: PostgreSQL alone would refuse for ever.
    cluster = data_dir / "cluster"
    (cluster / "postmaster.pid").write_text(
        left_behind.format(pid=stranger, cluster=cluster), encoding="utf-8"
    )
    async with embedded_postgres(data_dir) as pg:
        assert await query(pg, "SELECT 1") == 1


async def test_start_that_was_broken_off_leaves_nothing_half_made(base: Path) -> None:
    data_dir = base / "data"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.4), embedded_postgres(data_dir):
            pytest.fail("no cluster is made as fast as that")
    assert "cluster" not in names(data_dir)
    async with embedded_postgres(data_dir) as pg:
        assert await query(pg, "SELECT 1") == 1
        assert not {name for name in names(data_dir) if name.startswith(".")}


async def test_data_of_another_version_is_left_alone(base: Path) -> None:
    async with embedded_postgres(base / "data", version=16) as pg:
        assert re.match(r"16\.", str(await query(pg, "SHOW server_version")))
        with pytest.raises(
            EmbeddedError, match="holds data of PostgreSQL 16, and 18 is wanted: name another folder"
        ):
            async with embedded_postgres(base / "data"):
                pytest.fail("it can't have started")
    with pytest.raises(EmbeddedError, match="holds data of PostgreSQL 16, and 18 is wanted"):
        async with embedded_postgres(base / "data"):
            pytest.fail("it can't have started")


async def test_password_of_other_data_is_an_error_that_says_so(data_dir: Path) -> None:
    async with embedded_postgres(data_dir):
        right = (data_dir / "password").read_text(encoding="ascii")
    (data_dir / "password").write_text("another", encoding="ascii")
    try:
        with pytest.raises(EmbeddedError, match="is not the one of its data"):
            async with embedded_postgres(data_dir):
                pytest.fail("it can't have been let in")
    finally:
        (data_dir / "password").write_text(right, encoding="ascii")


async def test_lost_password_is_an_error_that_says_what_to_do(data_dir: Path) -> None:
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
async def test_folder_that_postgres_cannot_reach_is_an_error_that_names_it(base: Path) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedError, match=f"because of {closed}: choose a folder .* chmod o\\+x"):
        async with embedded_postgres(closed / "data"):
            pytest.fail("it can't have started")
    assert mode(closed) == 0o700


@as_root
async def test_programs_out_of_reach_are_copied_once(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    programs = await postgres_programs.find_programs(base, version=18, owner=None)
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
