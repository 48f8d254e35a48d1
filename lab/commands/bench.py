"""Implement `python -m lab bench`: measure throughput and latency on this machine, and profile a transaction."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fencepost.cli.rendering import console, table
from lab.bench import charts
from lab.bench.page import write_page
from lab.bench.profile import Profile, measure
from lab.bench.report import Figure, number, rows
from lab.bench.runs import FIGURES, QUICK, run


@click.command()
@click.option(
    "--quick", is_flag=True, help="Measure only the main figures, with smaller counts: takes about a minute."
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(FIGURES)),
    help="Measure only this figure; may be repeated.",
)
@click.option(
    "--profile",
    is_flag=True,
    help="Show the time per stage of a transaction and the node's CPU time per package.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--chart", type=click.Path(path_type=Path, dir_okay=False), help="Write a chart to this SVG file."
)
@click.option(
    "--page",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Write speed.md and its charts into this folder, from its figures/bench.json and figures/profile.json.",
)
def bench(
    *,
    quick: bool,
    only: tuple[str, ...],
    profile: bool,
    as_json: bool,
    chart: Path | None,
    page: Path | None,
) -> None:
    """Measure with a real PostgreSQL and chain, and compare with the same machine without Fencepost."""
    if page is not None:
        write_page(page)
    elif profile:
        _show_profile(uvloop.run(measure(quick=quick)), as_json=as_json)
    else:
        _show_figures(list(only or (QUICK if quick else FIGURES)), quick=quick, as_json=as_json, chart=chart)


def _show_figures(names: list[str], *, quick: bool, as_json: bool, chart: Path | None) -> None:
    figures: list[Figure] = []
    failures: dict[str, str] = {}
    out = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.is_terminal) as progress:
        task = progress.add_task("", total=len(names))

        def done(measured: list[Figure]) -> None:
            figures.extend(measured)
            progress.advance(task)

        def failed(name: str, why: str) -> None:
            failures[name] = why
            progress.advance(task)

        facts = uvloop.run(
            run(
                names,
                quick=quick,
                on_start=lambda name: progress.update(task, description=name),
                on_figures=done,
                on_failure=failed,
            )
        )
    if chart is not None:
        chart.write_text(charts.targets(figures, facts), encoding="utf-8")
    if as_json:
        report = {
            "machine": facts,
            "figures": [figure.as_json() for figure in figures],
            "failures": failures,
        }
        click.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        console().print(table(("figure", "value", "compared with", "ratio", "target", ""), rows(figures)))
        for name, why in failures.items():
            console().print(f"{name}: {why}", style="red")
        _show_machine(facts)
    if failures:
        raise SystemExit(1)


def _show_profile(profile: Profile, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(profile)).decode())
        return
    stages = [(stage.stage, f"{stage.p50_ms:.2f}", f"{stage.mean_ms:.2f}") for stage in profile.stages]
    console().print(table((f"stage, at {profile.rate} per second", "median ms", "mean ms"), stages))
    packages = [(cost.package, number(cost.us), f"{cost.share:.0%}") for cost in profile.packages]
    console().print(table(("CPU time of a node, by package", "µs per tx", "share"), packages))
    _show_machine(dict(profile.machine))


def _show_machine(facts: dict[str, str]) -> None:
    console().print(" · ".join(f"{name} {value}" for name, value in facts.items()), style="dim")
