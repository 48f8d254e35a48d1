"""Implement `fencepost subscription …`: create and manage webhooks."""

from __future__ import annotations

import click

from fencepost.cli.node_client import NO, OK, node_options, print_json
from fencepost.cli.tx_rendering import local_time
from fencepost.client import Client, DeliveryAttemptOut, SubscriptionOut
from fencepost.events.types import EventType

_ID = click.argument("subscription_id", metavar="ID")


@click.group()
def subscription() -> None:
    """Manage subscriptions: events that are pushed to a webhook or a WebSocket."""


@subscription.command()
@click.argument("url", required=False)
@click.option(
    "--type", "kind", type=click.Choice(["webhook", "websocket"]), default="webhook", show_default=True
)
@click.option("--event", "types", multiple=True, type=click.Choice([kind.value for kind in EventType]))
@click.option(
    "--signer", "signers", multiple=True, metavar="ADDRESS", help="Only this signer; may be repeated."
)
@click.option("--tag", "tags", multiple=True, help="Only transactions with this tag; may be repeated.")
@click.option("--chain-id", type=click.IntRange(1))
@click.option("--start", default="now", show_default=True, help="now, beginning, or the id of an event.")
@click.option("--ordered", type=click.Choice(["none", "signer"]), default="none", show_default=True)
@click.option("--on-error", type=click.Choice(["block", "skip"]), default="block", show_default=True)
@node_options
def create(
    *,
    url: str | None,
    kind: str,
    types: tuple[str, ...],
    signers: tuple[str, ...],
    tags: tuple[str, ...],
    chain_id: int | None,
    start: str,
    ordered: str,
    on_error: str,
    client: Client,
    as_json: bool,
) -> None:
    """Create a subscription, and print its secret, which is shown only now."""
    made = client.create_subscription(
        url,
        type=kind,  # type: ignore[arg-type]  # click has checked the choice
        types=types or None,
        signers=signers or None,
        tags=tags,
        chain_id=chain_id,
        start=start,
        ordered=ordered,  # type: ignore[arg-type]  # click has checked the choice
        on_error=on_error,  # type: ignore[arg-type]  # click has checked the choice
    )
    _print(made, as_json=as_json)


@subscription.command("list")
@node_options
def list_all(*, client: Client, as_json: bool) -> None:
    """List the subscriptions of the API key."""
    found = client.subscriptions()
    if as_json:
        print_json(found)
        return
    for one in found:
        click.echo("  ".join([one.id, one.type, one.state, one.url or "", one.reason or ""]).rstrip())


@subscription.command()
@_ID
@click.option("--attempts", type=click.IntRange(0, 100), default=10, show_default=True)
@node_options
def show(*, subscription_id: str, attempts: int, client: Client, as_json: bool) -> None:
    """Show a subscription and its newest attempts."""
    found = client.subscription(subscription_id)
    listed = client.attempts(subscription_id, limit=attempts) if attempts else []
    if as_json:
        print_json({"subscription": found, "attempts": listed})
        return
    _print(found, as_json=False)
    for one in listed:
        click.echo(_attempt(one))


@subscription.command()
@_ID
@node_options
def pause(*, subscription_id: str, client: Client, as_json: bool) -> None:
    """Stop deliveries; the log keeps the events."""
    _print(client.pause_subscription(subscription_id), as_json=as_json)


@subscription.command()
@_ID
@click.option(
    "--start", help="Continue from now, beginning, or the id of an event; without it, at the checkpoint."
)
@node_options
def resume(*, subscription_id: str, start: str | None, client: Client, as_json: bool) -> None:
    """Start deliveries of a paused or disabled subscription."""
    _print(client.resume_subscription(subscription_id, start=start), as_json=as_json)


@subscription.command()
@_ID
@node_options
def delete(*, subscription_id: str, client: Client, as_json: bool) -> None:
    """Delete a subscription with its deliveries and attempts."""
    deleted = client.delete_subscription(subscription_id)
    if as_json:
        print_json(deleted)
    else:
        click.echo(f"deleted {deleted.id}")


@subscription.command("rotate-secret")
@_ID
@node_options
def rotate_secret(*, subscription_id: str, client: Client, as_json: bool) -> None:
    """Print a new secret, which is shown only now. For a while the former one signs, too."""
    _print(client.rotate_secret(subscription_id), as_json=as_json)


@subscription.command()
@_ID
@node_options
def test(*, subscription_id: str, client: Client, as_json: bool) -> int:
    """Send a test event, and print what the endpoint answered."""
    attempt = client.test_subscription(subscription_id)
    if as_json:
        print_json(attempt)
    else:
        click.echo(_attempt(attempt))
    return OK if attempt.error is None else NO


def _print(one: SubscriptionOut, *, as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    lines = {
        "id": one.id,
        "type": one.type,
        "url": one.url,
        "state": one.state + (f" ({one.reason})" if one.reason else ""),
        "events": ", ".join(one.filter.types) if one.filter.types is not None else "all",
        "signers": ", ".join(one.filter.signers) if one.filter.signers is not None else "all of the key",
        "tags": ", ".join(one.filter.tags),
        "order": f"{one.ordered}, {one.on_error} on error",
        "checkpoint": one.checkpoint,
        "waiting": f"{one.pending} events wait for a retry",
        "failing since": local_time(one.failing_since) if one.failing_since else "",
        "secret": one.secret or "",
    }
    for name, value in lines.items():
        if value:
            click.echo(f"{name:<14}{value}")


def _attempt(one: DeliveryAttemptOut) -> str:
    outcome = one.error or f"accepted with {one.status}"
    return f"{local_time(one.at)}  {one.event_id}  attempt {one.attempt}  {one.duration_ms} ms  {outcome}"
