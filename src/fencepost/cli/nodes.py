"""`fencepost nodes`: who is at work, and for how many signers."""

from __future__ import annotations

import click

from fencepost.cli.remote import node_options, print_json
from fencepost.cli.tables import console, table
from fencepost.cli.transactions import moment
from fencepost.client import Client


@click.command()
@node_options
def nodes(*, client: Client, as_json: bool) -> None:
    """Every node that is known, those alive first."""
    found = client.nodes()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.name + (" (answers)" if one.is_this else ""),
            "alive" if one.is_live else "gone",
            one.mode,
            str(one.signers),
            moment(one.heartbeat_at),
            one.url or "",
        )
        for one in found
    ]
    console().print(table(("node", "state", "mode", "signers", "last heard of", "url"), rows))
