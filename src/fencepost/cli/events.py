"""Implement `fencepost events …`: follow the event log of a cluster."""

from __future__ import annotations

import click
import msgspec

from fencepost.cli.node_client import node_options
from fencepost.cli.tx_rendering import local_time
from fencepost.client import Client
from fencepost.events.types import EventType
from fencepost.schemas.events import AFTER_NOW, EventOut


@click.group()
def events() -> None:
    """Follow what happens to transactions and signers."""


@events.command()
@click.option("--type", "types", multiple=True, type=click.Choice([kind.value for kind in EventType]))
@click.option(
    "--signer", "signers", multiple=True, metavar="ADDRESS", help="Only this signer; may be repeated."
)
@click.option(
    "--after",
    default=AFTER_NOW,
    show_default=True,
    help="Start after this event id; an empty value starts with the oldest kept event.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many events.")
@node_options
def tail(
    *,
    types: tuple[str, ...],
    signers: tuple[str, ...],
    after: str,
    limit: int | None,
    client: Client,
    as_json: bool,
) -> None:
    """Print events as they happen, one per line, until interrupted."""
    stream = client.events(after, types=types, signers=signers)
    for count, event in enumerate(stream, start=1):
        click.echo(msgspec.json.encode(event).decode() if as_json else _line(event))
        if count == limit:
            return


def _line(event: EventOut) -> str:
    data = event.data
    subject = data.tx.request_id or data.tx.tx_id if data.tx else ""
    parts = [local_time(event.timestamp), event.type, event.signer or "", subject, data.error or data.reason]
    return "  ".join(part for part in parts if part)
