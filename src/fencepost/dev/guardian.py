"""The guardian: a small process of its own that keeps one embedded server exactly as long as somebody uses it.

Embedded servers must not outlive the programs that use them, however those die. So nobody who uses a server is its
parent; the guardian is, and it learns from file locks, which the kernel gives back at any death, who is still there.
All of it lies in the server's folder:

    start.lock     exclusive: who looks whether the server runs, and starts or restarts it
    users.lock     shared: everyone who uses the server. The guardian tries for it exclusively; when it gets it,
                   nobody is left, and it keeps it while it stops the server, so that a newcomer waits
    guardian.lock  exclusive: the guardian, as long as it lives
    server.lock    exclusive: guardian and server together (the server inherits it), so that a server whose guardian
                   was killed outright is still seen
    server.json    pids and facts of what runs; believed only while guardian.lock is held
    server.log     what server and guardian print, and server.log.1 before it; bounded
    restart        the name of a signal: end the server with it and start it again

It runs as `python -I -S guardian.py FOLDER SPEC`, by path, so it imports the standard library only and is up in some
50 ms. It detaches itself: when the command returns 0, the locks are held by the process left behind. The other side,
what a user of a server does, is `shared_server`.
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
GUARDIAN_LOCK = "guardian.lock"
SERVER_LOCK = "server.lock"
STATUS_FILE = "server.json"
LOG_FILE = "server.log"
RESTART_FILE = "restart"

LOG_BYTES_MAX = 4 * 1024 * 1024
_POLL_S = 0.1
_LOCK_WAIT_S = 2.0
_PR_SET_PDEATHSIG = 1


class Spec(TypedDict):
    """What the guardian is told, as JSON on its command line; no secret belongs in it."""

    command: list[str]
    stop_signals: list[str]  # each is tried for `grace_s`, then SIGKILL
    grace_s: float
    owner: list[int] | None  # [uid, gid] to run the server as, if not our own
    facts: dict[str, Any]  # handed on to users in server.json


def try_lock(path: str | os.PathLike[str], operation: int) -> int | None:
    """The descriptor that holds the lock, or None if somebody else does. Closing it gives the lock back."""
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


class Guardian:
    """Runs in the server's folder, single-threaded: the kernel ties the server's life to the thread that started it."""

    def __init__(self, spec: Spec, *, server_lock: int) -> None:
        self._spec = spec
        self._server_lock = server_lock
        self._starts = 0
        self._asked_to_end = False
        self._child = self._start()

    def ask_to_end(self, *_signal_and_frame: object) -> None:
        self._asked_to_end = True

    def watch(self) -> None:
        """Until nobody uses the server, it ends by itself, or somebody ends us: unbounded on purpose."""
        while self._child.poll() is None and not self._asked_to_end:
            self._restart_if_wanted()
            if (
                try_lock(USERS_LOCK, fcntl.LOCK_EX) is not None
            ):  # never closed: newcomers wait until we are gone
                break
            _bound_log()
            time.sleep(_POLL_S)
        if self._child.poll() is not None:
            _say(f"the server ended by itself, with status {self._child.returncode}")
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
        _write_whole(
            STATUS_FILE,
            json.dumps(
                {
                    "guardian_pid": os.getpid(),
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
                _say(f"the server is still there {self._spec['grace_s']} s after {name}")


def _end_with_parent(signal_name: str) -> Callable[[], None] | None:
    """For Linux: even a guardian that is killed outright takes its server with it, gracefully.

    It runs after the change of user, which would clear it. Elsewhere the next user finds and ends the orphan.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    number = int(signal.Signals[signal_name])
    guardian_pid = os.getpid()

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != guardian_pid:  # it died before the arrangement was made
            os._exit(1)

    return arrange


def _write_whole(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib starts too slowly
        file.write(text)
    os.replace(path + ".new", path)  # noqa: PTH105 - as above


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - pathlib starts too slowly
    except FileNotFoundError:
        return


def _say(sentence: str) -> None:
    print(f"guardian: {sentence}", file=sys.stderr, flush=True)  # noqa: T201 - standard error is the log file


def _bound_log() -> None:
    """The server holds the file open for appending, so it is copied and emptied rather than renamed."""
    if os.fstat(2).st_size <= LOG_BYTES_MAX:
        return
    import shutil

    shutil.copyfile(LOG_FILE, LOG_FILE + ".1")
    os.ftruncate(2, 0)


def _open_log() -> None:
    """A log of its own for every run, so that its last lines tell why this start failed."""
    if os.path.exists(LOG_FILE):  # noqa: PTH110 - pathlib starts too slowly
        os.replace(LOG_FILE, LOG_FILE + ".1")  # noqa: PTH105 - as above
    log = os.open(LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _lock_soon(path: str) -> int:
    """Users look at these locks by taking them for an instant, so the first try may meet one of them."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while time.monotonic() < deadline:
        descriptor = try_lock(path, fcntl.LOCK_EX)
        if descriptor is not None:
            return descriptor
        time.sleep(0.01)
    raise SystemExit(f"guardian: {path} is held by somebody else")


def main() -> None:
    os.umask(0o077)
    os.chdir(sys.argv[1])
    spec: Spec = json.loads(sys.argv[2])
    guardian_lock = _lock_soon(GUARDIAN_LOCK)
    _open_log()
    server_lock = _lock_soon(SERVER_LOCK)
    _remove(STATUS_FILE)
    _remove(RESTART_FILE)
    if os.fork():
        os._exit(0)  # the starter waits for this: from here on the locks are held
    guardian = Guardian(spec, server_lock=server_lock)
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, guardian.ask_to_end)
    guardian.watch()
    _remove(STATUS_FILE)
    # In this order: who then gets users.lock must not see a guardian any more. Users' lock goes with the process.
    os.close(server_lock)
    os.close(guardian_lock)


if __name__ == "__main__":
    main()
