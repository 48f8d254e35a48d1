"""Implement `python -m lab sim`: run thousands of seeded simulations in simulated time."""

from __future__ import annotations

import json
import os

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fencepost.cli.rendering import console, table
from lab.machine import machine
from lab.sim.batch import Report, run_many, shrunk_stories

SEEDS = 1_000
MAX_SEEDS = 10_000_000


@click.command()
@click.option("--seeds", type=click.IntRange(1, MAX_SEEDS), default=SEEDS, show_default=True)
@click.option("--first", type=click.IntRange(0, MAX_SEEDS), default=0, show_default=True, help="First seed.")
@click.option(
    "--seed",
    type=click.IntRange(0, MAX_SEEDS * 2),
    help="Run only this seed, and print its event log if it fails.",
)
@click.option("--processes", type=click.IntRange(1, 64), default=lambda: min(2, os.cpu_count() or 1))
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def sim(*, seeds: int, first: int, seed: int | None, processes: int, as_json: bool) -> int:
    """Run real nodes and lanes in simulated worlds; the seed decides every interleaving and every fault."""
    wanted = range(first, first + seeds) if seed is None else range(seed, seed + 1)
    out = Console(stderr=True, highlight=False) if as_json else console()
    facts = machine()
    report = _run(wanted, 1 if len(wanted) == 1 else processes, out)
    if as_json:
        click.echo(json.dumps({"machine": facts, **report.as_json()}, indent=2))
    else:
        _print_report(report, out)
    for story in shrunk_stories(report):
        out.print("\n".join(story), markup=False, style="red")
    return 0 if report.is_good else 1


def _run(wanted: range, processes: int, out: Console) -> Report:
    if not out.is_terminal:
        return run_many(wanted, processes=processes)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=out) as bar:
        task = bar.add_task("seeds", total=len(wanted))
        return run_many(
            wanted, processes=processes, on_progress=lambda report: bar.update(task, completed=report.seeds)
        )


def _print_report(report: Report, out: Console) -> None:
    figures = report.as_json()
    out.print(table(("fault", "count"), [(kind, str(count)) for kind, count in report.faults.most_common()]))
    out.print(
        f"{figures['seeds']} seeds in {figures['seconds']} s ({figures['seedsPerSecond']} seeds/s),"
        f" {figures['simulatedHours']} simulated hours, {figures['faultCount']} faults of"
        f" {figures['faultKinds']} kinds, {figures['requests']} requests, {figures['confirmed']} confirmed"
    )
    if report.is_good:
        out.print("✓ no violation", style="green")
    for seed, violations in sorted(report.failed.items())[:20]:
        out.print(f"✗ seed {seed}: {violations[0]}", style="red", markup=False)
