"""Select and create the default folders of embedded servers.

For root they are system folders (/var/lib, /var/cache), because PostgreSQL then runs as another user, which can't reach
root's home. For other users they are the platform's folders for user data.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fencepost.errors import EmbeddedError


def default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/fencepost")
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "fencepost"
    return _xdg("XDG_DATA_HOME", otherwise=Path(".local", "share")) / "fencepost"


def default_cache_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/fencepost")
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "fencepost"
    return _xdg("XDG_CACHE_HOME", otherwise=Path(".cache")) / "fencepost"


def _xdg(variable: str, *, otherwise: Path) -> Path:
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else _home() / otherwise  # the standard: relative paths are ignored


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise EmbeddedError(
            f"the user with uid {os.geteuid()} has no home directory for the embedded servers:"
            " set HOME, or embedded.data_dir and embedded.cache_dir"
        ) from None


def make_folder(path: Path, *, mode: int) -> None:
    """Create the folder and its missing parents with exactly this mode, whatever the umask; existing ones stay unchanged."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            continue  # another process has just created it
        folder.chmod(mode)
