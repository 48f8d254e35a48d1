"""The simulator itself: the same seed is the same run to the byte, a thousand seeds break nothing, stories get small."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fencepost.lab.sim.many import run_many
from fencepost.lab.sim.plan import KINDS, make_plan
from fencepost.lab.sim.run import run_plan, run_seed, shrink, story
from mutants.catalogue import MUTANTS

_DIGESTS = (
    "from fencepost.lab.sim.run import run_seed\n"
    "print(*[run_seed(seed, with_trace=True).digest for seed in range(12)])"
)


def test_a_seed_is_the_same_run_to_the_byte_in_any_process() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", _DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("1", "2")
    }
    (digests,) = said
    assert len(set(digests.split())) == 12  # and different seeds are different runs


# In pieces, so that workers share them.
@pytest.mark.parametrize("first", range(0, 1_000, 100))
def test_a_thousand_seeds_break_nothing(first: int) -> None:
    report = run_many(range(first, first + 100))
    assert report.failed == {}
    assert report.seeds == 100
    assert report.confirmed > 100


def test_every_kind_of_fault_is_drawn() -> None:
    assert {fault.kind for seed in range(600) for fault in make_plan(seed).faults} == set(KINDS)


def test_a_failing_run_is_made_small_and_told() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "a time-out is a failure")
    with mutant.planted():
        seed = next(seed for seed in range(400) if run_seed(seed).violations)
        plan = make_plan(seed)
        small = shrink(plan, most_runs=40)
        told = story(small)
    assert len(small.faults) <= len(plan.faults)
    assert len(small.requests) <= len(plan.requests)
    assert f"seed {seed}" in told[0]
    assert any("violated" in line for line in told)
    assert not run_plan(small).violations  # the flaw was the mutant's
