"""`fencepost bench`: what it can do on this machine, as ratios."""

from __future__ import annotations

import json
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fencepost.cli.tables import console, table
from fencepost.lab.bench.report import Figure, rows, write_chart
from fencepost.lab.bench.runs import FIGURES, QUICK, run


@click.command()
@click.option(
    "--quick", is_flag=True, help="Smaller counts and the main figures only: a first answer within a minute."
)
@click.option("--only", multiple=True, type=click.Choice(list(FIGURES)), help="Just these figures.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--chart", type=click.Path(path_type=Path, dir_okay=False), help="Write a chart as SVG.")
def bench(*, quick: bool, only: tuple[str, ...], as_json: bool, chart: Path | None) -> None:
    """Measure on real parts, beside what the same machine does without us."""
    names = list(only or (QUICK if quick else FIGURES))
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
        write_chart(chart, figures, facts)
    if as_json:
        told = {
            "machine": facts,
            "figures": [figure.as_json() for figure in figures],
            "failures": failures,
        }
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        console().print(table(("figure", "value", "compared with", "ratio", "target", ""), rows(figures)))
        for name, why in failures.items():
            console().print(f"{name}: {why}", style="red")
        console().print(" · ".join(f"{name} {value}" for name, value in facts.items()), style="dim")
    if failures:
        raise SystemExit(1)
