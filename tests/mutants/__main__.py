"""Implement `./dev mutants`: plant each flaw, and show what catches it. Exit code 1 if too few are caught."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout

import click
import pytest
from rich.console import Console
from rich.progress import track

from fencepost.cli.rendering import console, table
from lab.machine import machine
from mutants.catalogue import MUTANTS
from mutants.score import MAX_SEEDS, scores, summary

LEAST_BY_SIMULATOR_PERCENT = 95.0
SQL_TABLE = "tests/integration/test_unsafe_patterns.py"


class _Counted:
    """Count the results of the mutants that need a real PostgreSQL: each is a test of its own."""

    def __init__(self) -> None:
        self.rows: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[2]
        if report.when == "call" and name.startswith("test_the_mutant_is_caught["):
            self.rows[name.partition("[")[2].rstrip("]")] = report.passed


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@click.option("--seeds", type=click.IntRange(1, 100_000), default=MAX_SEEDS, show_default=True)
@click.option("--without-sql", is_flag=True, help="Leave out the statements that need a PostgreSQL.")
def main(*, as_json: bool, seeds: int, without_sql: bool) -> None:
    err = Console(stderr=True, highlight=False)
    facts = machine()
    found = list(
        track(
            scores(most_seeds=seeds),
            total=len(MUTANTS),
            console=err,
            description="mutants",
            disable=not err.is_terminal,
        )
    )
    sql = {} if without_sql else _sql_rows()
    figures = summary(found) | {"sql": sql, "sqlCaught": sum(sql.values())}
    if as_json:
        click.echo(json.dumps({"machine": facts, "seeds": seeds, **figures}, indent=2))
    else:
        _tell(figures)
    good = (
        figures["killedBySchedules"] == figures["mutants"]
        and figures["simulatorPercent"] >= LEAST_BY_SIMULATOR_PERCENT
        and all(sql.values())
    )
    sys.exit(0 if good else 1)


def _sql_rows() -> dict[str, bool]:
    counted = _Counted()
    with redirect_stdout(sys.stderr):
        pytest.main(
            ["-q", "-q", "--no-header", "-n0", "-k", "mutant_is_caught", SQL_TABLE], plugins=[counted]
        )
    if not counted.rows:
        raise click.ClickException(f"nothing of {SQL_TABLE} was run")
    return counted.rows


def _tell(figures: dict[str, object]) -> None:
    rows = figures["rows"]
    sql = figures["sql"]
    assert isinstance(rows, list)
    assert isinstance(sql, dict)
    out = console()
    shown = [
        (
            row["name"],
            f"{'✓' if row['by_schedule'] else '✗'} {row['schedule']}",
            "✗" if row["by_seed"] is None else f"✓ seed {row['by_seed']}",
            (row["noticed"] or row["by_schedule"] or "")[:70],
        )
        for row in rows
    ]
    shown += [(name, f"{'✓' if caught else '✗'} on PostgreSQL", "", "") for name, caught in sql.items()]
    out.print(table(("mutant", "schedule", "simulator", "noticed"), shown))
    out.print(
        f"{figures['mutants']} mutants: schedules catch {figures['schedulesPercent']} %,"
        f" the simulator {figures['simulatorPercent']} %; {figures['sqlCaught']} of {len(sql)} statements on PostgreSQL"
    )


if __name__ == "__main__":
    main()
