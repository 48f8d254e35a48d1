"""Implement `fencepost version`."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(*, as_json: bool) -> None:
    """Print the versions of Fencepost, Python and the main libraries."""
    parts = {
        "fencepost": metadata.version("fencepost"),
        "python": platform.python_version(),
        "asyncpg": metadata.version("asyncpg"),
        "coincurve": metadata.version("coincurve"),
    }
    if as_json:
        click.echo(json.dumps(parts, indent=2))
    else:
        click.echo("\n".join(f"{name} {number}" for name, number in parts.items()))
