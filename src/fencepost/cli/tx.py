"""Implement `fencepost tx …`: list, show and watch transactions, and run operator commands."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import get_args

import click

from fencepost.cli.explaining import needs_action, print_explanation
from fencepost.cli.node_client import NO, OK, SECONDS, command_options, node_options, print_json
from fencepost.cli.tx_rendering import MILESTONES, finish, follow, not_reached, print_table
from fencepost.client import Client, CommandOut, Milestone, TxOut
from fencepost.client.endpoints import Include
from fencepost.client.errors import NotReached
from fencepost.domain.states import State, SubState

_HASH = re.compile(r"0[xX][0-9a-fA-F]{64}")
_INCLUDE: tuple[Include, ...] = get_args(Include)


@click.group()
def tx() -> None:
    """List, show and watch transactions, and run operator commands."""


@tx.command("list")
@click.option(
    "--signer", multiple=True, metavar="ADDRESS", help="Only transactions of this signer; may be repeated."
)
@click.option(
    "--state", multiple=True, type=click.Choice([state.value for state in State], case_sensitive=False)
)
@click.option(
    "--sub-state", multiple=True, type=click.Choice([state.value for state in SubState], case_sensitive=False)
)
@click.option(
    "--tag", multiple=True, help="Only transactions with this tag; may be repeated, and all must match."
)
@click.option("--chain-id", type=int)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Maximum number of rows."
)
@node_options
def list_(
    *,
    signer: tuple[str, ...],
    state: tuple[str, ...],
    sub_state: tuple[str, ...],
    tag: tuple[str, ...],
    chain_id: int | None,
    limit: int,
    client: Client,
    as_json: bool,
) -> None:
    """List transactions, newest first."""
    found = client.iterate(
        signer=signer, state=state, sub_state=sub_state, tag=tag, chain_id=chain_id, page_size=min(limit, 500)
    )
    txs = list(itertools.islice(found, limit))
    if as_json:
        print_json(txs)
    else:
        print_table(txs)


@tx.command()
@click.argument("name", metavar="ID")
@click.option("--from", "signer", metavar="ADDRESS", help="Treat ID as a request id of this signer.")
@click.option(
    "--include", multiple=True, type=click.Choice(_INCLUDE), help="Include this part; may be repeated."
)
@node_options
def show(
    *, name: str, signer: str | None, include: tuple[Include, ...], client: Client, as_json: bool
) -> int:
    """Show one transaction, by its id, by the hash of an attempt, or with --from by its request id."""
    found = _find(client, name, signer=signer, include=include)
    code = finish(found, as_json=as_json)
    if not as_json and found.state != "CONFIRMED":
        print_explanation(client.explain(found.tx_id))
    return code


@tx.command()
@click.argument("name", metavar="ID|HASH|REQUEST")
@click.option("--from", "signer", metavar="ADDRESS", help="Treat the name as a request id of this signer.")
@node_options
def explain(*, name: str, signer: str | None, client: Client, as_json: bool) -> int:
    """Explain why a transaction is not final: the cause, its evidence, and what to do.

    Exit code 1 if the cause does not end by itself.
    """
    is_id = signer is None and not _HASH.fullmatch(name)
    found = client.explain(name if is_id else _find(client, name, signer=signer).tx_id)
    if as_json:
        print_json(found)
    else:
        print_explanation(found)
    return NO if needs_action(found) else OK


@tx.command()
@click.argument("name", metavar="ID")
@click.option("--until", type=click.Choice(MILESTONES), default="finished", show_default=True)
@click.option(
    "--timeout",
    "timeout_s",
    type=SECONDS,
    default="10m",
    show_default=True,
    help="How long to watch at most.",
)
@node_options
def watch(*, name: str, until: Milestone, timeout_s: float, client: Client, as_json: bool) -> int:
    """Follow a transaction until it reaches a milestone.

    `finished` means CONFIRMED, FAILED or CANCELLED; `confirmed` is another name for it.
    """
    try:
        return finish(follow(client, _find(client, name), until, timeout_s=timeout_s), as_json=as_json)
    except NotReached as error:
        return not_reached(client, error, as_json=as_json)


def _add_operator_command(method: Callable[..., CommandOut]) -> None:
    """Add a subcommand for a client method, with its name and its docstring as help."""

    @tx.command(method.__name__, help=method.__doc__)
    @click.argument("tx_id", metavar="ID")
    @command_options()
    @node_options
    def run(*, tx_id: str, reason: str | None, timeout_s: float, client: Client, as_json: bool) -> int:
        command = method(client, tx_id, reason=reason, timeout_s=timeout_s)
        return describe_outcome(command, as_json=as_json)


for _method in (Client.cancel, Client.suspend, Client.resume, Client.resubmit, Client.bump):
    _add_operator_command(_method)


def _find(
    client: Client, name: str, *, signer: str | None = None, include: tuple[Include, ...] = ()
) -> TxOut:
    if signer is not None:
        return client.by_request(signer, name, include=include)
    if _HASH.fullmatch(name):
        return client.by_hash(name, include=include)
    return client.get(name, include=include)


def describe_outcome(command: CommandOut, *, as_json: bool) -> int:
    """Print a command's outcome; return exit code 1 if it is not carried out yet or changed nothing."""
    done = command.done and command.drained is not False
    applied = command.applied is not False or command.drained is True
    if as_json:
        print_json(command)
    elif done and not applied:
        click.echo(f"{command.command}: not applied: {command.outcome}")
    elif done:
        click.echo(f"{command.command}: {command.outcome}")
    else:
        click.echo(f"{command.command}: stored as command {command.command_id}, not carried out yet")
    return OK if done and applied else NO
