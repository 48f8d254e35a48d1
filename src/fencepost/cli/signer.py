"""Implement `fencepost signer …`: list and show signers, add keys, and run operator commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.text import Text

from fencepost.cli.explaining import needs_action, print_explanation
from fencepost.cli.node_client import NO, OK, command_options, node_options, print_json
from fencepost.cli.options import settings_options
from fencepost.cli.rendering import console, table
from fencepost.cli.tx import describe_outcome
from fencepost.client import Client, CommandOut, SignerOut
from fencepost.client.amounts import in_ether
from fencepost.client.endpoints import Decision
from fencepost.errors import SettingError
from fencepost.schemas.responses import ChainNonces
from fencepost.settings import Loaded

_STYLES = {"ACTIVE": "green", "PAUSED": "yellow", "PROTECT": "red"}


@click.group()
def signer() -> None:
    """List and show signers, add keys, and run operator commands.

    A node serves the signers whose keys it has: FENCEPOST_KEY_…, keys.file, keys.keystore_dir or keys.remote_url. Keys
    are never sent over the network: `add` writes to a key file on this machine.
    """


@signer.command()
@click.option("--generate", is_flag=True, help="Generate a new key instead of prompting for one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def add(*, generate: bool, as_json: bool, loaded: Loaded) -> None:
    """Add a key to the key file of this machine's nodes (keys.file). Restart them to use it."""
    from coincurve import PrivateKey

    from fencepost.adapters.signers.keyfile import add_key
    from fencepost.adapters.signers.local import parse_private_key

    if not loaded.settings.keys.file:
        raise SettingError("no key file is configured: use --set keys.file=PATH or set FENCEPOST_KEYS_FILE")
    path = Path(loaded.settings.keys.file)
    if generate:
        key = PrivateKey()
    else:
        typed = click.prompt("private key (hex)", hide_input=True, err=True)
        key = parse_private_key(typed.strip(), where="the input")
    address = add_key(path, key)
    if as_json:
        print_json({"address": address, "file": str(path)})
    else:
        click.echo(f"{address} is in {path}; restart the nodes to use it")


@signer.command("list")
@node_options
def list_(*, client: Client, as_json: bool) -> None:
    """List all signers that have a key at the node or rows in the database."""
    found = list(client.signers(page_size=500))
    if as_json:
        print_json(found)
        return
    columns = ("signer", "chain", "state", "mode", "queued", "in flight", "suspended", "lease holder")
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
    """Show one signer, with its balance and nonces on the chain."""
    one = client.signer(address, chain_id=chain_id)
    if as_json:
        print_json(one)
        return
    lines = {
        "signer": f"{one.address} on chain {one.chain_id}",
        "state": one.state + (f": {one.reason}" if one.reason else ""),
        "mode": f"{one.mode}, at most {one.max_in_flight} in flight",
        "key": "at this node" if one.has_key else "not at this node",
        "waiting": f"{one.queued} queued, {one.in_flight} in flight, {one.suspended} suspended",
    }
    if one.lease is not None and one.lease.held:
        lines["lease"] = f"held by {one.lease.owner}, fencing token {one.lease.token}"
    if isinstance(one.next_nonce, int):
        lines["next nonce"] = str(one.next_nonce)
    if isinstance(one.chain_nonces, ChainNonces):
        lines["chain nonce"] = f"latest {one.chain_nonces.latest}, pending {one.chain_nonces.pending}"
    if isinstance(one.balance_wei, str):
        lines["balance"] = f"{in_ether(int(one.balance_wei))} ether"
    if isinstance(one.chain_error, str):
        lines["chain"] = one.chain_error
    head = next((chain for chain in client.status().chains if chain.chain_id == one.chain_id), None)
    if head is not None and head.head is not None:
        lines["head"] = f"block {head.head}, unchanged for {head.head_still_for_s or 0:.0f} s"
    out = console()
    for name, value in lines.items():
        out.print(Text.assemble((f"{name:<14}", "bold"), value))
    print_explanation(client.explain_signer(address, chain_id=chain_id))


@signer.command()
@click.argument("address")
@click.option("--chain-id", type=int)
@node_options
def explain(*, address: str, chain_id: int | None, client: Client, as_json: bool) -> int:
    """Explain why a signer does not send. Exit code 1 if the cause does not end by itself."""
    found = client.explain_signer(address, chain_id=chain_id)
    if as_json:
        print_json(found)
    else:
        print_explanation(found)
    return NO if needs_action(found) else OK


def _add_operator_command(method: Callable[..., CommandOut], *, timeout: str = "5s") -> None:
    """Add a subcommand for a client method, with its name and its docstring as help."""

    @signer.command(method.__name__.removesuffix("_signer"), help=method.__doc__)
    @click.argument("address")
    @click.option("--chain-id", type=int)
    @command_options(timeout=timeout)
    @node_options
    def run(
        *,
        address: str,
        chain_id: int | None,
        reason: str | None,
        timeout_s: float,
        client: Client,
        as_json: bool,
    ) -> int:
        command = method(client, address, chain_id=chain_id, reason=reason, timeout_s=timeout_s)
        return describe_outcome(command, as_json=as_json)


_add_operator_command(Client.pause_signer)
_add_operator_command(Client.resume_signer)
_add_operator_command(Client.drain_signer, timeout="30s")
_add_operator_command(Client.protect_signer)


@signer.command()
@click.argument("address")
@click.option("--chain-id", type=int)
@click.option("--decision", type=click.Choice(["adopt", "keep", "fill"]), required=True,
              help="Continue from the chain's nonce (adopt), from Fencepost's cursor (keep), or from the cursor after filling the nonce gap (fill).")  # fmt: skip
@command_options(needs_reason=True)
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
    """End PROTECT, with a decision about the nonce and a reason."""
    command = client.unprotect_signer(
        address, decision=decision, chain_id=chain_id, reason=reason, timeout_s=timeout_s
    )
    return describe_outcome(command, as_json=as_json)
