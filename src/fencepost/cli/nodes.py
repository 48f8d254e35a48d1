"""Implement `fencepost nodes`: list the nodes and how many signers each one serves."""

from __future__ import annotations

import click

from fencepost.cli.node_client import node_options, print_json
from fencepost.cli.rendering import console, table
from fencepost.cli.tx_rendering import local_time
from fencepost.client import Client


@click.command()
@node_options
def nodes(*, client: Client, as_json: bool) -> None:
    """List all known nodes, live ones first."""
    found = client.nodes()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.name + (" (this node)" if one.is_this else ""),
            "live" if one.is_live else "dead",
            one.mode,
            str(one.signers),
            local_time(one.heartbeat_at),
            one.url or "",
        )
        for one in found
    ]
    console().print(table(("node", "state", "mode", "signers", "last heartbeat", "url"), rows))
