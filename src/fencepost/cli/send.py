"""`fencepost send` and `fencepost call-contract`: hand a transaction to a node, and see it through if wanted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from fencepost.cli.arguments import arguments
from fencepost.cli.remote import SECONDS, WEI, node_options
from fencepost.cli.transactions import MILESTONES, finish, follow, not_reached
from fencepost.client import Asked, Client, Until
from fencepost.client.errors import NotReached


def _transaction_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What both have in common, gathered into one `asked: Asked`, and how far to follow it."""

    @click.option("--from", "signer", required=True, metavar="ADDRESS", help="The signer.")
    @click.option("--value", type=WEI, default=0, help="Such as 0.1ether, 5gwei, or wei.")
    @click.option("--request-id", help="Your own name of it: sent again, it is the same transaction.")
    @click.option("--chain-id", type=int, help="Another chain than the node's default.")
    @click.option("--gas", type=click.IntRange(21_000), help="The gas limit; without it the node estimates.")
    @click.option("--max-fee", type=WEI, help="The most to pay a gas, such as 30gwei.")
    @click.option("--max-priority-fee", type=WEI, help="The tip a gas; together with --max-fee.")
    @click.option("--valid-for", type=SECONDS, help="Drop it if it has no nonce by then, such as 10m.")
    @click.option("--tag", "tags", multiple=True, help="To find it again; may be repeated.")
    @click.option("--wait", "until", type=click.Choice(MILESTONES), help="Return when it has come that far.")
    @click.option("--timeout", type=SECONDS, default="2m", show_default=True, help="Wait no longer.")
    @node_options
    @functools.wraps(command)
    def with_transaction(**options: Any) -> int:
        names = ("signer", "request_id", "chain_id", "gas")
        fees = {"max_fee": "max_fee_per_gas_wei", "max_priority_fee": "max_priority_fee_per_gas_wei"}
        asked: dict[str, Any] = {name: options.pop(name) for name in names}
        asked |= {own: options.pop(name) for name, own in fees.items()}
        asked |= {"value_wei": options.pop("value"), "tags": options.pop("tags")}
        valid_for_s = options.pop("valid_for")
        if valid_for_s is not None:
            asked["valid_until"] = datetime.now(UTC) + timedelta(seconds=valid_for_s)
        ways = {name: options.pop(name) for name in ("client", "until", "timeout", "as_json")}
        asked |= command(**options)
        return _send(asked, **ways)  # type: ignore[arg-type]  # a dictionary with its keys, put together above

    return with_transaction


@click.command()
@click.option("--to", metavar="ADDRESS", help="The receiver; without one, --data is deployed.")
@click.option("--data", default="0x", metavar="HEX", help="Calldata, or the code to deploy.")
@_transaction_options
def send(*, to: str | None, data: str) -> dict[str, Any]:
    """Send a transaction: value, calldata, or a contract to deploy."""
    if to is None and data in ("", "0x"):
        raise click.UsageError("give --to, or --data with the code to deploy")
    return {"to": to, "data": data}


@click.command("call-contract")
@click.argument("address")
@click.argument("signature")
@click.argument("words", nargs=-1, metavar="[ARG]...")
@_transaction_options
def call_contract(*, address: str, signature: str, words: tuple[str, ...]) -> dict[str, Any]:
    """Send a call of a contract's method, such as "transfer(address,uint256)".

    Arrays and tuples are written as JSON. Put -- before the first argument if one begins with a minus.
    """
    return {"to": address, "method": signature, "args": arguments(signature, words)}


def _send(asked: Asked, *, client: Client, until: Until | None, timeout: float, as_json: bool) -> int:
    tx = client.send(**asked)
    if until is not None:
        try:
            tx = follow(client, tx, until, timeout_s=timeout)
        except NotReached as error:
            return not_reached(error, as_json=as_json)
    return finish(tx, as_json=as_json)
