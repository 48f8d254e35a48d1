"""Where embedded servers keep their things when nobody says otherwise, and how such folders are made.

As root they belong to the machine (/var/lib, /var/cache), because PostgreSQL then runs as another user, who can't
reach root's home. Otherwise they belong to the user, where the platform puts such things.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/fencepost")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "fencepost"
    return _xdg("XDG_DATA_HOME", otherwise=Path(".local", "share")) / "fencepost"


def default_cache_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/fencepost")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "fencepost"
    return _xdg("XDG_CACHE_HOME", otherwise=Path(".cache")) / "fencepost"


def _xdg(variable: str, *, otherwise: Path) -> Path:
    named = Path(os.environ.get(variable, ""))
    return (
        named if named.is_absolute() else Path.home() / otherwise
    )  # the standard: relative paths are ignored


def make_folder(path: Path, *, mode: int) -> None:
    """Make it and its missing parents with just this mode, whatever the umask; what exists stays as it is."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue  # somebody else made it just now, as they wanted it
        folder.chmod(mode)
