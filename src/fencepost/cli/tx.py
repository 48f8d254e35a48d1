"""`fencepost tx …`: look at transactions, watch one, and ask something of one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import get_args

import click

from fencepost.cli.remote import NO, OK, SECONDS, node_options, print_json, wish_options
from fencepost.cli.transactions import MILESTONES, finish, follow, not_reached, print_table
from fencepost.client import Client, CommandOut, TxOut, Until
from fencepost.client.calls import Include
from fencepost.client.errors import NotReached
from fencepost.domain.states import State, SubState

_HASH = re.compile(r"0[xX][0-9a-fA-F]{64}")
_INCLUDE: tuple[Include, ...] = get_args(Include)


@click.group()
def tx() -> None:
    """Look at transactions, watch one, and ask something of one."""


@tx.command("list")
@click.option("--signer", multiple=True, metavar="ADDRESS", help="Only these; may be repeated.")
@click.option(
    "--state", multiple=True, type=click.Choice([state.value for state in State], case_sensitive=False)
)
@click.option(
    "--sub-state", multiple=True, type=click.Choice([state.value for state in SubState], case_sensitive=False)
)
@click.option("--tag", multiple=True, help="All of them must be there; may be repeated.")
@click.option("--chain-id", type=int)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="How many at most."
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
    """Transactions, the newest first."""
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
@click.option("--from", "signer", metavar="ADDRESS", help="ID is a request id of this signer.")
@click.option(
    "--include", multiple=True, type=click.Choice(_INCLUDE), help="Also tell this; may be repeated."
)
@node_options
def show(
    *, name: str, signer: str | None, include: tuple[Include, ...], client: Client, as_json: bool
) -> int:
    """One transaction, by its id, by a hash of it, or with --from by its request id."""
    found = _find(client, name, signer=signer, include=include)
    return finish(found, as_json=as_json)


@tx.command()
@click.argument("name", metavar="ID")
@click.option("--until", type=click.Choice(MILESTONES), default="confirmed", show_default=True)
@click.option(
    "--timeout", "timeout_s", type=SECONDS, default="10m", show_default=True, help="Watch no longer."
)
@node_options
def watch(*, name: str, until: Until, timeout_s: float, client: Client, as_json: bool) -> int:
    """Follow a transaction until it has come that far; "confirmed" is any end."""
    try:
        return finish(follow(client, _find(client, name), until, timeout_s=timeout_s), as_json=as_json)
    except NotReached as error:
        return not_reached(error, as_json=as_json)


def _add_wish(ask: Callable[..., CommandOut]) -> None:
    """A command of the client's name for it, with the client's words."""

    @tx.command(ask.__name__, help=ask.__doc__)
    @click.argument("tx_id", metavar="ID")
    @wish_options()
    @node_options
    def wish(*, tx_id: str, reason: str | None, timeout_s: float, client: Client, as_json: bool) -> int:
        return told(ask(client, tx_id, reason=reason, timeout_s=timeout_s), as_json=as_json)


for _ask in (Client.cancel, Client.suspend, Client.resume, Client.resubmit, Client.bump):
    _add_wish(_ask)


def _find(
    client: Client, name: str, *, signer: str | None = None, include: tuple[Include, ...] = ()
) -> TxOut:
    if signer is not None:
        return client.by_request(signer, name, include=include)
    if _HASH.fullmatch(name):
        return client.by_hash(name, include=include)
    return client.get(name, include=include)


def told(command: CommandOut, *, as_json: bool) -> int:
    """What became of a wish. Not carried out yet is 1: the wish stands, but whoever asked should know."""
    done = command.done and command.drained is not False
    if as_json:
        print_json(command)
    elif done:
        click.echo(f"{command.command}: {command.outcome}")
    else:
        click.echo(f"{command.command}: asked as command {command.command_id}, not carried out yet")
    return OK if done else NO
