"""Use an embedded server together with whoever else uses it; the first one starts it, the last one ends it.

`shared_server` promises: inside the `async with` the server answers; several processes (and tasks) that name the same
folder share one server; when the last one leaves or dies, its guardian (see `guardian`) stops it. Leaving waits until
the server is gone if nobody else is there, 4 s at most. A process made by `fork` without `exec` counts as a user too.

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

from fencepost.dev import guardian
from fencepost.dev.guardian import (
    GUARDIAN_LOCK,
    LOG_FILE,
    SERVER_LOCK,
    START_LOCK,
    STATUS_FILE,
    USERS_LOCK,
    try_lock,
)
from fencepost.dev.paths import make_folder
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
    facts: Mapping[str, Any]  # what a later user must know to join; JSON, no secrets
    owner: tuple[int, int] | None = None  # uid and gid, if not our own


@dataclass(frozen=True, slots=True)
class Status:
    guardian_pid: int
    server_pid: int
    starts: int
    facts: Mapping[str, Any]


class Recipe(Protocol):
    name: str
    folder_mode: int
    stop_signals: Sequence[str]  # each is tried for `grace_s`, then SIGKILL
    grace_s: float

    async def prepare(self, *, port: int) -> Launch:
        """Make ready what the server needs. Nothing runs in the folder now, and nobody else starts anything in it."""

    async def ready(self, status: Status) -> bool:
        """Whether the very server that the status names answers."""


class SharedServer:
    """A handle that is good inside its `async with`."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self._folder = folder
        self._recipe = recipe

    @property
    def status(self) -> Status:
        status = _read_status(self._folder) if _guardian_lives(self._folder) else None
        if status is None:
            raise EmbeddedError(f"{self._recipe.name} in {self._folder} has ended; {_log_tail(self._folder)}")
        return status

    async def restart(self, signal_name: str) -> None:
        """End the server with this signal and start it again, at the same port, for everyone who uses it."""
        async with held_lock(self._folder / START_LOCK, fcntl.LOCK_EX, wait_s=_QUEUE_WAIT_S):
            before = self.status.starts
            marker = self._folder / guardian.RESTART_FILE
            new = marker.with_suffix(".new")
            new.write_text(signal_name, encoding="ascii")
            new.rename(marker)
            if await _until_ready(self._folder, self._recipe, starts_min=before + 1) is None:
                raise EmbeddedError(f"{self._recipe.name} did not start again; {_log_tail(self._folder)}")


@asynccontextmanager
async def shared_server(folder: Path, recipe: Recipe) -> AsyncIterator[SharedServer]:
    async with _user_of(folder, recipe):
        with rights_explained(folder, name=recipe.name):
            async with held_lock(folder / START_LOCK, fcntl.LOCK_EX, wait_s=_QUEUE_WAIT_S):
                await _join_or_start(folder, recipe)
        yield SharedServer(folder, recipe)


@asynccontextmanager
async def _user_of(folder: Path, recipe: Recipe) -> AsyncIterator[None]:
    with rights_explained(folder, name=recipe.name):
        make_folder(folder, mode=recipe.folder_mode)
        # A guardian that is stopping the server holds this lock until the server is gone.
        users = await _take(folder / USERS_LOCK, fcntl.LOCK_SH, wait_s=_QUEUE_WAIT_S)
    try:
        yield
    finally:
        os.close(users)
        await _until_gone_or_shared(folder)


async def _join_or_start(folder: Path, recipe: Recipe) -> None:
    for _ in range(_START_TRIES):
        port = None
        if not _guardian_lives(folder):
            await _end_orphan(folder, recipe)
            port = _free_port()
            await _spawn_guardian(folder, recipe, await recipe.prepare(port=port))
        if await _until_ready(folder, recipe) is not None:
            return
        # The one we wanted to join ended just then, or somebody took the port before our server could: once more.
        if port is not None and _is_free(port):
            raise EmbeddedError(f"{recipe.name} in {folder} did not start; {_log_tail(folder)}")
    raise EmbeddedError(
        f"{recipe.name} in {folder} did not start in {_START_TRIES} tries; {_log_tail(folder)}"
    )


