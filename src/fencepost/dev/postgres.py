"""Run an embedded PostgreSQL on this machine, for `fencepost up` and for tests.

`embedded_postgres` yields a server that answers, with fsync on and with the database and superuser `fencepost`. Programs
that name the same folder share it, and it ends with the last of them (`shared_server`). It listens at a random port of
127.0.0.1 and, if the path is short enough, at a Unix socket; both require the password, which is random and in a file
that only the user can read. A second user's `options` do not change a running server.

    DATA_DIR/cluster         the data, created completely in another folder and renamed into place
    DATA_DIR/password        0600
    DATA_DIR/run             the Unix socket, 0700
    DATA_DIR/postgresql-*    a copy of the programs, only if PostgreSQL's user can't access the package
    DATA_DIR/server.log …    see `supervisor`
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import quote

import asyncpg

from fencepost.dev.paths import default_data_dir
from fencepost.dev.postgres_binaries import Owner, Version, find_programs, owner_of, require_reachable, run_as
from fencepost.dev.shared_server import Launch, SharedServer, Status, shared_server
from fencepost.errors import EmbeddedError

__all__ = ["EmbeddedPostgres", "default_data_dir", "embedded_postgres"]

_NAME = "fencepost"  # of the superuser and of the database
_NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
_OPTIONS = {"max_connections": "200", "shared_buffers": "128MB", "log_checkpoints": "off", "TimeZone": "UTC"}
_MAX_SOCKET_PATH_BYTES = 100  # the kernel's own bound is 104 to 108
_TEMPORARY = ".initdb-"
_CONNECT_WAIT_S = 5.0
_RESTART_SIGNALS = {"fast": "SIGINT", "immediate": "SIGQUIT"}


@dataclass(frozen=True, slots=True)
class EmbeddedPostgres:
    dsn: str = field(repr=False)
    tcp_dsn: str = field(repr=False)
    port: int
    bin_dir: Path
    data_dir: Path
    server: SharedServer = field(repr=False)

    @property
    def pid(self) -> int:
        """Return the pid of the postmaster; it changes with a restart."""
        return self.server.status.server_pid

    async def restart(self, mode: Literal["fast", "immediate"]) -> None:
        """Restart at the same port; `immediate` is a crash: no checkpoint, and the log is replayed at the start."""
        await self.server.restart(_RESTART_SIGNALS[mode])


@asynccontextmanager
async def embedded_postgres(
    data_dir: Path, *, version: Version = 18, options: Mapping[str, str] = _NO_OPTIONS
) -> AsyncIterator[EmbeddedPostgres]:
    recipe = _Recipe(data_dir, version=version, options=options)
    async with shared_server(recipe.data_dir, recipe) as server:
        facts = server.status.facts
        if facts["version"] != version:
            raise _version_error(recipe.data_dir, found=str(facts["version"]), wanted=version)
        yield EmbeddedPostgres(
            dsn=recipe.dsn(facts),
            tcp_dsn=recipe.dsn({**facts, "socket_dir": None}),
            port=int(facts["port"]),
            bin_dir=Path(facts["bin_dir"]),
            data_dir=recipe.data_dir,
            server=server,
        )


class _Recipe:
    name = "PostgreSQL"
    stop_signals: Sequence[str] = ("SIGINT", "SIGQUIT")  # fast shutdown, then immediate
    grace_s = 3.0

    def __init__(self, data_dir: Path, *, version: Version, options: Mapping[str, str]) -> None:
        self.data_dir = data_dir.absolute()
        self.folder_mode = (
            0o711 if os.geteuid() == 0 else 0o700
        )  # PostgreSQL passes through it as another user
        self._cluster = self.data_dir / "cluster"
        self._version = version
        self._options = options

    async def prepare(self, *, port: int) -> Launch:
        owner = owner_of(self._cluster)
        await require_reachable(self.data_dir, owner)
        bin_dir = await find_programs(self.data_dir, version=self._version, owner=owner)
        if self._cluster.exists():
            self._require_usable()
        else:
            await _make_cluster(self._cluster, bin_dir=bin_dir, owner=owner)
        _forget_dead_postmaster(self._cluster / "postmaster.pid")
        socket_dir = _make_socket_dir(self.data_dir / "run", port=port, owner=owner)
        fixed = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": f'"{socket_dir}"' if socket_dir else "",
        }
        settings = {**_OPTIONS, **self._options, **fixed}
        command = [str(bin_dir / "postgres"), "-D", str(self._cluster)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return Launch(
            command=[*command, "-p", str(port)],
            facts={
                "port": port,
                "socket_dir": None if socket_dir is None else str(socket_dir),
                "bin_dir": str(bin_dir),
                "version": self._version,
            },
            owner=None if owner is None else (owner.uid, owner.gid),
        )

    async def ready(self, status: Status) -> bool:
        """Check the eighth line of the pid file, and connect: the file may be a leftover of a crash.

        A server that accepts our password is ours.
        """
        lines = _read_lines(self._cluster / "postmaster.pid")
        if lines[:1] != [str(status.server_pid)] or "".join(lines[7:8]).strip() != "ready":
            return False
        try:
            connection = await asyncpg.connect(self.dsn(status.facts), timeout=_CONNECT_WAIT_S)
        except asyncpg.InvalidPasswordError as error:
            raise EmbeddedError(
                f"the password in {self.data_dir} does not match its data: restore a copy of the file"
            ) from error
        except asyncpg.TooManyConnectionsError:
            return True
        except (
            OSError,
            asyncpg.PostgresConnectionError,
            asyncpg.CannotConnectNowError,
        ):  # a time-out is an OSError
            return False
        await connection.close(timeout=_CONNECT_WAIT_S)
        return True

    def dsn(self, facts: Mapping[str, Any]) -> str:
        password = (self.data_dir / "password").read_text(encoding="ascii")
        user, port, socket_dir = f"{_NAME}:{password}", facts["port"], facts["socket_dir"]
        if socket_dir is None:
            return f"postgresql://{user}@127.0.0.1:{port}/{_NAME}"
        return f"postgresql://{user}@/{_NAME}?host={quote(socket_dir, safe='')}&port={port}"

    def _require_usable(self) -> None:
        found = (self._cluster / "PG_VERSION").read_text(encoding="ascii").strip()
        if found != str(self._version):
            raise _version_error(self.data_dir, found=found, wanted=self._version)
        if not (self.data_dir / "password").exists():
            raise EmbeddedError(
                f"the file `password` is missing in {self.data_dir}: restore a copy of it, or move the folder away"
            )


def _version_error(data_dir: Path, *, found: str, wanted: Version) -> EmbeddedError:
    return EmbeddedError(
        f"{data_dir} contains data of PostgreSQL {found}, but {wanted} is needed: use another folder; to keep the data, "
        f"dump it with pg_dump of version {found} and load it there"
    )


async def _make_cluster(cluster: Path, *, bin_dir: Path, owner: Owner | None) -> None:
    """Create the cluster in a temporary folder and rename it: a crash half-way leaves nothing that looks like data."""
    data_dir = cluster.parent
    for stale in data_dir.glob(_TEMPORARY + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    password = _password(data_dir / "password")
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=data_dir))
    try:
        # initdb reads the password as the user that it runs as, which can't read this user's file.
        _write_private(temporary / "password", password)
        if owner is not None:
            os.chown(temporary / "password", owner.uid, owner.gid)
            os.chown(temporary, owner.uid, owner.gid)
        new = temporary / cluster.name
        # PostgreSQL's default number of SCRAM iterations: drivers reject a server that requests fewer.
        make = f"--username={_NAME} --auth=scram-sha-256 --encoding=UTF8 --locale=C".split()
        commands = (
            ([str(bin_dir / "initdb"), f"--pgdata={new}", f"--pwfile={temporary / 'password'}", *make], ""),
            (
                [str(bin_dir / "postgres"), "--single", "-D", str(new), "postgres"],
                f"CREATE DATABASE {_NAME}\n",
            ),
        )
        for command, stdin in commands:
            ran = await run_as(owner, command, cwd=data_dir, stdin=stdin)
            if ran.returncode != 0:
                raise EmbeddedError(
                    f"{Path(command[0]).name} failed in {data_dir}: {ran.stderr.strip()[-600:]}"
                )
        new.rename(cluster)
        _sync_folder(data_dir)
    finally:
        # After a cancellation initdb may still write here; the next try removes what is left.
        shutil.rmtree(temporary, ignore_errors=True)


def _password(path: Path) -> str:
    """Return the stored password, also that of an interrupted start, or store a new one."""
    if not path.exists():
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        _write_private(new, secrets.token_urlsafe(24))
        new.rename(path)
    return path.read_text(encoding="ascii")


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_socket_dir(path: Path, *, port: int, owner: Owner | None) -> Path | None:
    if len(os.fsencode(path / f".s.PGSQL.{port}")) >= _MAX_SOCKET_PATH_BYTES or '"' in str(path):
        return None
    if path.exists():
        shutil.rmtree(path)  # left by a killed server; no server runs here now
    path.mkdir(mode=0o700)
    if owner is not None:
        os.chown(path, owner.uid, owner.gid)
    return path


def _forget_dead_postmaster(pid_file: Path) -> None:
    """Remove the pid file of a crashed server.

    PostgreSQL does not start if the pid in that file belongs to another program now, or if the file is empty. No server of
    ours runs here, so the file is kept only if a postmaster works in its folder.
    """
    lines = _read_lines(pid_file)
    if lines and lines[0].isdigit() and _runs_in(int(lines[0]), pid_file.parent):
        return
    pid_file.unlink(missing_ok=True)


def _runs_in(pid: int, folder: Path) -> bool:
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or Path(f"/proc/{pid}/cwd").samefile(folder)
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        return False  # another user's program, and only the owner's PostgreSQL opens this data


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
