"""Implement `fencepost events …`: follow the event log of a cluster."""

from __future__ import annotations

import http.client
import time
from datetime import UTC, datetime
from urllib.parse import SplitResult, urlsplit

import click
import msgspec

from fencepost.cli.node_client import node_options
from fencepost.cli.tx_rendering import local_time
from fencepost.client import Client
from fencepost.events.signatures import new_secret, parse_secret, secret_text, signed_headers
from fencepost.events.types import EventType
from fencepost.schemas.events import AFTER_NOW, EventOut

FORWARD_TIMEOUT_S = 15.0


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
@click.option(
    "--forward-to", "url", required=True, metavar="URL", help="The endpoint that gets each event as a POST."
)
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
@click.option("--secret", help="The secret that signs, as whsec_…; without it a new one is printed.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many events.")
@node_options
def listen(
    *,
    url: str,
    types: tuple[str, ...],
    signers: tuple[str, ...],
    after: str,
    secret: str | None,
    limit: int | None,
    client: Client,
    as_json: bool,
) -> None:
    """Forward events to a URL, signed like webhooks, to try a receiver without a subscription.

    Each event is sent once, in order; a failure is printed and the next event follows.
    """
    try:
        key = new_secret() if secret is None else parse_secret(secret)
    except ValueError as error:
        raise click.UsageError(f"--secret: {error}") from None
    target = urlsplit(url)
    if target.scheme not in {"http", "https"} or not target.hostname:
        raise click.UsageError("--forward-to must be an http or https URL")
    if secret is None:
        click.echo(f"the signing secret of this run is {secret_text(key)}", err=True)
    for count, event in enumerate(client.events(after, types=types, signers=signers), start=1):
        result = _forward(target, key, event)
        if as_json:
            click.echo(msgspec.json.encode({"id": event.id, "type": event.type, "result": result}).decode())
        else:
            click.echo(f"{_line(event)}  → {result}")
        if count == limit:
            return


def _forward(target: SplitResult, key: bytes, event: EventOut) -> str:
    """Send one event, and return the status or the error. Redirects are not followed, as for webhooks."""
    body = msgspec.json.encode(event)
    headers = signed_headers([key], message_id=event.id, timestamp=int(time.time()), body=body)
    connect = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = connect(target.hostname or "", target.port, timeout=FORWARD_TIMEOUT_S)
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    try:
        connection.request("POST", path, body, {"content-type": "application/json", **headers})
        return str(connection.getresponse().status)
    except (OSError, http.client.HTTPException) as error:
        return f"no answer ({type(error).__name__})"
    finally:
        connection.close()


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
