"""Implement `fencepost status`: one screen that says what is wrong anywhere."""

from __future__ import annotations

import click
from rich.text import Text

from fencepost.cli.explaining import needs_action
from fencepost.cli.node_client import NO, OK, node_options, print_json
from fencepost.cli.rendering import console, table
from fencepost.client import Client, ClusterStatusOut

MAX_SIGNERS_SHOWN = 15


@click.command()
@node_options
def status(*, client: Client, as_json: bool) -> int:
    """Show what is wrong anywhere: database, chains, endpoints, nodes and signers.

    Exit code 1 if something needs an operator.
    """
    found = client.status()
    if as_json:
        print_json(found)
    else:
        _print(found)
    return OK if found.ok else NO


def _print(found: ClusterStatusOut) -> None:
    out = console()
    if found.ok:
        out.print(Text("nothing is wrong", "bold green"))
    for problem in found.problems:
        out.print(Text.assemble(("problem  ", "bold red"), problem))
    out.print(
        Text.assemble(("database ", "bold"), found.database_error or f"writable, seen by node {found.node}")
    )
    for chain in found.chains:
        still = "" if chain.head_still_for_s is None else f", unchanged for {chain.head_still_for_s:.0f} s"
        head = "no endpoint answers" if chain.head is None else f"head {chain.head}{still}"
        out.print(Text.assemble(("chain    ", "bold"), f"{chain.chain_id}: {head}"))
        for endpoint in chain.endpoints:
            state = (
                f"head {endpoint.head}, lag {endpoint.lag}"
                if endpoint.up
                else f"{endpoint.trouble}: {endpoint.error}"
            )
            out.print(Text(f"         {endpoint.endpoint}: {state}", "" if endpoint.up else "red"))
    for node in found.nodes:
        state = "live" if node.is_live else "gone"
        this = ", this node" if node.is_this else ""
        line = f"{node.name}: {state}, {node.signers} signers{this}"
        out.print(Text.assemble(("node     ", "bold"), (line, "" if node.is_live else "red")))
    if found.signers:
        rows = [
            (
                one.address,
                str(one.chain_id),
                one.state,
                str(one.in_flight),
                str(one.queued),
                Text(one.explanation.cause, "red" if needs_action(one.explanation) else "green"),
            )
            for one in found.signers[:MAX_SIGNERS_SHOWN]
        ]
        out.print(table(("signer", "chain", "state", "in flight", "queued", "cause"), rows))
    more = found.more_signers + max(0, len(found.signers) - MAX_SIGNERS_SHOWN)
    if more:
        click.echo(f"{more} more signers have work: fencepost signer list")
    for one in [one for one in found.signers if needs_action(one.explanation)][:1]:
        for action in one.explanation.actions[:3]:
            out.print(Text.assemble(("do       ", "bold"), action.command), soft_wrap=True)
            out.print(Text(f"         {action.consequence}"))
