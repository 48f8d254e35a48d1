"""Implement `fencepost fees`: show what each fee tier pays now."""

from __future__ import annotations

import click

from fencepost.cli.node_client import node_options, print_json
from fencepost.cli.rendering import console, table
from fencepost.client import Client

_WEI_PER_GWEI = 10**9


@click.command()
@click.argument("chain_id", type=click.IntRange(1), required=False)
@node_options
def fees(*, chain_id: int | None, client: Client, as_json: bool) -> None:
    """Show what a request without a price pays now on a chain (by default the node's default chain), by tier."""
    found = client.chain_fees(client.version().default_chain_id if chain_id is None else chain_id)
    if as_json:
        print_json(found)
        return
    rows = [
        (name, _gwei(tier.max_fee_per_gas), _gwei(tier.max_priority_fee_per_gas))
        for name, tier in (
            ("slow", found.slow),
            ("normal", found.normal),
            ("fast", found.fast),
            ("urgent", found.urgent),
        )
    ]
    out = console()
    out.print(table(("tier", "max fee (Gwei)", "priority fee (Gwei)"), rows))
    used = (
        found.source if found.source == found.configured else f"{found.source} instead of {found.configured}"
    )
    out.print(f"chain {found.chain_id}, source: {used}, cap: {_gwei(found.cap)} Gwei")


def _gwei(wei: str) -> str:
    whole, rest = divmod(int(wei), _WEI_PER_GWEI)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")
