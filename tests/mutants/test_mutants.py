"""Each planted flaw is caught by its schedule, and the unchanged program passes every schedule."""

from __future__ import annotations

import pytest

from lab.sim.run import run_plan
from mutants.catalogue import MUTANTS
from mutants.planting import Mutant
from mutants.schedules import SCHEDULES
from mutants.score import caught_by_schedule

# Errors that a flaw causes because it no longer fits the code around it.
NOT_PLANTED = ("14: TypeError", "14: AttributeError", "14: NameError")


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_product_passes_the_schedule(name: str) -> None:
    broken = [str(violation) for plan in SCHEDULES[name] for violation in run_plan(plan).violations]
    assert not broken


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_schedule_catches_the_mutant(mutant: Mutant) -> None:
    noticed = caught_by_schedule(mutant)
    assert noticed is not None
    assert not noticed.startswith(NOT_PLANTED), (
        "it does not even run: whatever it was made to show, it does not"
    )


def test_no_mutant_stays_planted() -> None:
    before = [vars(owner)[name] for mutant in MUTANTS for owner, name, _ in mutant.changes()]
    for mutant in MUTANTS:
        with mutant.planted():
            pass
    assert before == [vars(owner)[name] for mutant in MUTANTS for owner, name, _ in mutant.changes()]
