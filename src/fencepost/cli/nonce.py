"""Implement `fencepost nonce …`: hold nonces for transactions that another program sends, and report their use.

Each report needs the token that was returned with the nonce. Exit code 1: the node rejected it (the hold has expired, or
the nonce has another transaction), or the signer never had a nonce.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from rich.text import Text

from fencepost.cli.node_client import SECONDS, node_options, print_json
from fencepost.cli.rendering import console, table
from fencepost.client import Client, NonceOut
from fencepost.nonce.port import MAX_NONCES_PER_CALL


@click.group()
def nonce() -> None:
    """Hold nonces for transactions that you send yourself, and report their use.

    Needs nonce_service.enabled at the nodes.
    """


@nonce.command()
@click.argument("address")
@click.option("--chain-id", type=int)
@click.option(
    "--count",
    type=click.IntRange(1, MAX_NONCES_PER_CALL),
    default=1,
    show_default=True,
    help="How many nonces.",
)
@click.option(
    "--hold-for",
    "hold_for_s",
    type=SECONDS,
    help="How long to hold them at least.  [default: the node's nonce_service.hold_for]",
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
    """Show how many nonces are held, submitted, consumed and released."""
    found = client.nonce_status(address, chain_id=chain_id)
    if as_json:
        print_json(found)
        return
    lines = {
        "signer": f"{found.signer} on chain {found.chain_id}",
        "allocated": f"from {found.start_nonce} on; {found.next_nonce} is the first never allocated",
        "held": f"{found.held}, {found.expired} of them expired",
        "submitted": str(found.submitted),
        "consumed": str(found.consumed),
        "released": str(found.released)
        + ("" if found.first_gap is None else f"; {found.first_gap} is allocated next"),
    }
    out = console()
    for name, value in lines.items():
        out.print(Text.assemble((f"{name:<11}", "bold"), value))


def _hold_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments that name a held nonce: signer, nonce, and the token of the hold."""
    command = click.option("--chain-id", type=int)(command)
    command = click.option("--token", required=True, help="The token that was returned with the nonce.")(
        command
    )
    command = click.argument("number", metavar="NONCE", type=click.IntRange(min=0))(command)
    return click.argument("address")(command)


@nonce.command()
@_hold_options
@click.option("--hash", "tx_hash", required=True, help="The transaction's hash.")
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
    """Report the transaction that uses the nonce. A node closes the nonce once that transaction is confirmed."""
    marked = client.mark_submitted(address, number, token=token, tx_hash=tx_hash, chain_id=chain_id)
    _print_marked(marked, "submitted", as_json=as_json)


@nonce.command()
@_hold_options
@click.option("--hash", "tx_hash", help="The transaction's hash, if known.")
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
    """Close the nonce: it is never allocated again."""
    marked = client.mark_used(address, number, token=token, tx_hash=tx_hash, chain_id=chain_id)
    _print_marked(marked, "used", as_json=as_json)


@nonce.command()
@_hold_options
@node_options
def recyclable(
    *, address: str, number: int, token: str, chain_id: int | None, client: Client, as_json: bool
) -> None:
    """Release the nonce for another allocation: it was not and will not be used."""
    marked = client.mark_recyclable(address, number, token=token, chain_id=chain_id)
    _print_marked(marked, "recyclable", as_json=as_json)


def _print_marked(marked: NonceOut, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json(marked)
    else:
        click.echo(f"nonce {marked.nonce}: {state}")
