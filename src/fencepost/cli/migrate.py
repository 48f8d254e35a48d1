"""Implement `fencepost migrate`: apply migrations, list them, or print SQL for an administrator."""

from __future__ import annotations

import asyncio
import json

import click

from fencepost.adapters.postgres import migrate as migrations
from fencepost.adapters.postgres.rights import grants
from fencepost.cli.options import settings_options
from fencepost.cli.rendering import console, table
from fencepost.dev.embedded import database
from fencepost.settings import Loaded


@click.command()
@click.argument("verb", type=click.Choice(["up", "status", "grants"]), default="up")
@click.argument("role", default="")
@click.option("--sql", "print_sql", is_flag=True, help="Print the SQL of all migrations and apply none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def migrate(*, verb: str, role: str, print_sql: bool, as_json: bool, loaded: Loaded) -> None:
    """Apply the missing migrations (up), list all (status), or print the GRANTs for ROLE (grants).

    `grants` is for nodes whose database role does not own the tables: run its output as the owner.
    """
    if (verb == "grants") != bool(role):
        raise click.UsageError(
            "`grants` needs a ROLE, and only `grants` takes one: fencepost migrate grants ROLE"
        )
    if verb == "grants":
        click.echo("\n".join(grants(role)))
        return
    if print_sql:
        for migration in migrations.available():
            click.echo(
                f"-- {migration.number:04}_{migration.name}  sha256 {migration.checksum}\n{migration.sql}"
            )
        return
    rows = asyncio.run(_run(verb, loaded))
    if as_json:
        click.echo(
            json.dumps([{"number": n, "name": name, "state": state} for n, name, state in rows], indent=2)
        )
        return
    console().print(table(("number", "name", "state"), [(f"{n:04}", name, state) for n, name, state in rows]))


async def _run(verb: str, loaded: Loaded) -> list[tuple[int, str, str]]:
    timeout_s = loaded.settings.database.connect_timeout_s
    async with database(loaded.settings, report=lambda _: None) as dsn:
        applied = await migrations.apply(dsn, timeout_s=timeout_s) if verb == "up" else []
        now = {migration.number for migration in applied}
        return [
            (
                status.migration.number,
                status.migration.name,
                "applied now"
                if status.migration.number in now
                else "applied"
                if status.is_applied
                else "missing",
            )
            for status in await migrations.status(dsn, timeout_s=timeout_s)
        ]
