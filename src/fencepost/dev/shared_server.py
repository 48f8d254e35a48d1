"""Share an embedded server among processes: the first user starts it, the last one stops it.

Inside `async with shared_server(…)` the server answers. Processes and tasks that name the same folder share one server;
when the last user leaves or dies, the supervisor process (see `supervisor`) stops it. The last user waits for that, 4 s at
most. A process made by `fork` without `exec` counts as a user too.

It needs a `Recipe`: how to prepare and start one kind of server, and how to see that it answers.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fencepost.dev import supervisor
from fencepost.dev.paths import make_folder
from fencepost.dev.supervisor import (
    LOG_FILE,
    SERVER_LOCK,
    START_LOCK,
    STATUS_FILE,
    SUPERVISOR_LOCK,
    SUPERVISOR_PID_KEY,
    USERS_LOCK,
    try_lock,
)
from fencepost.errors import EmbeddedError

_POLL_S = 0.02
_START_TRIES = 5
_START_WAIT_S = 60.0  # also what a crashed PostgreSQL may need to replay its log
_QUEUE_WAIT_S = 120.0
_CLOSE_WAIT_S = 4.0
_SPAWN_WAIT_S = 10.0
_LOG_TAIL_CHARS = 600


@dataclass(frozen=True, slots=True)
class Launch:
    command: Sequence[str]
    facts: Mapping[str, Any]  # what a later user needs to join; JSON, no secrets
    owner: tuple[int, int] | None = None  # uid and gid; None is the current user


@dataclass(frozen=True, slots=True)
class Status:
    supervisor_pid: int
    server_pid: int
    starts: int
    facts: Mapping[str, Any]


class Recipe(Protocol):
    name: str
    folder_mode: int
    stop_signals: Sequence[str]  # each is tried for `grace_s`, then SIGKILL
    grace_s: float

    async def prepare(self, *, port: int) -> Launch:
        """Prepare the server's files. The caller holds the start lock and no server runs in the folder."""

    async def ready(self, status: Status) -> bool:
        """Return whether the server that the status describes answers."""


