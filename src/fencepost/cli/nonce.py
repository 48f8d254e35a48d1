"""`fencepost nonce …`: hold nonces of a signer whose transactions are sent elsewhere, and tell what became of them.

A mark needs the token that came with its nonce. One that is refused, because the hold is over or the nonce has another
transaction, is exit code 1, like a signer that never had a nonce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from rich.text import Text

from fencepost.cli.remote import SECONDS, node_options, print_json
from fencepost.cli.tables import console, table
from fencepost.client import Client, NonceOut
from fencepost.nonce.port import MOST_AT_ONCE


@click.group()
def nonce() -> None:
    """Hold nonces of a signer whose transactions you send yourself, and tell what became of them.

    The nodes need nonce_service.enabled.
    """


@nonce.command()
@click.argument("address")
@click.option("--chain-id", type=int)
@click.option("--count", type=click.IntRange(1, MOST_AT_ONCE), default=1, show_default=True, help="How many.")
@click.option(
    "--hold-for",
    "hold_for_s",
    type=SECONDS,
    help="For how long at least.  [default: the node's nonce_service.hold_for]",
)
@node_options
def allocate(
    *,
    address: str,
    chain_id: int | None,
    count: int,
    hold_for_s: float | None,
    client: Client,
    as_json: bool,
) -> None:
    """Hold nonces, released ones first. Keep the tokens: they are not shown again."""
    held = client.allocate_nonces(address, count=count, hold_for_s=hold_for_s, chain_id=chain_id)
    if as_json:
        print_json(held)
    else:
        console().print(table(("nonce", "token"), [(str(one.nonce), one.token) for one in held.items]))


@nonce.command()
@click.argument("address")
@click.option("--chain-id", type=int)
@node_options
def status(*, address: str, chain_id: int | None, client: Client, as_json: bool) -> None:
    """How many nonces are held, submitted, consumed and released."""
    found = client.nonce_status(address, chain_id=chain_id)
    if as_json:
        print_json(found)
        return
    lines = {
        "signer": f"{found.signer} on chain {found.chain_id}",
        "given": f"from {found.start_nonce} up, {found.next_nonce} is the first that was never given",
        "held": f"{found.held}, of {found.expired} the time is over",
        "submitted": str(found.submitted),
        "consumed": str(found.consumed),
        "released": str(found.released)
        + ("" if found.first_gap is None else f", {found.first_gap} is given next"),
    }
    out = console()
    for name, value in lines.items():
        out.print(Text.assemble((f"{name:<11}", "bold"), value))


def _of_a_hold(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which nonce, of whom, and the token that shows whose it is."""
    command = click.option("--chain-id", type=int)(command)
    command = click.option("--token", required=True, help="What came with the nonce.")(command)
    command = click.argument("number", metavar="NONCE", type=click.IntRange(min=0))(command)
    return click.argument("address")(command)


@nonce.command()
@_of_a_hold
@click.option("--hash", "tx_hash", required=True, help="Of the transaction.")
@node_options
def submitted(
    *,
    address: str,
    number: int,
    token: str,
    tx_hash: str,
    chain_id: int | None,
    client: Client,
    as_json: bool,
) -> None:
    """Tell which transaction has the nonce; it is closed by itself when that is mined to depth."""
    marked = client.mark_submitted(address, number, token=token, tx_hash=tx_hash, chain_id=chain_id)
    _told(marked, "submitted", as_json=as_json)


@nonce.command()
@_of_a_hold
@click.option("--hash", "tx_hash", help="Of the transaction, if it is known.")
@node_options
def used(
    *,
    address: str,
    number: int,
    token: str,
    tx_hash: str | None,
    chain_id: int | None,
    client: Client,
    as_json: bool,
) -> None:
    """Close the nonce: it never comes back."""
    marked = client.mark_used(address, number, token=token, tx_hash=tx_hash, chain_id=chain_id)
    _told(marked, "used", as_json=as_json)


@nonce.command()
@_of_a_hold
@node_options
def recyclable(
    *, address: str, number: int, token: str, chain_id: int | None, client: Client, as_json: bool
) -> None:
    """Give the nonce back: it was not and will not be used."""
    marked = client.mark_recyclable(address, number, token=token, chain_id=chain_id)
    _told(marked, "recyclable", as_json=as_json)


def _told(marked: NonceOut, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json(marked)
    else:
        click.echo(f"nonce {marked.nonce}: {state}")
