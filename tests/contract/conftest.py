"""A real Anvil for the contract suites: found on PATH, or named by FENCEPOST_TEST_ANVIL."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

_KEYS = 10
_LINES_MAX = 500


@dataclass(frozen=True, slots=True)
class Anvil:
    rpc_url: str
    private_keys: tuple[str, ...]


@pytest.fixture(scope="session")
def anvil() -> Iterator[Anvil]:
    program = os.environ.get("FENCEPOST_TEST_ANVIL") or shutil.which("anvil")
    if program is None:
        pytest.skip("Anvil is not on PATH and FENCEPOST_TEST_ANVIL is not set")
    with subprocess.Popen(
        [program, "--port", "0", "--accounts", str(_KEYS)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield _announced(process)
        finally:
            process.terminate()
            process.communicate(timeout=10)


def _announced(process: subprocess.Popen[str]) -> Anvil:
    """What Anvil prints until it listens: its keys, then its port."""
    assert process.stdout is not None
    keys: list[str] = []
    for _, line in zip(range(_LINES_MAX), process.stdout, strict=False):
        if line.startswith("(") and len(word := line.split()[-1]) == len("0x") + 64:
            keys.append(word)
        if line.startswith("Listening on "):
            return Anvil(f"http://{line.removeprefix('Listening on ').strip()}", tuple(keys))
    raise AssertionError("Anvil ended before it listened")
