"""A node process tunes the garbage collector; a program with an embedded node keeps its own settings."""

from __future__ import annotations

import gc
import subprocess
import sys


def output_of(code: str) -> list[int]:
    """Run code in its own process, since it changes the whole process; return its output."""
    ran = subprocess.run(
        [sys.executable, "-c", f"import gc\n{code}"], capture_output=True, check=True, text=True
    )
    return [int(word) for word in ran.stdout.split()]


SAID = "print(gc.get_freeze_count(), *gc.get_threshold())"


def test_long_lived_objects_are_frozen_and_full_collections_are_rare() -> None:
    frozen, *thresholds = output_of(
        f"import fencepost.cli.up\nfrom fencepost.runtime import gc_tuning\ngc_tuning.tune_gc()\n{SAID}"
    )
    assert frozen > 10_000
    assert all(now > usual for now, usual in zip(thresholds, (700, 10, 10), strict=True))


def test_a_program_that_imports_fencepost_keeps_its_settings() -> None:
    assert output_of(f"import fencepost.facade\n{SAID}") == [0, *gc.get_threshold()]
