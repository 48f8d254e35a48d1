"""Run the `fencepost` command with a profiler: `python -m lab.bench.profiled_node …`. For the benchmark only.

At its end it writes the profile into the file that `BENCH_PROFILE_FILE` names.
"""

from __future__ import annotations

import atexit
import os
import runpy
from pathlib import Path

import msgspec

from lab.bench.stack_sampler import Sampler
from lab.bench.tx_stages import StageTimer

MODULE = "lab.bench.profiled_node"
PROFILE_FILE = "BENCH_PROFILE_FILE"


class NodeProfile(msgspec.Struct, frozen=True):
    """What the profiled node measured."""

    stages_s: list[tuple[float, ...]]  # of each transaction, in the order of `tx_stages.STAGES`
    allocations: list[tuple[int, float, float]]  # as in `tx_stages.StageTimer`
    stacks: list[tuple[tuple[str, ...], int]]


def profile_environ(file: Path) -> dict[str, str]:
    """Return the environment variables of a profiled node."""
    return {PROFILE_FILE: str(file)}


def _watch(path: Path) -> None:
    sampler = Sampler()
    stages = StageTimer(on_first=sampler.start)  # the start of the program is not part of any transaction
    stages.install()

    def write() -> None:
        sampler.stop()
        seen = NodeProfile(stages.finished, stages.allocations, list(sampler.stacks.items()))
        path.write_bytes(msgspec.json.encode(seen))

    atexit.register(write)


if __name__ == "__main__":
    _watch(Path(os.environ[PROFILE_FILE]))
    runpy.run_module("fencepost", run_name="__main__", alter_sys=True)
