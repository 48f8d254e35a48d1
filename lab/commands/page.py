"""Implement `python -m lab page`: print docs/lab.md."""

from __future__ import annotations

from pathlib import Path

import click

from lab.results_page import render_page


@click.command()
@click.option(
    "--figures",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("docs/figures"),
    show_default=True,
    help="The folder with the JSON results of chaos, failover, sim and mutants.",
)
def page(*, figures: Path) -> None:
    """Print the page docs/lab.md from the results of the experiments."""
    click.echo(render_page(figures), nl=False)
