"""`fencepost lab …`: experiments on real servers, bounded in time, that show what the papers claim."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click
import uvloop
from rich.console import Console

from fencepost.cli.lab_chaos import chaos, failover
from fencepost.cli.lab_sim import sim
from fencepost.cli.tables import console, table
from fencepost.lab.page import page as lab_page
from fencepost.lab.scheme_faults import FAULTS, Outcome
from fencepost.lab.scheme_load import Rate
from fencepost.lab.scheme_page import page as scheme_page
from fencepost.lab.schemes import Report, compare


@click.group()
def lab() -> None:
    """Experiments on real servers."""


lab.add_command(chaos)
lab.add_command(failover)
lab.add_command(sim)


@lab.command()
@click.option("--quick", is_flag=True, help="At most 45 s instead of 3 minutes; the figures are rougher.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was measured as JSON.")
@click.option("--markdown", is_flag=True, help="Print the page docs/nonce-schemes.md.")
def schemes(*, quick: bool, as_json: bool, markdown: bool) -> None:
    """Compare the schemes of the nonce service under the same load and the same faults."""
    for name in ("fencepost", "asyncpg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # faults are the point here: they are counted
    progress = Console(stderr=True, highlight=False)
    report = uvloop.run(compare(quick=quick, report=lambda text: progress.print(f"… {text}")))
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    elif markdown:
        click.echo(scheme_page(report), nl=False)
    else:
        _print(report)


@lab.command()
@click.option(
    "--figures",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("docs/figures"),
    show_default=True,
    help="Where the JSON of chaos, failover, sim and mutants lies.",
)
def page(*, figures: Path) -> None:
    """Print the page docs/lab.md from what the experiments have found."""
    click.echo(lab_page(figures), nl=False)


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
    out.print("faults: duplicates / holes, and those left after reclaiming / longest time without a nonce, s")
    out.print("ratios: " + ", ".join(f"{name} {value:g}" for name, value in report.ratios.items()))
    out.print(", ".join(f"{name} {value}" for name, value in report.machine.items()))


def _times(rate: Rate) -> str:
    return f"{rate.p50_ms:g} {rate.p99_ms:g}"


def _outcome(outcome: Outcome) -> str:
    holes = f"{outcome.holes}→{outcome.holes_left}" if outcome.holes else "0"
    return f"{outcome.duplicates} / {holes} / {outcome.stall_s:.2f}"
