"""Implement `fencepost config`: show the settings in force with their sources, or print a documented example file.

Secrets are masked in every output. An invalid setting raises `SettingError`: one line, exit code 2.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.text import Text

from fencepost.cli.rendering import console, table
from fencepost.settings import Loaded, displayed_settings, example_toml, load, plain_text, reference_markdown


@click.command("config")
@click.option(
    "--config",
    "toml_path",
    type=click.Path(path_type=Path),
    help="Read this file instead of fencepost.toml.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: value and source per key.")
@click.option(
    "--example",
    is_flag=True,
    help="Print a fencepost.toml with the default and description of every setting.",
)
@click.option("--markdown", is_flag=True, help="Print the page docs/settings.md.")
def config(*, toml_path: Path | None, as_json: bool, example: bool, markdown: bool) -> None:
    """Show the settings in force, with secrets masked."""
    if markdown:
        click.echo(reference_markdown(), nl=False)
        return
    if example:
        click.echo(example_toml(), nl=False)
        return
    loaded = load(toml_path=toml_path)
    if as_json:
        click.echo(_json(loaded))
    else:
        _print_table(loaded)


def _json(loaded: Loaded) -> str:
    rows = displayed_settings(loaded.settings, loaded.sources)
    return json.dumps({row.key: {"value": row.value, "source": row.source} for row in rows}, indent=2)


def _print_table(loaded: Loaded) -> None:
    rows = []
    for row in displayed_settings(loaded.settings, loaded.sources):
        style = "dim" if row.source == "default" else ""
        rows.append(
            (Text(row.key, style), Text(plain_text(row.value) or '""', style), Text(row.source, style))
        )
    out = console()
    out.print(table(("setting", "value", "source"), rows))
    out.print(Text(f"file: {loaded.file.resolve() if loaded.file else 'none'}", "dim"))
