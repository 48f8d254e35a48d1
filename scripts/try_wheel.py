"""Build the wheel, install it with the locked dependencies on every Python that is there, and send a transaction with it.

Each Python gets a virtual environment of its own that contains nothing but `requirements/runtime.txt` and the wheel.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
STEP_TIMEOUT_S = 600.0

# Runs a node over in-memory parts: no PostgreSQL and no chain are needed, but every layer of the wheel below the API is.
SEND_ONE = """
import asyncio
from fencepost.testing import open_fencepost

async def main():
    async with open_fencepost(options={"confirmations.required": "1"}) as fencepost:
        me = fencepost.addresses[0]
        tx_id = await fencepost.create(signer=me, request_id="order-7", to=me, value_wei=1)
        tx = await fencepost.wait_for(tx_id, "finished", timeout_s=60)
        assert tx is not None and tx.state == "CONFIRMED", tx

asyncio.run(main())
"""


def main() -> None:
    """Try the wheel on each Python, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", help="a version to try, such as 3.12; may be repeated")
    wanted = parser.parse_args().python or VERSIONS
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder) / "dist")
        found = [(version, python) for version in wanted if (python := interpreter(version))]
        if not found:
            sys.exit(f"none of Python {', '.join(wanted)} is installed")
        for version, python in found:
            try_on(python, wheel, Path(folder) / version)
            print(f"Python {version}: {wheel.name} installed, one transaction confirmed", flush=True)


def build(folder: Path) -> Path:
    """Build the wheel with the locked build tools of the development environment."""
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    (wheel,) = folder.glob("*.whl")
    return wheel


def interpreter(version: str) -> str | None:
    """Return the path of a working interpreter of this version."""
    for name in _candidates(version):
        try:
            found = subprocess.run(  # noqa: S603 - names that this file lists
                [name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except OSError:
            continue
        if found.returncode == 0 and found.stdout.strip() == version:
            return name
    return None


def _candidates(version: str) -> Iterator[str]:
    if (on_path := shutil.which(f"python{version}")) is not None:
        yield on_path
    for folder in sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*")):
        if folder.name.startswith(f"{version}."):
            yield str(folder / "bin" / "python")


def try_on(python: str, wheel: Path, venv: Path) -> None:
    """Install the wheel into a new environment and use it."""
    uv = shutil.which("uv") or str(PROJECT / ".dev" / "uv" / "bin" / "uv")
    _run(uv, "venv", "--quiet", "--python", python, str(venv))
    own = str(venv / "bin" / "python")
    lock = str(PROJECT / "requirements" / "runtime.txt")
    _run(uv, "pip", "install", "--quiet", "--python", own, "--require-hashes", "-r", lock)
    _run(uv, "pip", "install", "--quiet", "--python", own, "--no-deps", str(wheel))
    _run(uv, "pip", "check", "--python", own)
    _run(str(venv / "bin" / "fencepost"), "version")
    _run(str(venv / "bin" / "fencepost"), "config", "--example")
    _run(own, "-c", SEND_ONE)


def _run(*command: str) -> str:
    """Run a command outside the source tree, and return its output; stop with the output if it fails."""
    in_project = "hatchling" in command
    done = subprocess.run(  # noqa: S603 - commands that this file lists
        command,
        cwd=PROJECT if in_project else tempfile.gettempdir(),
        capture_output=True,
        text=True,
        timeout=STEP_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:6])} … failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
