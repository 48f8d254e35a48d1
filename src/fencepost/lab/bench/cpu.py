"""CPU seconds of processes and their families, read from the kernel (Linux; elsewhere the figures are left out)."""

from __future__ import annotations

import os
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def cpu_s(pid: int) -> float:
    """Of one process, all its threads."""
    user, system, _, _ = _times(pid)
    return user + system


def family_cpu_s(pid: int) -> float:
    """Of a process, its living children and those that have ended: PostgreSQL with all its backends."""
    user, system, children_user, children_system = _times(pid)
    total = user + system + children_user + children_system
    for child in _children(pid):
        try:
            total += family_cpu_s(child)
        except FileNotFoundError:
            continue  # it ended meanwhile, and stands in its parent's count now
    return total


def rss_bytes(pid: int) -> int:
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
