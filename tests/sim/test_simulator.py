"""Test the simulator: equal seeds give equal runs, a thousand seeds find no violation, failing plans shrink."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from lab.sim.batch import run_many
from lab.sim.end_checks import find_violations
from lab.sim.plan import KINDS, Fault, Plan, PlannedRequest, make_plan
from lab.sim.run import run_plan, run_seed, shrink, story
from lab.sim.world import World
from mutants.catalogue import MUTANTS

_DIGESTS = (
    "from lab.sim.run import run_seed\nprint(*[run_seed(seed, with_trace=True).digest for seed in range(12)])"
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


# In pieces, so that test workers share them.
@pytest.mark.parametrize("first", range(0, 1_000, 100))
def test_a_thousand_seeds_break_nothing(first: int) -> None:
    report = run_many(range(first, first + 100))
    assert report.failed == {}
    assert report.seeds == 100
    assert report.confirmed > 100


def test_every_kind_of_fault_is_drawn() -> None:
    assert {fault.kind for seed in range(600) for fault in make_plan(seed).faults} == set(KINDS)


def test_a_failing_run_is_shrunk_and_described() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "a time-out is a failure")
    with mutant.planted():
        seed = next(seed for seed in range(400) if run_seed(seed).violations)
        plan = make_plan(seed)
        small = shrink(plan, most_runs=40)
        lines = story(small)
    assert len(small.faults) <= len(plan.faults)
    assert len(small.requests) <= len(plan.requests)
    assert f"seed {seed}" in lines[0]
    assert any("violates" in line for line in lines)
    assert not run_plan(small).violations  # the flaw was the mutant's


def test_a_run_that_is_given_up_leaves_no_suspended_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector would close one inside another test, which then fails."""
    unraisable: list[object] = []
    monkeypatch.setattr("lab.sim.loop.MAX_CALLBACKS", 500)
    monkeypatch.setattr(sys, "unraisablehook", lambda raised: unraisable.append(raised.exc_value))
    for seed in range(7, 11):
        assert "it does not end" in run_seed(seed).violations[0].what
    gc.collect()
    assert unraisable == []


@pytest.mark.parametrize("dead", [0, 1])
def test_a_node_whose_endpoints_are_dead_leaves_its_signers_to_another(dead: int) -> None:
    """Everything ends before the endpoints are back, whichever node held the lease."""
    setup = replace(
        make_plan(1).setup, nodes=2, signers=1, block_s=1.0, required=1, resubmit_s=4.0, stale_s=6.0
    )
    asked = tuple(
        PlannedRequest(number, at_s=1.0 + 2.0 * number, signer=0, by_handler=False) for number in range(1, 9)
    )
    plan = Plan(dead, setup, asked, (Fault("rpc_dead", at_s=6.0, slot=dead),), 90.0)
    world = World(plan)
    world.loop.run(world.play())
    assert not find_violations(world)
    assert world.live_when_faults_ended == 0
