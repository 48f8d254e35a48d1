"""Run one embedded server in a small supervisor process, exactly as long as a program uses the server.

Embedded servers must not outlive the programs that use them, even if those are killed. So the supervisor, not a user, is
the server's parent. It detects the remaining users by file locks, which the kernel releases when a process dies.
All files are in the server's folder:

    start.lock     exclusive: a process that checks whether the server runs, and starts or restarts it
    users.lock     shared: every user of the server. The supervisor tries to lock it exclusively; when it succeeds, there
                   are no users, and it keeps the lock while it stops the server, so that a new user waits
    guardian.lock  exclusive: the supervisor, as long as it lives. Version 0.1.0 uses this name and the key `guardian_pid`
                   in server.json: both stay, so that two versions see each other's servers in one folder
    server.lock    exclusive: supervisor and server together (the server inherits it), so that a server whose supervisor
                   was killed outright is still seen
    server.json    pids and facts of what runs; valid only while guardian.lock is held
    server.log     output of server and supervisor, and server.log.1 before it; bounded
    restart        the name of a signal: end the server with it and start it again

It runs as `python -I -S supervisor.py FOLDER SPEC`, by path, so it imports the standard library only and starts in about
50 ms. It detaches itself: when the command returns 0, the detached process holds the locks. `shared_server` is the
user's side.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

START_LOCK = "start.lock"
USERS_LOCK = "users.lock"
SUPERVISOR_LOCK = "guardian.lock"
SUPERVISOR_PID_KEY = "guardian_pid"
SERVER_LOCK = "server.lock"
STATUS_FILE = "server.json"
LOG_FILE = "server.log"
RESTART_FILE = "restart"

MAX_LOG_BYTES = 4 * 1024 * 1024
_POLL_S = 0.1
_LOCK_WAIT_S = 2.0
_PR_SET_PDEATHSIG = 1


class Spec(TypedDict):
    """Describe the server, as JSON on the supervisor's command line; it must not contain a secret."""

    command: list[str]
    stop_signals: list[str]  # each is tried for `grace_s`, then SIGKILL
    grace_s: float
    owner: list[int] | None  # [uid, gid] of the server; None is the current user
    facts: dict[str, Any]  # passed to users in server.json


def try_lock(path: str | os.PathLike[str], operation: int) -> int | None:
    """Return the descriptor that holds the lock, or None if another process holds it; closing it releases the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # not inheritable: no child keeps a user's lock
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Supervisor:
    """Start and stop the server. It is single-threaded: the kernel ties the server's life to the thread that started it."""

    def __init__(self, spec: Spec, *, server_lock: int) -> None:
        self._spec = spec
        self._server_lock = server_lock
        self._starts = 0
        self._is_stopping = False
        self._child = self._start()

    def request_stop(self, *_signal_and_frame: object) -> None:
        self._is_stopping = True

    def watch(self) -> None:
        """Run until the server has no users, exits by itself, or the supervisor is stopped: unbounded on purpose."""
        while self._child.poll() is None and not self._is_stopping:
            self._restart_if_wanted()
            if (
                try_lock(USERS_LOCK, fcntl.LOCK_EX) is not None
            ):  # never closed: new users wait until this process ends
                break
            _bound_log()
            time.sleep(_POLL_S)
        if self._child.poll() is not None:
            _log(f"the server ended by itself, with status {self._child.returncode}")
        self._stop(self._spec["stop_signals"])

    def _start(self) -> subprocess.Popen[bytes]:
        uid, gid = self._spec["owner"] or (None, None)
        child = subprocess.Popen(
            self._spec["command"],
            stdin=subprocess.DEVNULL,
            env={"PATH": os.defpath, "HOME": os.getcwd(), "LC_ALL": "C"},  # noqa: PTH109 - pathlib starts too slowly
            pass_fds=(self._server_lock,),
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            preexec_fn=_end_with_parent(self._spec["stop_signals"][0]),  # noqa: PLW1509 - this process has one thread
        )
        self._starts += 1
        _write_atomically(
            STATUS_FILE,
            json.dumps(
                {
                    SUPERVISOR_PID_KEY: os.getpid(),
                    "server_pid": child.pid,
                    "starts": self._starts,
                    "facts": self._spec["facts"],
                }
            ),
        )
        return child

    def _restart_if_wanted(self) -> None:
        try:
            with open(RESTART_FILE, encoding="ascii") as file:  # noqa: PTH123 - pathlib starts too slowly
                name = file.read().strip()
        except FileNotFoundError:
            return
        _remove(RESTART_FILE)
        self._stop([name])
        self._child = self._start()

    def _stop(self, signal_names: Sequence[str]) -> None:
        for name in (*signal_names, "SIGKILL"):
            if self._child.poll() is not None:
                return
            self._child.send_signal(signal.Signals[name])
            try:
                self._child.wait(timeout=self._spec["grace_s"])
            except subprocess.TimeoutExpired:
                _log(f"the server is still there {self._spec['grace_s']} s after {name}")


def _end_with_parent(signal_name: str) -> Callable[[], None] | None:
    """Ask Linux to stop the server gracefully if the supervisor is killed.

    This runs after the change of user, which would clear it. On other systems the next user finds and stops the orphan.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    number = int(signal.Signals[signal_name])
    supervisor_pid = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != supervisor_pid:  # it died before prctl was called
            os._exit(1)

    return arrange


def _write_atomically(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib starts too slowly
        file.write(text)
    os.replace(path + ".new", path)  # noqa: PTH105 - as above


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - pathlib starts too slowly
    except FileNotFoundError:
        return


def _log(sentence: str) -> None:
    print(f"supervisor: {sentence}", file=sys.stderr, flush=True)  # noqa: T201 - standard error is the log file


def _bound_log() -> None:
    """Limit the log: copy and truncate it, because the server keeps the file open for appending."""
    if os.fstat(2).st_size <= MAX_LOG_BYTES:
        return
    import shutil

    shutil.copyfile(LOG_FILE, LOG_FILE + ".1")
    os.ftruncate(2, 0)


def _open_log() -> None:
    """Start a new log for every run, so that its last lines show why this start failed."""
    if os.path.exists(LOG_FILE):  # noqa: PTH110 - pathlib starts too slowly
        os.replace(LOG_FILE, LOG_FILE + ".1")  # noqa: PTH105 - as above
    log = os.open(LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _lock_soon(path: str) -> int:
    """Acquire a lock, with retries: users check these locks by holding them for an instant."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while time.monotonic() < deadline:
        descriptor = try_lock(path, fcntl.LOCK_EX)
        if descriptor is not None:
            return descriptor
        time.sleep(0.01)
    raise SystemExit(f"supervisor: {path} is held by another process")


def main() -> None:
    os.umask(0o077)
    os.chdir(sys.argv[1])
    spec: Spec = json.loads(sys.argv[2])
    supervisor_lock = _lock_soon(SUPERVISOR_LOCK)
    _open_log()
    server_lock = _lock_soon(SERVER_LOCK)
    _remove(STATUS_FILE)
    _remove(RESTART_FILE)
    if os.fork():
        os._exit(0)  # the starter waits for this: from here on the locks are held
    supervisor = Supervisor(spec, server_lock=server_lock)
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, supervisor.request_stop)
    supervisor.watch()
    _remove(STATUS_FILE)
    # In this order: a new user that gets users.lock must not see a supervisor. The process ends with users.lock.
    os.close(server_lock)
    os.close(supervisor_lock)


if __name__ == "__main__":
    main()
