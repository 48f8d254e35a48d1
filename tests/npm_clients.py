"""The npm clients of `clients/package.json`, installed once into the cache, completely or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fencepost.dev.anvil import _npm as npm_command
from fencepost.dev.paths import default_cache_dir, make_folder

HERE = Path(__file__).parent / "clients"
INSTALL_WITHIN_S = 100
SPECIFIED = ("package.json", "package-lock.json")


@dataclass(frozen=True, slots=True)
class NpmClients:
    folder: Path

    @property
    def node(self) -> str:
        npm = npm_command()
        return npm[0] if len(npm) > 1 else str(shutil.which("node"))

    def beside(self, folder: Path, script: str) -> Path:
        """Put the script in its own folder: Node resolves imports relative to it."""
        (folder / "node_modules").symlink_to(self.folder / "node_modules")
        return Path(shutil.copy(HERE / script, folder))

    @property
    def cast(self) -> Path:
        machine = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}[platform.machine()]
        return (
            self.folder / "node_modules" / "@foundry-rs" / f"cast-{sys.platform}-{machine}" / "bin" / "cast"
        )


def installed() -> NpmClients:
    cache = default_cache_dir()
    make_folder(cache, mode=0o755)
    wanted = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in SPECIFIED)).hexdigest()[:12]
    target = cache / f"clients-{wanted}"
    with (cache / "clients.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _install(target)
    return NpmClients(target)


def _install(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".clients-", dir=target.parent) as temporary:
        folder = Path(temporary, "clients")
        folder.mkdir()
        for name in SPECIFIED:
            shutil.copy(HERE / name, folder)
        # Not `ci`: it requires the binaries of every platform, and not every registry has them all.
        command = [
            *npm_command(),
            "install",
            "--no-save",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ]
        subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_WITHIN_S, capture_output=True)
        folder.rename(target)
