"""`python -m fencepost.lab.bench.profiled_node …`: the `fencepost` command, watching itself. For the benchmark only.

What it saw goes into the file that `BENCH_PROFILE_FILE` names, when it ends.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path

import msgspec

from fencepost.cli.main import main
from fencepost.lab.bench.sampling import Sampler
from fencepost.lab.bench.stages import Stages

PROFILE_FILE = "BENCH_PROFILE_FILE"


class Seen(msgspec.Struct, frozen=True):
    stages_s: list[tuple[float, ...]]  # of each transaction, in the order of `stages.STAGES`
    stacks: list[tuple[tuple[str, ...], int]]


def _watch(path: Path) -> None:
    sampler = Sampler()
    stages = Stages(on_first=sampler.start)  # what loading the program costs is no transaction's
    stages.install()

    def write() -> None:
        sampler.stop()
        path.write_bytes(msgspec.json.encode(Seen(stages.finished, list(sampler.stacks.items()))))

    atexit.register(write)


if __name__ == "__main__":
    _watch(Path(os.environ[PROFILE_FILE]))
    main()
