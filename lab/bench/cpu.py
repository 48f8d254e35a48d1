"""Measure the CPU time of processes with their children, and pin processes to cores. Linux only."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def cpu_s(pid: int) -> float:
    """Return the CPU time of one process with all its threads."""
    user, system, _, _ = _times(pid)
    return user + system


def family_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its children, ended ones included: PostgreSQL with all its backends."""
    user, system, children_user, children_system = _times(pid)
    total = user + system + children_user + children_system
    for child in _children(pid):
        try:
            total += family_cpu_s(child)
        except FileNotFoundError:
            continue  # it has ended, and its time is in its parent's count now
    return total


def cores() -> list[int]:
    """Return the cores that this process may use; none if the system does not report them."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


@contextmanager
def isolate_core(one: int, other_attempts: Sequence[int]) -> Iterator[None]:
    """Pin one process to the first core, and the others, their children and this process to the rest."""
    before = cores()
    confined = [(one, before[:1]), *((pid, before[1:]) for pid in (*other_attempts, os.getpid()))]
    for pid, allowed in confined:
        _confine(pid, allowed)
    try:
        yield
    finally:
        for pid, _ in confined:
            _confine(pid, before)


def _confine(pid: int, allowed: Collection[int]) -> None:
    """Pin all threads of a process and its children; processes that have ended are skipped."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread.name), allowed)
        if pid != os.getpid():
            for child in _children(pid):
                _confine(child, allowed)


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _times(pid: int) -> tuple[float, float, float, float]:
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    user, system, children_user, children_system = (int(field) * _TICK_S for field in fields[11:15])
    return user, system, children_user, children_system


def _children(pid: int) -> list[int]:
    return [int(child) for child in (_PROC / str(pid) / "task" / str(pid) / "children").read_text().split()]
