"""`python -m fencepost.lab.bench.profiled_node …`: the `fencepost` command, watching itself. For the benchmark only.

What it saw goes into the file that `BENCH_PROFILE_FILE` names, when it ends.
"""

from __future__ import annotations

import atexit
import os
import runpy
from pathlib import Path

import msgspec

from fencepost.lab.bench.sampling import Sampler
from fencepost.lab.bench.stages import Stages

MODULE = "fencepost.lab.bench.profiled_node"
PROFILE_FILE = "BENCH_PROFILE_FILE"


class Seen(msgspec.Struct, frozen=True):
    stages_s: list[tuple[float, ...]]  # of each transaction, in the order of `stages.STAGES`
    allocations: list[tuple[int, float, float]]  # as in `stages.Stages`
    stacks: list[tuple[tuple[str, ...], int]]


def watched(file: Path) -> dict[str, str]:
    """What the environment of a node that watches itself must say."""
    return {PROFILE_FILE: str(file)}


def _watch(path: Path) -> None:
    sampler = Sampler()
    stages = Stages(on_first=sampler.start)  # what loading the program costs is no transaction's
    stages.install()

    def write() -> None:
        sampler.stop()
        seen = Seen(stages.finished, stages.allocations, list(sampler.stacks.items()))
        path.write_bytes(msgspec.json.encode(seen))

    atexit.register(write)


if __name__ == "__main__":
    _watch(Path(os.environ[PROFILE_FILE]))
    runpy.run_module("fencepost", run_name="__main__", alter_sys=True)
