"""`fencepost signer …`: look at signers, and ask something of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.text import Text

from fencepost.cli.options import settings_options
from fencepost.cli.remote import node_options, print_json, wish_options
from fencepost.cli.tables import console, table
from fencepost.cli.tx import told
from fencepost.client import Client, CommandOut, SignerOut
from fencepost.client.amounts import in_ether
from fencepost.client.calls import Decision
from fencepost.errors import SettingError
from fencepost.settings import Loaded

_STYLES = {"ACTIVE": "green", "PAUSED": "yellow", "PROTECT": "red"}


@click.group()
def signer() -> None:
    """Look at signers, and ask something of one.

    A node has the signers whose keys it has: FENCEPOST_KEY_…, keys.file, keys.keystore_dir or keys.remote_url. Keys
    never go over the network: `add` writes into a key file on this machine.
    """


@signer.command()
@click.option("--generate", is_flag=True, help="Make a new key, instead of asking for one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def add(*, generate: bool, as_json: bool, loaded: Loaded) -> None:
    """Add a key to the key file of this machine's nodes (keys.file); they have it after a restart."""
    from coincurve import PrivateKey

    from fencepost.adapters.signers.keyfile import add_key
    from fencepost.adapters.signers.local import parse_private_key

    if not loaded.settings.keys.file:
        raise SettingError("no key file is configured: give --set keys.file=PATH, or set FENCEPOST_KEYS_FILE")
    path = Path(loaded.settings.keys.file)
    if generate:
        key = PrivateKey()
    else:
        typed = click.prompt("private key (hex)", hide_input=True, err=True)
        key = parse_private_key(typed.strip(), where="what was typed")
    address = add_key(path, key)
    if as_json:
        print_json({"address": address, "file": str(path)})
    else:
        click.echo(f"{address} is in {path}; nodes have it after a restart")


@signer.command("list")
@node_options
def list_(*, client: Client, as_json: bool) -> None:
    """All signers with a key or a past."""
    found = list(client.signers(page_size=500))
    if as_json:
        print_json(found)
        return
    columns = ("signer", "chain", "state", "mode", "queued", "in flight", "suspended", "held by")
    console().print(table(columns, [_row(one) for one in found]))


def _row(one: SignerOut) -> tuple[str | Text, ...]:
    return (
        one.address,
        str(one.chain_id),
        Text(one.state, _STYLES.get(one.state, "")),
        one.mode,
        str(one.queued),
        str(one.in_flight),
        str(one.suspended),
        one.lease.owner if one.lease is not None and one.lease.held else "",
    )


@signer.command()
@click.argument("address")
@click.option("--chain-id", type=int)
@node_options
def show(*, address: str, chain_id: int | None, client: Client, as_json: bool) -> None:
    """One signer, with what the chain says about it."""
    one = client.signer(address, chain_id=chain_id)
    if as_json:
        print_json(one)
        return
    lines = {
        "signer": f"{one.address} on chain {one.chain_id}",
        "state": one.state + (f": {one.reason}" if one.reason else ""),
        "mode": f"{one.mode}, at most {one.max_in_flight} in flight",
        "key": "here" if one.has_key else "not at this node",
        "waiting": f"{one.queued} queued, {one.in_flight} in flight, {one.suspended} suspended",
    }
    if one.lease is not None and one.lease.held:
        lines["held by"] = f"{one.lease.owner}, token {one.lease.token}"
    if isinstance(one.next_nonce, int):
        lines["next nonce"] = str(one.next_nonce)
    if isinstance(one.balance_wei, str):
        lines["balance"] = f"{in_ether(int(one.balance_wei))} ether"
    if isinstance(one.chain_error, str):
        lines["chain"] = one.chain_error
    out = console()
    for name, value in lines.items():
        out.print(Text.assemble((f"{name:<11}", "bold"), value))


def _add_wish(ask: Callable[..., CommandOut], *, timeout: str = "5s") -> None:
    """A command of the client's name for it, with the client's words."""

    @signer.command(ask.__name__.removesuffix("_signer"), help=ask.__doc__)
    @click.argument("address")
    @click.option("--chain-id", type=int)
    @wish_options(timeout=timeout)
    @node_options
    def wish(
        *,
        address: str,
        chain_id: int | None,
        reason: str | None,
        timeout_s: float,
        client: Client,
        as_json: bool,
    ) -> int:
        done = ask(client, address, chain_id=chain_id, reason=reason, timeout_s=timeout_s)
        return told(done, as_json=as_json)


_add_wish(Client.pause_signer)
_add_wish(Client.resume_signer)
_add_wish(Client.drain_signer, timeout="30s")
_add_wish(Client.protect_signer)


@signer.command()
@click.argument("address")
@click.option("--chain-id", type=int)
@click.option("--decision", type=click.Choice(["adopt", "keep", "fill"]), required=True,
              help="Go on from the chain's nonce, from ours, or from ours with the hole below it filled.")  # fmt: skip
@wish_options(needs_reason=True)
@node_options
def unprotect(
    *,
    address: str,
    chain_id: int | None,
    decision: Decision,
    reason: str,
    timeout_s: float,
    client: Client,
    as_json: bool,
) -> int:
    """Go on after PROTECT, with a decision about the nonce and the reason for it."""
    done = client.unprotect_signer(
        address, decision=decision, chain_id=chain_id, reason=reason, timeout_s=timeout_s
    )
    return told(done, as_json=as_json)
