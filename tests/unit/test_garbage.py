"""A process that is a node collects garbage its own way; a program that has a node inside is left as it is."""

from __future__ import annotations

import gc
import subprocess
import sys


def told_by(code: str) -> list[int]:
    """In a process of its own, since it changes the whole process."""
    ran = subprocess.run(
        [sys.executable, "-c", f"import gc\n{code}"], capture_output=True, check=True, text=True
    )
    return [int(word) for word in ran.stdout.split()]


SAID = "print(gc.get_freeze_count(), *gc.get_threshold())"


def test_what_stays_is_put_aside_and_full_collections_are_rare() -> None:
    frozen, *thresholds = told_by(
        f"import fencepost.cli.up\nfrom fencepost.runtime import garbage\ngarbage.settle()\n{SAID}"
    )
    assert frozen > 10_000
    assert all(now > usual for now, usual in zip(thresholds, (700, 10, 10), strict=True))


def test_a_program_that_imports_fencepost_keeps_its_own_way() -> None:
    assert told_by(f"import fencepost.facade\n{SAID}") == [0, *gc.get_threshold()]
