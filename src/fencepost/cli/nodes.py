"""`fencepost nodes`: which processes hold signers now."""

from __future__ import annotations

import click

from fencepost.cli.remote import node_options, print_json
from fencepost.cli.tables import console, table
from fencepost.cli.transactions import moment
from fencepost.client import Client


@click.command()
@node_options
def nodes(*, client: Client, as_json: bool) -> None:
    """The node that answers, and the others that hold a signer now."""
    found = client.nodes()
    if as_json:
        print_json(found)
        return
    rows = [
        (one.name, str(one.signers), moment(one.held_until), "answers" if one.is_this else "")
        for one in found
    ]
    console().print(table(("node", "signers", "held until", ""), rows))