class SharedServer:
    """A handle of a running server, valid inside its `async with`."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self._folder = folder
        self._recipe = recipe

    @property
    def status(self) -> Status:
        status = _read_status(self._folder) if _supervisor_runs(self._folder) else None
        if status is None:
            raise EmbeddedError(f"{self._recipe.name} in {self._folder} has ended; {_log_tail(self._folder)}")
        return status

    async def restart(self, signal_name: str) -> None:
        """Stop the server with this signal and start it again at the same port, for all its users."""
        async with held_lock(self._folder / START_LOCK, fcntl.LOCK_EX, wait_s=_QUEUE_WAIT_S):
            before = self.status.starts
            marker = self._folder / supervisor.RESTART_FILE
            new = marker.with_suffix(".new")
            new.write_text(signal_name, encoding="ascii")
            new.rename(marker)
            if await _wait_until_ready(self._folder, self._recipe, starts_min=before + 1) is None:
                raise EmbeddedError(f"{self._recipe.name} did not start again; {_log_tail(self._folder)}")


@asynccontextmanager
async def shared_server(folder: Path, recipe: Recipe) -> AsyncIterator[SharedServer]:
    async with _user_of(folder, recipe):
        with explain_permission_errors(folder, name=recipe.name):
            async with held_lock(folder / START_LOCK, fcntl.LOCK_EX, wait_s=_QUEUE_WAIT_S):
                await _join_or_start(folder, recipe)
        yield SharedServer(folder, recipe)


@asynccontextmanager
async def _user_of(folder: Path, recipe: Recipe) -> AsyncIterator[None]:
    with explain_permission_errors(folder, name=recipe.name):
        make_folder(folder, mode=recipe.folder_mode)
        # A supervisor that is stopping the server holds this lock until the server is gone.
        users = await _acquire_lock(folder / USERS_LOCK, fcntl.LOCK_SH, wait_s=_QUEUE_WAIT_S)
    try:
        yield
    finally:
        os.close(users)
        await _wait_until_stopped_or_shared(folder)


async def _join_or_start(folder: Path, recipe: Recipe) -> None:
    for _ in range(_START_TRIES):
        port = None
        if not _supervisor_runs(folder):
            await _stop_orphan(folder, recipe)
            port = _free_port()
            await _spawn_supervisor(folder, recipe, await recipe.prepare(port=port))
        if await _wait_until_ready(folder, recipe) is not None:
            return
        # The server that we wanted to join has just exited, or another program took the port first: try again.
        if port is not None and _is_free(port):
            raise EmbeddedError(f"{recipe.name} in {folder} did not start; {_log_tail(folder)}")
    raise EmbeddedError(
        f"{recipe.name} in {folder} did not start after {_START_TRIES} tries; {_log_tail(folder)}"
    )


async def _wait_until_ready(folder: Path, recipe: Recipe, *, starts_min: int = 1) -> Status | None:
    """Wait until the server answers; return None if the supervisor ended before."""
    deadline = time.monotonic() + _START_WAIT_S
    while time.monotonic() < deadline:
        if not _supervisor_runs(folder):
            return None
        status = _read_status(folder)
        if status is not None and status.starts >= starts_min and await recipe.ready(status):
            return status
        await asyncio.sleep(_POLL_S)
    raise EmbeddedError(
        f"{recipe.name} in {folder} did not answer within {_START_WAIT_S:.0f} s; {_log_tail(folder)}"
    )


async def _spawn_supervisor(folder: Path, recipe: Recipe, launch: Launch) -> None:
    spec: supervisor.Spec = {
        "command": list(launch.command),
        "stop_signals": list(recipe.stop_signals),
        "grace_s": recipe.grace_s,
        "owner": None if launch.owner is None else list(launch.owner),
        "facts": dict(launch.facts),
    }
    try:
        await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-I", "-S", supervisor.__file__, str(folder), json.dumps(spec)],
            env={"PATH": os.defpath, "LC_ALL": "C"},  # it lives long and needs no secrets
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=_SPAWN_WAIT_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise EmbeddedError(f"the supervisor in {folder} did not start; {_log_tail(folder)}") from error


async def _stop_orphan(folder: Path, recipe: Recipe) -> None:
    """Stop a server whose supervisor was killed: it may still be shutting down, or still be running."""
    status = _read_status(folder)
    for name in (*recipe.stop_signals, "SIGKILL"):
        if _is_unlocked(folder / SERVER_LOCK):
            return
        if status is not None:
            try:
                os.kill(status.server_pid, signal.Signals[name])
            except ProcessLookupError:
                status = None  # only its children are left; they exit by themselves
        deadline = time.monotonic() + recipe.grace_s
        while time.monotonic() < deadline:
            if _is_unlocked(folder / SERVER_LOCK):
                return
            await asyncio.sleep(_POLL_S)
    raise EmbeddedError(
        f"an earlier {recipe.name} in {folder} does not stop; stop its processes and try again"
    )


async def _wait_until_stopped_or_shared(folder: Path) -> None:
    deadline = time.monotonic() + _CLOSE_WAIT_S
    while time.monotonic() < deadline and _supervisor_runs(folder):
        if not _is_unlocked(folder / USERS_LOCK) and _is_unlocked(folder / USERS_LOCK, fcntl.LOCK_SH):
            return  # held, but not exclusively: by other users, not by the supervisor
        await asyncio.sleep(_POLL_S)


async def _acquire_lock(path: Path, operation: int, *, wait_s: float) -> int:
    deadline = time.monotonic() + wait_s
    while (descriptor := try_lock(path, operation)) is None:
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"another program has held {path} for {wait_s:.0f} s; stop the programs that use it"
            )
        await asyncio.sleep(_POLL_S)
    return descriptor


@asynccontextmanager
async def held_lock(path: Path, operation: int, *, wait_s: float) -> AsyncIterator[None]:
    descriptor = await _acquire_lock(path, operation, wait_s=wait_s)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def explain_permission_errors(folder: Path, *, name: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise EmbeddedError(
            f"{name} needs access to {error.filename or folder}, which belongs to another user: "
            "run as that user, or choose another folder"
        ) from error
    except (ConnectionError, TimeoutError):
        raise  # these do not concern the disk
    except OSError as error:
        raise EmbeddedError(
            f"{name} can't use {error.filename or folder}: {error.strerror or error};"
            " choose another folder with embedded.data_dir or embedded.cache_dir"
        ) from error


def _is_unlocked(path: Path, operation: int = fcntl.LOCK_EX) -> bool:
    descriptor = try_lock(path, operation)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _supervisor_runs(folder: Path) -> bool:
    return not _is_unlocked(folder / SUPERVISOR_LOCK, fcntl.LOCK_SH)


def _read_status(folder: Path) -> Status | None:
    try:
        stored = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return Status(supervisor_pid=stored.pop(SUPERVISOR_PID_KEY), **stored)


def _log_tail(folder: Path) -> str:
    try:
        text = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "there is no log"
    lines = " | ".join(line.strip() for line in text.splitlines() if line.strip())
    return f"the end of {folder / LOG_FILE}: {lines[-_LOG_TAIL_CHARS:]}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
