"""Describe the machine, the system and the versions that figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata


def machine(**versions: str) -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "fencepost": metadata.version("fencepost"),
        "asyncpg": metadata.version("asyncpg"),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        **versions,
    }


def _memory() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / 2**30:.0f} GiB"
