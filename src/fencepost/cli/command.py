"""Implement `fencepost command …`: show an operator command, or withdraw one that is not done yet."""

from __future__ import annotations

import click
from rich.text import Text

from fencepost.cli.node_client import NO, OK, node_options, print_json
from fencepost.cli.rendering import console
from fencepost.client import Client, CommandOut


@click.group()
def command() -> None:
    """Show an operator command, or withdraw one that is not done yet."""


@command.command()
@click.argument("command_id", metavar="ID")
@node_options
def show(*, command_id: str, client: Client, as_json: bool) -> None:
    """Show one command: its author, its reason and its outcome."""
    found = client.command(command_id)
    if as_json:
        print_json(found)
        return
    lines = {"command": f"{found.command} ({found.command_id})", "state": _state(found)}
    lines["asked by"] = f"{found.asked_by} at {found.asked_at.isoformat(timespec='seconds')}"
    if found.reason:
        lines["reason"] = found.reason
    if found.outcome:
        lines["outcome"] = found.outcome
    out = console()
    for name, value in lines.items():
        out.print(Text.assemble((f"{name:<11}", "bold"), value))


def _state(found: CommandOut) -> str:
    if not found.done:
        return "open"
    return "not applied" if found.applied is False else "applied"


@command.command()
@click.argument("command_id", metavar="ID")
@node_options
def withdraw(*, command_id: str, client: Client, as_json: bool) -> int:
    """Withdraw a command that is not done yet. The exit code is 1 if it is done, unknown or still open."""
    found = client.withdraw_command(command_id)
    name = f"{found.command} ({found.command_id})"
    if as_json:
        print_json(found)
    elif found.withdrawn is True:
        click.echo(f"{name}: {found.outcome}")
    elif found.done:
        click.echo(f"{name}: not withdrawn: it is done: {found.outcome}")
    else:
        click.echo(
            f"{name}: not withdrawn yet: the signer's lane has not read the withdrawal; "
            f"run fencepost command show {found.command_id} later"
        )
    return OK if found.withdrawn is True else NO
