"""The unit is valid, and it confines the node."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[1] / "systemd" / "fencepost.service"

# systemd rates a unit without any protection 9.6, and one that may do nothing 0.
MAX_EXPOSURE = 2.0


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists on every machine: systemd checks that, too."""
    text = UNIT.read_text()
    program = "/opt/fencepost/bin/fencepost"
    assert program in text
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace(program, "/bin/true"))
    return copy


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_the_unit_has_no_fault(unit: Path) -> None:
    verified = systemd_analyze("verify", "--man=no", str(unit))
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def test_the_unit_confines_the_node(unit: Path) -> None:
    rated = systemd_analyze(
        "security", "--offline=true", f"--threshold={int(MAX_EXPOSURE * 10)}", "--json=short", str(unit)
    )
    assert rated.returncode == 0, rated.stdout + rated.stderr
    assert {row["json_field"] for row in json.loads(rated.stdout) if row["set"]} >= {
        "NoNewPrivileges",
        "ProtectSystem",
        "MemoryDenyWriteExecute",
    }
