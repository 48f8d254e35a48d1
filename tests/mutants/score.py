"""Score the mutants: which ones the fixed schedules catch, and after how many seeds the simulator does."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab.sim.run import run_plan, run_seed
from mutants.catalogue import MUTANTS
from mutants.planting import Mutant
from mutants.schedules import SCHEDULES

MAX_SEEDS = 600


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    schedule: str
    by_schedule: str | None  # the violation that was found
    by_seed: int | None  # the first seed that found a violation
    noticed: str | None = None


def caught_by_schedule(mutant: Mutant) -> str | None:
    with mutant.planted():
        for plan in SCHEDULES[mutant.schedule]:
            violations = run_plan(plan).violations
            if violations:
                return str(violations[0])
    return None


def caught_by_simulator(mutant: Mutant, *, most_seeds: int) -> tuple[int, str] | None:
    with mutant.planted():
        for seed in range(most_seeds):
            violations = run_seed(seed).violations
            if violations:
                return seed, str(violations[0])
    return None


def score_of(job: tuple[int, int]) -> Score:
    index, most_seeds = job
    mutant = MUTANTS[index]
    by_seed = caught_by_simulator(mutant, most_seeds=most_seeds)
    return Score(
        mutant.name,
        mutant.schedule,
        caught_by_schedule(mutant),
        None if by_seed is None else by_seed[0],
        None if by_seed is None else by_seed[1],
    )


def scores(*, most_seeds: int = MAX_SEEDS, processes: int = 2) -> Iterator[Score]:
    jobs = [(index, most_seeds) for index in range(len(MUTANTS))]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(score_of, jobs)


def summary(found: Sequence[Score]) -> dict[str, Any]:
    by_schedule = sum(score.by_schedule is not None for score in found)
    by_simulator = sum(score.by_seed is not None for score in found)
    return {
        "mutants": len(found),
        "killedBySchedules": by_schedule,
        "killedBySimulator": by_simulator,
        "schedulesPercent": round(100 * by_schedule / len(found), 1),
        "simulatorPercent": round(100 * by_simulator / len(found), 1),
        "rows": [asdict(score) for score in found],
    }
