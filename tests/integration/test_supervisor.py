"""Embedded servers run exactly as long as they have a user: shown with real processes that exit in every way."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fencepost.dev import supervisor
from fencepost.dev.shared_server import Launch, Status, shared_server
from fencepost.errors import EmbeddedError

GONE_WITHIN_S = 30.0

# A program that uses a server until its standard input ends; it prints the connection in one line.
USER = """
import asyncio, json, sys
from pathlib import Path

async def server(kind, folder):
    if kind == "postgres":
        from fencepost.dev.postgres import embedded_postgres
        return embedded_postgres(folder)
    from fencepost.dev.anvil import anvil_node, find_anvil
    from fencepost.dev.paths import default_cache_dir
    binary = await find_anvil(default_cache_dir(), report=lambda sentence: None)
    return anvil_node(binary=binary, run_dir=folder)

async def main(kind, folder):
    async with await server(kind, folder) as running:
        print(json.dumps({"pid": running.pid, "port": running.port}), flush=True)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
        await ended.wait()

asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
"""


class User:
    def __init__(self, kind: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, kind, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def server(self) -> dict[str, int]:
        assert self.process.stdout is not None
        said: dict[str, int] = json.loads(self.process.stdout.readline())
        return said

    def end(self, how: signal.Signals | None) -> None:
        """End the process by a signal, or let it exit in order with None."""
        assert self.process.stdin is not None
        if how is None:
            self.process.stdin.close()
        else:
            self.process.send_signal(how)
        self.process.wait(timeout=10)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """Make a folder that another user can traverse: PostgreSQL does not run as root, and pytest's folder is closed."""
    path = Path(tempfile.mkdtemp(prefix="fencepost-supervisor-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def users() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(users: ExitStack, kind: str, folder: Path) -> User:
    user = User(kind, folder)
    users.callback(user.close)
    return user


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # a zombie only waits for its parent


def gone_within_s(folder: Path, *pids: int) -> float:
    """Return how long it took until no process of the server or its supervisor was left."""
    start_s = time.monotonic()
    while any(map(alive, pids)) or not unlocked(folder / supervisor.SERVER_LOCK):
        assert time.monotonic() - start_s < GONE_WITHIN_S, "the server is still there"
        time.sleep(0.01)
    return time.monotonic() - start_s


def unlocked(path: Path) -> bool:
    descriptor = supervisor.try_lock(path, fcntl.LOCK_EX)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def supervisor_pid(folder: Path) -> int:
    status: dict[str, Any] = json.loads((folder / supervisor.STATUS_FILE).read_text(encoding="utf-8"))
    return int(status["guardian_pid"])


@pytest.mark.parametrize("kind", ["postgres", "anvil"])
@pytest.mark.parametrize("how", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_server_stops_with_its_only_user(
    base: Path, users: ExitStack, kind: str, how: signal.Signals | None
) -> None:
    folder = base / kind
    user = start(users, kind, folder)
    pid = user.server()["pid"]
    assert alive(pid)
    user.end(how)
    if how is None:
        assert not alive(pid)  # an orderly exit waits for it
    gone_within_s(folder, pid)


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems the next user stops the orphan")
@pytest.mark.parametrize("kind", ["postgres", "anvil"])
def test_a_killed_supervisor_stops_the_server(base: Path, users: ExitStack, kind: str) -> None:
    folder = base / kind
    user = start(users, kind, folder)
    pid = user.server()["pid"]
    os.kill(supervisor_pid(folder), signal.SIGKILL)
    gone_within_s(folder, pid)
    user.end(None)


@pytest.mark.parametrize("kind", ["postgres", "anvil"])
def test_a_server_starts_again_after_every_process_was_killed(
    base: Path, users: ExitStack, kind: str
) -> None:
    folder = base / kind
    user = start(users, kind, folder)
    pid = user.server()["pid"]
    os.kill(supervisor_pid(folder), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    user.end(signal.SIGKILL)
    again = start(users, kind, folder)
    new_pid = again.server()["pid"]
    assert alive(new_pid)
    again.end(None)
    gone_within_s(folder, pid, new_pid)


@pytest.mark.parametrize("kind", ["postgres", "anvil"])
def test_processes_that_start_together_share_one_server(base: Path, users: ExitStack, kind: str) -> None:
    folder = base / f"{kind}-race"  # a fresh folder, so that the processes also race to create it
    crowd = [start(users, kind, folder) for _ in range(3)]
    servers = [user.server() for user in crowd]
    assert servers[1:] == servers[:-1]
    crowd[0].end(signal.SIGKILL)
    crowd[1].end(None)
    assert alive(servers[2]["pid"]), "one user is left"
    crowd[2].end(None)
    assert not alive(servers[2]["pid"])


class Script:
    """A server made of a few lines of Python; it is ready once it has written the file `up`."""

    name = "the script"
    folder_mode = 0o700
    stop_signals: Sequence[str] = ("SIGINT",)
    grace_s = 0.3

    def __init__(self, folder: Path, body: str) -> None:
        self._up = folder / "up"
        self._program = f"import signal, time, sys, os, pathlib\n{body}\n"

    async def prepare(self, *, port: int) -> Launch:
        self._up.unlink(missing_ok=True)
        return Launch(command=[sys.executable, "-I", "-S", "-c", self._program], facts={"port": port})

    async def ready(self, status: Status) -> bool:
        return self._up.exists() and self._up.read_text(encoding="ascii") == str(status.server_pid)


UP = "pathlib.Path('up').write_text(str(os.getpid()))\n"


async def test_short_lived_users_always_find_a_running_server(tmp_path: Path) -> None:
    script = Script(tmp_path, UP + "time.sleep(60)")
    pids = set()

    async def visit_often(pause_s: float) -> None:
        for _ in range(6):
            async with shared_server(tmp_path, script) as server:
                pids.add(server.status.server_pid)
                assert alive(server.status.server_pid)
            await asyncio.sleep(pause_s)  # some leave and return while the supervisor stops the server

    async with asyncio.TaskGroup() as group:
        for pause_s in (0.0, 0.05, 0.11):
            group.create_task(visit_often(pause_s))
    assert not any(map(alive, pids))


async def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = Script(tmp_path, "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + UP + "time.sleep(60)")
    async with shared_server(tmp_path, script) as server:
        pid = server.status.server_pid
    assert not alive(pid)
    assert "still there 0.3 s after SIGINT" in (tmp_path / supervisor.LOG_FILE).read_text(encoding="utf-8")


async def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    body = (
        "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', int(sys.argv[1])))\n"
        + UP
        + "time.sleep(60)"
    )

    class Robbed(Script):
        async def prepare(self, *, port: int) -> Launch:
            if not robbed:
                robbed.append(port)
                thief.bind(("127.0.0.1", port))
            launch = await super().prepare(port=port)
            return Launch(command=[*launch.command, str(port)], facts=launch.facts)

    robbed: list[int] = []
    with socket.socket() as thief:
        async with shared_server(tmp_path, Robbed(tmp_path, body)) as server:
            assert server.status.facts["port"] not in robbed


async def test_a_server_that_fails_to_start_reports_why(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"the script in .* did not start; .*no such planet"):
        async with shared_server(tmp_path, Script(tmp_path, "sys.exit('no such planet')")):
            pytest.fail("it can't have started")
    assert unlocked(tmp_path / supervisor.SERVER_LOCK)


async def test_a_server_that_exits_is_noticed_and_can_be_started_again(tmp_path: Path) -> None:
    script = Script(tmp_path, UP + "time.sleep(60)")
    async with shared_server(tmp_path, script) as server:
        os.kill(server.status.server_pid, signal.SIGKILL)
        await asyncio.to_thread(gone_within_s, tmp_path)
        with pytest.raises(EmbeddedError, match=r"has ended; .*with status -9"):
            _ = server.status
        async with shared_server(tmp_path, script) as again:
            assert alive(again.status.server_pid)


async def test_the_next_user_stops_an_orphaned_server(tmp_path: Path) -> None:
    forget_parent = "import ctypes\nctypes.CDLL(None).prctl(1, 0)\n" if sys.platform == "linux" else ""
    script = Script(tmp_path, forget_parent + UP + "time.sleep(60)")
    async with shared_server(tmp_path, script) as server:
        orphan = server.status
        os.kill(orphan.supervisor_pid, signal.SIGKILL)
    assert alive(orphan.server_pid)
    async with shared_server(tmp_path, script) as server:
        assert not alive(orphan.server_pid)
        assert alive(server.status.server_pid)


@pytest.mark.skipif(sys.platform != "linux", reason="the environment of a process is read from /proc")
async def test_supervisor_and_server_do_not_inherit_our_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_KEY_SECRET", "0x" + "46" * 32)
    async with shared_server(tmp_path, Script(tmp_path, UP + "time.sleep(60)")) as server:
        for pid in (server.status.supervisor_pid, server.status.server_pid):
            environ = await asyncio.to_thread(Path(f"/proc/{pid}/environ").read_bytes)
            assert environ
            assert b"FENCEPOST" not in environ


async def test_a_supervisor_that_gets_sigterm_stops_the_server(tmp_path: Path) -> None:
    async with shared_server(tmp_path, Script(tmp_path, UP + "time.sleep(60)")) as server:
        status = server.status
        os.kill(status.supervisor_pid, signal.SIGTERM)
        await asyncio.to_thread(gone_within_s, tmp_path, status.server_pid, status.supervisor_pid)


def log_bytes(path: Path) -> int:
    return path.stat().st_size


async def test_the_log_is_bounded(tmp_path: Path) -> None:
    body = f"""
for _ in range(3):
    sys.stdout.write(("x" * 999 + chr(10)) * {supervisor.MAX_LOG_BYTES // 1000 + 9})
    sys.stdout.flush()
    while os.fstat(1).st_size > {supervisor.MAX_LOG_BYTES}:
        time.sleep(0.01)
{UP}time.sleep(60)"""
    async with shared_server(tmp_path, Script(tmp_path, body)):
        sizes_bytes = [
            log_bytes(tmp_path / name) for name in (supervisor.LOG_FILE, supervisor.LOG_FILE + ".1")
        ]
        assert sizes_bytes[0] <= supervisor.MAX_LOG_BYTES
        assert supervisor.MAX_LOG_BYTES < sizes_bytes[1] < 2 * supervisor.MAX_LOG_BYTES


async def test_a_restart_keeps_the_port_and_changes_the_pid(tmp_path: Path) -> None:
    async with shared_server(tmp_path, Script(tmp_path, UP + "time.sleep(60)")) as server:
        before = server.status
        await server.restart("SIGKILL")
        after = server.status
        assert (after.facts, after.supervisor_pid) == (before.facts, before.supervisor_pid)
        assert after.server_pid != before.server_pid
        assert not alive(before.server_pid)


@pytest.fixture
def unprivileged_user(tmp_path: Path) -> Iterator[None]:
    """Act as a user other than root, which may open everything; the folder belongs to another user."""
    assert tmp_path.exists()
    before = os.geteuid()
    if before == 0:
        os.seteuid(pwd.getpwnam("nobody").pw_uid)  # plain-words: allow
    yield
    os.seteuid(before)


@pytest.mark.usefixtures("unprivileged_user")
async def test_a_folder_of_another_user_is_reported(tmp_path: Path) -> None:
    closed = tmp_path
    if os.getuid() == os.geteuid():
        closed.chmod(0o500)
    with pytest.raises(EmbeddedError, match="belongs to another user"):
        async with shared_server(closed, Script(closed, UP)):
            pytest.fail("it can't have started")
