"""Implement `fencepost events …`: follow the event log of a cluster."""

from __future__ import annotations

from datetime import UTC, datetime

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


@events.command()
@click.argument("subscription_id", metavar="SUBSCRIPTION")
@click.argument("event_id", metavar="[EVENT]", required=False)
@click.option("--after", help="Send all events after this id again; with --until, up to that id.")
@click.option("--until", help="The last event to send again.")
@click.option(
    "--failed-since",
    type=click.DateTime(),
    help="Send everything again that was given up since this time (UTC).",
)
@node_options
def resend(
    *,
    subscription_id: str,
    event_id: str | None,
    after: str | None,
    until: str | None,
    failed_since: datetime | None,
    client: Client,
    as_json: bool,
) -> None:
    """Send events to a webhook again: one event, a range, or everything that was given up."""
    since = None if failed_since is None else failed_since.replace(tzinfo=UTC)
    result = client.replay(subscription_id, event=event_id, after=after, until=until, failed_since=since)
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    more = f"; continue with --after {result.next}" if result.next else ""
    click.echo(f"{result.queued} events will be sent again{more}")


def _line(event: EventOut) -> str:
    data = event.data
    subject = data.tx.request_id or data.tx.tx_id if data.tx else ""
    concerned = event.signer or data.node or ""
    parts = [local_time(event.timestamp), event.type, concerned, subject, data.error or data.reason]
    return "  ".join(part for part in parts if part)
