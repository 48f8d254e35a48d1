"""Implement `fencepost send` and `fencepost call-contract`: submit a transaction and optionally wait for a milestone.

The request id is printed before the first attempt and repeated in every error. An interrupted command that is run again
with the same id is the same request and cannot send twice.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import click

from fencepost.cli.arguments import arguments
from fencepost.cli.artifacts import constructor_signature, method_signature, read_artifact
from fencepost.cli.node_client import FAILURE, OUTCOME_UNKNOWN, SECONDS, WEI, node_options
from fencepost.cli.tx_rendering import MILESTONES, finish, follow, not_reached
from fencepost.client import Client, Milestone, SendParams, TxOut
from fencepost.client.errors import ClientError, NotReached, RequestConflict
from fencepost.domain.fees import FeeTier
from fencepost.errors import InvalidRequest

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def _request_id(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    if value is not None and not value.strip():
        raise click.BadParameter(
            "it is empty: give an id, or leave the option out for a random one", ctx, param
        )
    return uuid4().hex if value is None else value


def _transaction_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that both commands share, collect them into `SendParams`, and send."""

    @click.option("--from", "signer", required=True, metavar="ADDRESS", help="The signer's address.")
    @click.option("--value", type=WEI, default=0, help="Amount to send: 0.1ether, 5gwei, or a number of wei.")
    @click.option(
        "--request-id",
        callback=_request_id,
        help="Your id for the request; repeating it cannot send twice.  [default: random]",
    )
    @click.option("--chain-id", type=int, help="Chain to send on.  [default: the node's default chain]")
    @click.option("--gas", type=click.IntRange(21_000), help="Gas limit.  [default: estimated by the node]")
    @click.option("--max-fee", type=WEI, help="Maximum fee per gas, such as 30gwei.")
    @click.option("--max-priority-fee", type=WEI, help="Maximum priority fee per gas; needs --max-fee.")
    @click.option(
        "--tier",
        "fee_tier",
        type=click.Choice([tier.value for tier in FeeTier]),
        help="Pay the suggested price of this tier.",
    )
    @click.option(
        "--valid-for", type=SECONDS, help="Drop the request if it has no nonce after this time, such as 10m."
    )
    @click.option("--tag", "tags", multiple=True, help="Tag to search for later; may be repeated.")
    @click.option(
        "--wait",
        "until",
        type=click.Choice(MILESTONES),
        help="Wait until the transaction reaches this milestone.",
    )
    @click.option(
        "--timeout", type=SECONDS, default="2m", show_default=True, help="How long to wait at most."
    )
    @node_options
    @functools.wraps(command)
    def with_transaction(**options: Any) -> int:
        names = ("signer", "request_id", "chain_id", "gas", "fee_tier")
        fees = {"max_fee": "max_fee_per_gas_wei", "max_priority_fee": "max_priority_fee_per_gas_wei"}
        params: dict[str, Any] = {name: options.pop(name) for name in names}
        params |= {key: options.pop(name) for name, key in fees.items()}
        params |= {"value_wei": options.pop("value"), "tags": options.pop("tags")}
        valid_for_s = options.pop("valid_for")
        if valid_for_s is not None:
            params["valid_until"] = datetime.now(UTC) + timedelta(seconds=valid_for_s)
        behaviour = {name: options.pop(name) for name in ("client", "until", "timeout", "as_json")}
        params |= command(**options)
        return _send(params, **behaviour)  # type: ignore[arg-type]  # the keys are those of SendParams

    return with_transaction


@click.command()
@click.option("--to", metavar="ADDRESS", help="Receiver; without it, --data is deployed as a contract.")
@click.option("--data", default="0x", metavar="HEX", help="Calldata, or the code to deploy.")
@_transaction_options
def send(*, to: str | None, data: str) -> dict[str, Any]:
    """Send a transaction: transfer value, send calldata, or deploy a contract."""
    if to is None and data in ("", "0x"):
        raise click.UsageError("give --to, or --data with the code to deploy")
    return {"to": to, "data": data}


@click.command("call-contract")
@click.argument("address")
@click.argument("signature")
@click.argument("words", nargs=-1, metavar="[ARG]...")
@click.option(
    "--abi",
    "abi_file",
    type=_FILE,
    help="A file with the contract's ABI, or an artifact of Foundry or Hardhat.",
)
@_transaction_options
def call_contract(
    *, address: str, signature: str, words: tuple[str, ...], abi_file: Path | None
) -> dict[str, Any]:
    """Send a transaction that calls a contract method, such as "transfer(address,uint256)".

    With --abi the method may be a name, such as transfer. Write arrays and tuples as JSON. Put -- before the first argument
    if one starts with a minus.
    """
    if abi_file is not None and "(" not in signature:
        signature = method_signature(read_artifact(abi_file).abi, signature, len(words))
    return {"to": address, "method": signature, "args": arguments(signature, words)}


@click.command()
@click.argument("artifact", type=_FILE)
@click.argument("words", nargs=-1, metavar="[ARG]...")
@_transaction_options
def deploy(*, artifact: Path, words: tuple[str, ...]) -> dict[str, Any]:
    """Deploy a contract from an artifact of Foundry or Hardhat, with the arguments of its constructor.

    With --wait=mined or later, the contract's address is printed.
    """
    found = read_artifact(artifact)
    if not found.bytecode:
        raise InvalidRequest(f"{artifact} has no bytecode", field="artifact")
    constructor = constructor_signature(found.abi)
    values = arguments(constructor, words)
    return (
        {"to": None, "data": found.bytecode, "abi": found.abi, "args": values}
        if values
        else {"to": None, "data": found.bytecode}
    )


def _send(
    params: SendParams, *, client: Client, until: Milestone | None, timeout: float, as_json: bool
) -> int:
    request_id = params["request_id"] or ""
    click.echo(f"fencepost: request id {request_id}", err=True)
    try:
        tx = client.send(**params)
    except ClientError as error:
        return _not_sent(error, request_id)
    if until is not None:
        try:
            tx = follow(client, tx, until, timeout_s=timeout)
        except NotReached as error:
            return not_reached(client, error, as_json=as_json)
        except ClientError as error:
            return _not_followed(error, tx, request_id)
        if params.get("to") is None and tx.block_number is not None:
            tx = client.get(tx.tx_id, include=("receipt",))  # it names the contract
    return finish(tx, as_json=as_json)


def _not_sent(error: ClientError, request_id: str) -> int:
    """Print what to do about a request that no node has acknowledged."""
    option = f"--request-id {shlex.quote(request_id)}"
    if error.outcome_unknown:
        advice = f"A node may have accepted the request: run it again with {option}; it can't be sent twice."
    elif isinstance(error, RequestConflict):
        advice = f"The request was not accepted: {option} belongs to another transaction."
    else:
        advice = f"The request was not accepted: correct the problem, then run it again with {option}."
    click.echo(f"fencepost: {_sentence(error)} {advice}", err=True)
    return OUTCOME_UNKNOWN if error.outcome_unknown else FAILURE


def _not_followed(error: ClientError, tx: TxOut, request_id: str) -> int:
    advice = f"Transaction {tx.tx_id} was accepted: follow it with `fencepost tx watch {tx.tx_id}`"
    again = f"or run it again with --request-id {shlex.quote(request_id)}; it can't be sent twice."
    click.echo(f"fencepost: {_sentence(error)} {advice}, {again}", err=True)
    return OUTCOME_UNKNOWN


def _sentence(error: ClientError) -> str:
    return f"{str(error).rstrip('.')}."
