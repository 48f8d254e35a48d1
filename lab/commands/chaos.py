"""Implement `python -m lab chaos` and `python -m lab failover`: run real nodes under real faults and report figures."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import uvloop
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from fencepost.cli.rendering import console, table
from fencepost.errors import FencepostError
from lab.chaos.failover import measure
from lab.chaos.report import as_html, as_json, describe_lost_commits, describe_restored
from lab.chaos.run import Outcome, Progress, run
from lab.chaos.testbed import Plan

T = TypeVar("T")

_MAX_VIOLATIONS_SHOWN = 20


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(5, 3600),
    default=60,
    show_default=True,
    help="How long faults are injected.",
)
@click.option("--seed", type=click.IntRange(0), default=7, show_default=True)
@click.option("--nodes", type=click.IntRange(1, 8), default=4, show_default=True)
@click.option("--json", "json_wanted", is_flag=True, help="Print the outcome as JSON.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write report.html, report.json and the logs into this folder.",
)
def chaos(*, seconds: float, seed: int, nodes: int, json_wanted: bool, out: Path | None) -> int:
    """Inject faults into nodes, database and chain, then check 14 invariants.

    The seed decides the faults. The run ends with a restore from an older copy and
    a fail-over that loses commits. Exit code 1 on any violation.
    """
    if out is not None and any(out.glob("*.log*")):  # the old logs would be mixed with this run's
        raise click.BadParameter(
            f"{out} contains the logs of another run; choose another folder", param_hint="--out"
        )
    screen = Console(stderr=True, highlight=False) if json_wanted else console()
    plan = Plan(seconds=seconds, seed=seed, nodes=nodes)
    folder = out or Path(tempfile.mkdtemp(prefix="fencepost-chaos-logs-"))
    folder.mkdir(parents=True, exist_ok=True)
    outcome = _run_with_progress(plan, folder, screen)
    if out is not None:
        (out / "report.json").write_text(json.dumps(as_json(outcome), indent=2), encoding="utf-8")
        (out / "report.html").write_text(as_html(outcome), encoding="utf-8")
    elif outcome.is_good:
        shutil.rmtree(folder, ignore_errors=True)
    if json_wanted:
        click.echo(json.dumps(as_json(outcome), indent=2))
        if not outcome.is_good:
            screen.print(f"logs are in {folder}")
    else:
        _print_outcome(outcome, screen, folder)
    return 0 if outcome.is_good else 1


def _run_unwrapped(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; raise the first Fencepost error of an exception group, so that it prints as one line."""
    try:
        return uvloop.run(work)
    except ExceptionGroup as group:
        cause: Exception = group
        while isinstance(cause, ExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, FencepostError):
            raise cause from group
        raise


def _run_with_progress(plan: Plan, logs: Path, screen: Console) -> Outcome:
    def go(show: Callable[[Progress], None]) -> Outcome:
        report = lambda text: screen.print(f"… {text}")  # noqa: E731 - shorter than a function
        return _run_unwrapped(run(plan, logs=logs, report=report, show=show))

    if not screen.is_terminal:
        return go(lambda _: None)
    bar = Bar(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=screen)
    task = bar.add_task("faults", total=plan.seconds)
    with Live(console=screen, refresh_per_second=4) as live:

        def show(progress: Progress) -> None:
            done_s = plan.seconds - progress.left_s if progress.phase == "faults" else plan.seconds
            bar.update(task, completed=done_s, description=progress.phase)
            grid = Table.grid()
            grid.add_row(_progress_table(progress))
            grid.add_row(bar)
            live.update(grid)

        return go(show)


def _progress_table(progress: Progress) -> Table:
    rows = [
        (signer, str(queued), str(in_flight), str(ended), owner)
        for signer, queued, in_flight, ended, owner in progress.rows
    ]
    made = table(("signer", "queued", "in flight", "ended", "lease holder"), rows)
    made.title = (
        f"nodes up: {' '.join(progress.nodes) or 'none'} · {progress.faults} faults ·"
        f" {progress.acknowledged} of {progress.asked} acknowledged"
    )
    made.title_justify = "left"
    return made


def _print_outcome(outcome: Outcome, screen: Console, folder: Path) -> None:
    facts = as_json(outcome)
    screen.print(table(("fault", "count"), [(kind, str(n)) for kind, n in outcome.by_kind.most_common()]))
    for violation in outcome.violations[:_MAX_VIOLATIONS_SHOWN]:
        screen.print(f"✗ {violation}", style="red")
    screen.print(describe_restored(facts["restoredCopy"]))
    screen.print(describe_lost_commits(facts["lostCommits"]))
    screen.print(
        f"{'✓' if outcome.is_good else '✗'} seed {outcome.plan.seed}: {facts['faults']} faults of"
        f" {len(outcome.by_kind)} kinds, {facts['transactions']} transactions, {facts['takeovers']} take-overs,"
        f" {facts['violationsInAll']} violations",
        style="green" if outcome.is_good else "red",
    )
    if not outcome.is_good:
        screen.print(f"logs and evidence are in {folder}")


@click.command()
@click.option("--runs", type=click.IntRange(1, 500), default=50, show_default=True, help="Runs of each kind.")
@click.option("--json", "json_wanted", is_flag=True, help="Print the distributions as JSON.")
def failover(*, runs: int, json_wanted: bool) -> None:
    """Measure how long a signer sends nothing after its node is killed (kill -9) or stopped (SIGTERM)."""
    screen = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        tempfile.TemporaryDirectory(prefix="fencepost-failover-") as logs,
        Bar(*columns, console=screen) as bar,
    ):
        task = bar.add_task("fail-overs", total=runs)

        def on_run(done: int, killed_s: float, stopped_s: float) -> None:
            bar.update(
                task, completed=done, description=f"kill -9 {killed_s:.2f} s, SIGTERM {stopped_s:.2f} s"
            )

        measured = _run_unwrapped(
            measure(runs, logs=Path(logs), report=lambda text: screen.print(f"… {text}"), on_run=on_run)
        ).as_json()
    if json_wanted:
        click.echo(json.dumps(measured, indent=2))
        return
    figures = ("runs", "p50S", "p90S", "p99S", "maxS")
    rows = [
        (name, *(str(measured[key][figure]) for figure in figures))
        for name, key in (("kill -9", "kill9"), ("SIGTERM", "sigterm"))
    ]
    console().print(table(("until the next send", "runs", "p50 s", "p90 s", "p99 s", "max s"), rows))
    console().print(f"with a lease of {measured['leaseS']} s")
