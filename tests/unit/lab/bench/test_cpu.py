"""The benchmark pins processes to cores, and undoes that afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.bench.cpu import cores, isolate_core

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) == 1,
    reason="it takes Linux and two cores to share out",
)

WAITS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


@contextmanager
def family() -> Iterator[tuple[int, int]]:
    """Start a process that waits for its child, which waits too."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        yield parent.pid, int(child)


def test_the_chain_has_a_core_of_its_own() -> None:
    before = cores()
    with family() as one, family() as other:
        with isolate_core(one[0], [other[0]]):
            assert [os.sched_getaffinity(pid) for pid in one] == [{before[0]}] * 2
            assert [os.sched_getaffinity(pid) for pid in other] == [set(before[1:])] * 2
            assert cores() == before[1:]
        assert [os.sched_getaffinity(pid) for pid in (*one, *other)] == [set(before)] * 4
    assert cores() == before


def test_a_process_that_has_ended_is_skipped() -> None:
    before = cores()
    with family() as gone:
        pass
    with isolate_core(gone[0], [gone[1]]):
        assert cores() == before[1:]
    assert cores() == before
