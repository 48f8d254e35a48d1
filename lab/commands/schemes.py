"""Implement `python -m lab schemes`: compare the schemes of the nonce service."""

from __future__ import annotations

import json
import logging

import click
import uvloop
from rich.console import Console

from fencepost.cli.rendering import console, table
from lab.schemes.comparison import Report, compare
from lab.schemes.faults import FAULTS, Outcome
from lab.schemes.load import Rate
from lab.schemes.page import render_page


@click.command()
@click.option(
    "--quick", is_flag=True, help="Take at most 45 s instead of 3 minutes, with less precise figures."
)
@click.option("--json", "as_json", is_flag=True, help="Print all measurements as JSON.")
@click.option("--markdown", is_flag=True, help="Print the page docs/nonce-schemes.md.")
def schemes(*, quick: bool, as_json: bool, markdown: bool) -> None:
    """Compare the schemes of the nonce service under the same load and the same faults."""
    for name in ("fencepost", "asyncpg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the experiment causes and counts these errors
    progress = Console(stderr=True, highlight=False)
    report = uvloop.run(compare(quick=quick, report=lambda text: progress.print(f"… {text}")))
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    elif markdown:
        click.echo(render_page(report), nl=False)
    else:
        _print(report)


def _print(report: Report) -> None:
    columns = ["scheme", "hot/s", "p50 99 ms", "100 signers/s", "p50 99 ms", *FAULTS]
    rows = [
        [
            name,
            f"{measured.hot.per_s:.0f}",
            _times(measured.hot),
            f"{measured.spread.per_s:.0f}",
            _times(measured.spread),
            *[_outcome(measured.faults[fault]) for fault in FAULTS],
        ]
        for name, measured in report.schemes.items()
    ]
    for name, rate in (("bare Lua", report.bare_lua), ("bare Lua, pipelined", report.bare_lua_pipelined)):
        rows.append([name, f"{rate.per_s:.0f}", _times(rate), *[""] * (len(columns) - 3)])
    out = console()
    out.print(table(columns, rows))
    out.print(
        "faults: duplicates / nonce gaps → gaps left after reclaiming / longest time without a nonce, s"
    )
    out.print("ratios: " + ", ".join(f"{name} {value:g}" for name, value in report.ratios.items()))
    out.print(", ".join(f"{name} {value}" for name, value in report.machine.items()))


def _times(rate: Rate) -> str:
    return f"{rate.p50_ms:g} {rate.p99_ms:g}"


def _outcome(outcome: Outcome) -> str:
    gaps = f"{outcome.gaps}→{outcome.gaps_left}" if outcome.gaps else "0"
    return f"{outcome.duplicates} / {gaps} / {outcome.stall_s:.2f}"