async def _until_ready(folder: Path, recipe: Recipe, *, starts_min: int = 1) -> Status | None:
    """None if the guardian ended before the server answered."""
    deadline = time.monotonic() + _START_WAIT_S
    while time.monotonic() < deadline:
        if not _guardian_lives(folder):
            return None
        status = _read_status(folder)
        if status is not None and status.starts >= starts_min and await recipe.ready(status):
            return status
        await asyncio.sleep(_POLL_S)
    raise EmbeddedError(
        f"{recipe.name} in {folder} gave no answer within {_START_WAIT_S:.0f} s; {_log_tail(folder)}"
    )


async def _spawn_guardian(folder: Path, recipe: Recipe, launch: Launch) -> None:
    spec: guardian.Spec = {
        "command": list(launch.command),
        "stop_signals": list(recipe.stop_signals),
        "grace_s": recipe.grace_s,
        "owner": None if launch.owner is None else list(launch.owner),
        "facts": dict(launch.facts),
    }
    try:
        await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-I", "-S", guardian.__file__, str(folder), json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=_SPAWN_WAIT_S,
            check=True,
        )
    except subprocess.SubprocessError as error:
        raise EmbeddedError(f"the guardian in {folder} did not start; {_log_tail(folder)}") from error


async def _end_orphan(folder: Path, recipe: Recipe) -> None:
    """A server whose guardian was killed may still be ending, or, where nothing told it to, still be running."""
    status = _read_status(folder)
    for name in (*recipe.stop_signals, "SIGKILL"):
        if _is_unlocked(folder / SERVER_LOCK):
            return
        if status is not None:
            try:
                os.kill(status.server_pid, signal.Signals[name])
            except ProcessLookupError:
                status = None  # only its children are left, and they end by themselves
        deadline = time.monotonic() + recipe.grace_s
        while time.monotonic() < deadline:
            if _is_unlocked(folder / SERVER_LOCK):
                return
            await asyncio.sleep(_POLL_S)
    raise EmbeddedError(f"an earlier {recipe.name} in {folder} does not end; end its processes and try again")


async def _until_gone_or_shared(folder: Path) -> None:
    deadline = time.monotonic() + _CLOSE_WAIT_S
    while time.monotonic() < deadline and _guardian_lives(folder):
        if not _is_unlocked(folder / USERS_LOCK) and _is_unlocked(folder / USERS_LOCK, fcntl.LOCK_SH):
            return  # held, but not exclusively: by other users, not by the guardian
        await asyncio.sleep(_POLL_S)


async def _take(path: Path, operation: int, *, wait_s: float) -> int:
    deadline = time.monotonic() + wait_s
    while (descriptor := try_lock(path, operation)) is None:
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"somebody else has held {path} for {wait_s:.0f} s; end the programs that use it"
            )
        await asyncio.sleep(_POLL_S)
    return descriptor


@asynccontextmanager
async def held_lock(path: Path, operation: int, *, wait_s: float) -> AsyncIterator[None]:
    descriptor = await _take(path, operation, wait_s=wait_s)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def rights_explained(folder: Path, *, name: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise EmbeddedError(
            f"no rights on {error.filename or folder}, which {name} needs: it belongs to another user; "
            "run as that user, or choose another folder"
        ) from error


def _is_unlocked(path: Path, operation: int = fcntl.LOCK_EX) -> bool:
    descriptor = try_lock(path, operation)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _guardian_lives(folder: Path) -> bool:
    return not _is_unlocked(folder / GUARDIAN_LOCK, fcntl.LOCK_SH)


def _read_status(folder: Path) -> Status | None:
    try:
        return Status(**json.loads((folder / STATUS_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def _log_tail(folder: Path) -> str:
    try:
        text = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "it left no log"
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
