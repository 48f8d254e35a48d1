"""Run many seeds on several processes, and report what was simulated and which seeds violate an invariant.

Results are merged in the order of the seeds, so two reports of the same seeds are equal.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.sim.plan import make_plan
from lab.sim.run import run_seed, shrink, story

SEEDS_PER_PIECE = 20
MAX_STORIES = 3


@dataclass(slots=True)
class Report:
    seeds: int = 0
    seconds: float = 0.0
    simulated_s: float = 0.0
    requests: int = 0
    confirmed: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)  # seed → violations

    @property
    def is_good(self) -> bool:
        return not self.failed

    def as_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "seconds": round(self.seconds, 2),
            "seedsPerSecond": round(self.seeds / max(self.seconds, 1e-9), 1),
            "simulatedHours": round(self.simulated_s / 3600, 2),
            "requests": self.requests,
            "confirmed": self.confirmed,
            "faults": dict(sorted(self.faults.items())),
            "faultKinds": len(self.faults),
            "faultCount": self.faults.total(),
            "violatingSeeds": len(self.failed),
            "violations": {str(seed): texts for seed, texts in sorted(self.failed.items())},
        }


def run_many(
    seeds: Sequence[int], *, processes: int = 1, on_progress: Callable[[Report], None] = lambda _: None
) -> Report:
    report = Report()
    began_s = time.monotonic()
    for piece in _pieces(seeds, processes):
        report.seeds += piece.seeds
        report.simulated_s += piece.simulated_s
        report.requests += piece.requests
        report.confirmed += piece.confirmed
        report.faults += piece.faults
        report.failed |= piece.failed
        report.seconds = time.monotonic() - began_s
        on_progress(report)
    return report


def _pieces(seeds: Sequence[int], processes: int) -> Iterator[Report]:
    pieces = [seeds[at : at + SEEDS_PER_PIECE] for at in range(0, len(seeds), SEEDS_PER_PIECE)]
    if processes == 1:
        yield from map(_run_piece, pieces)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(_run_piece, pieces)


def _run_piece(seeds: Iterable[int]) -> Report:
    report = Report()
    for seed in seeds:
        outcome = run_seed(seed)
        report.seeds += 1
        report.simulated_s += outcome.simulated_s
        report.requests += outcome.requests
        report.confirmed += outcome.confirmed
        report.faults += outcome.faults
        if outcome.violations:
            report.failed[seed] = [str(violation) for violation in outcome.violations[:10]]
    return report


def shrunk_stories(report: Report) -> Iterator[list[str]]:
    """Yield the story of the first failed seeds, each shrunk to the faults that it needs."""
    for seed in sorted(report.failed)[:MAX_STORIES]:
        yield story(shrink(make_plan(seed)))
