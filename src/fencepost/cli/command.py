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
    operator_command = client.command(command_id)
    if as_json:
        print_json(operator_command)
        return
    lines = {
        "command": f"{operator_command.command} ({operator_command.command_id})",
        "state": _state(operator_command),
    }
    lines["author"] = (
        f"{operator_command.asked_by} at {operator_command.asked_at.isoformat(timespec='seconds')}"
    )
    if operator_command.reason:
        lines["reason"] = operator_command.reason
    if operator_command.outcome:
        lines["outcome"] = operator_command.outcome
    out = console()
    for name, value in lines.items():
        out.print(Text.assemble((f"{name:<11}", "bold"), value))


def _state(operator_command: CommandOut) -> str:
    if not operator_command.done:
        return "open"
    return "not applied" if operator_command.applied is False else "applied"


@command.command()
@click.argument("command_id", metavar="ID")
@node_options
def withdraw(*, command_id: str, client: Client, as_json: bool) -> int:
    """Withdraw a command that is not done yet. The exit code is 1 if it is done, unknown or still open."""
    operator_command = client.withdraw_command(command_id)
    name = f"{operator_command.command} ({operator_command.command_id})"
    if as_json:
        print_json(operator_command)
    elif operator_command.withdrawn is True:
        click.echo(f"{name}: {operator_command.outcome}")
    elif operator_command.done:
        click.echo(f"{name}: not withdrawn: it is done: {operator_command.outcome}")
    else:
        click.echo(
            f"{name}: not withdrawn yet: the signer's lane has not read the withdrawal; "
            f"run fencepost command show {operator_command.command_id} later"
        )
    return OK if operator_command.withdrawn is True else NO
