"""Print a transaction: as lines, as a table row, and as a progress line while waiting for a milestone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import takewhile
from typing import Any, Protocol, get_args

import click
from msgspec import UNSET
from rich.console import Console
from rich.text import Text

from fencepost.cli.explaining import print_explanation
from fencepost.cli.node_client import NO, OK, print_json
from fencepost.cli.rendering import console, table
from fencepost.client import Client, Milestone, TxOut
from fencepost.client.errors import ClientError, NotReached

MILESTONES: tuple[Milestone, ...] = get_args(Milestone)
_BEFORE_FINISHED: tuple[Milestone, ...] = ("allocated", "submitted", "mined")
REFRESH_INTERVAL_S = 1.0  # how often the progress line shows new confirmations
_STYLES = {"CONFIRMED": "green", "FAILED": "red", "CANCELLED": "yellow", "SUSPENDED": "yellow"}
_UNSUCCESSFUL = ("FAILED", "CANCELLED")


class _Show(Protocol):
    def __call__(self, tx: TxOut) -> None: ...


def follow(client: Client, tx: TxOut, until: Milestone, *, timeout_s: float) -> TxOut:
    """Wait for a milestone and show each earlier one on the way; raise `NotReached` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    with _progress() as show:
        show(tx)
        for milestone in (*takewhile(lambda earlier: earlier != until, _BEFORE_FINISHED), until):
            tx = _reach(client, tx, milestone, deadline_s=deadline_s, timeout_s=timeout_s, show=show)
    return tx


def _reach(
    client: Client, tx: TxOut, milestone: Milestone, *, deadline_s: float, timeout_s: float, show: _Show
) -> TxOut:
    while True:
        remaining_s = max(0.0, deadline_s - time.monotonic())
        try:
            tx = client.wait(tx.tx_id, milestone, timeout_s=min(REFRESH_INTERVAL_S, remaining_s))
        except NotReached as error:
            show(error.tx)
            if remaining_s <= REFRESH_INTERVAL_S:
                raise NotReached(error.tx, milestone, timeout_s) from None
        else:
            show(tx)
            return tx


@contextmanager
def _progress() -> Iterator[_Show]:
    """Show a line on stderr that changes in place; show nothing without a terminal."""
    out = Console(stderr=True, highlight=False)
    if not out.is_terminal:
        yield lambda tx: None  # noqa: ARG005 - nothing is shown without a terminal
        return
    with out.status("") as status:

        def show(tx: TxOut) -> None:
            depth = f", {tx.confirmation_count} confirmations" if tx.state == "TRACKING" else ""
            status.update(Text(f"{_state(tx)}{depth}  {tx.hash or tx.tx_id}"))

        yield show


def finish(tx: TxOut, *, as_json: bool) -> int:
    """Print a transaction; return exit code 1 if it failed or was cancelled."""
    if as_json:
        print_json(tx)
    else:
        out = console()
        for name, value in _lines(tx):
            out.print(Text.assemble((f"{name:<14}", "bold"), value))
    return NO if tx.state in _UNSUCCESSFUL else OK


def print_table(txs: list[TxOut]) -> None:
    rows = [
        (
            tx.tx_id,
            tx.request_id or "",
            tx.signer,
            Text(_state(tx), _STYLES.get(tx.state, "")),
            tx.hash or "",
            "" if tx.block_number is None else str(tx.block_number),
            local_time(tx.created_at),
        )
        for tx in txs
    ]
    console().print(table(("tx", "request", "signer", "state", "hash", "block", "created"), rows))


def _lines(tx: TxOut) -> Iterator[tuple[str, str | tuple[str, str]]]:
    yield "tx", tx.tx_id
    if tx.request_id is not None:
        yield "request", tx.request_id
    yield "signer", f"{tx.signer} on chain {tx.chain_id}"
    yield "state", (_state(tx), _STYLES.get(tx.state, ""))
    if tx.error:
        yield "error", tx.error
    elif isinstance(tx.reason, str):
        yield "reason", tx.reason
    if isinstance(tx.nonce, int):
        yield "nonce", str(tx.nonce)
    if tx.hash is not None:
        yield "hash", tx.hash
    if tx.block_number is not None:
        yield "block", f"{tx.block_number} ({tx.block_hash})"
        yield "confirmations", str(tx.confirmation_count)
    if tx.tags:
        yield "tags", ", ".join(tx.tags)
    if tx.created_at is not UNSET:
        yield "created", local_time(tx.created_at)
    if isinstance(tx.finished_at, datetime):
        yield "finished", local_time(tx.finished_at)
    yield from _parts(tx)


def _parts(tx: TxOut) -> Iterator[tuple[str, str]]:
    """Yield the lines of the parts that `--include` selects."""
    if isinstance(tx.receipt, dict):
        yield from _receipt_lines(tx.receipt)
    if tx.payload is not UNSET:
        yield from (("payload", f"{name} {value}") for name, value in tx.payload.items())
    if tx.confirmations is not UNSET:
        yield "confirmed by", f"{tx.confirmations.count} of {tx.confirmations.required} blocks"
        yield from (("block", f"{block.number} {block.hash}") for block in tx.confirmations.blocks)
    if tx.attempts is not UNSET:
        for attempt in tx.attempts:
            result = f", last result {attempt.last_result}" if attempt.last_result else ""
            source = f" ({attempt.fee_source})" if attempt.fee_source else ""
            price = f"at most {attempt.max_fee_per_gas} wei per gas{source}"
            yield (
                f"attempt {attempt.number}",
                f"{attempt.hash} {attempt.purpose}, {price}, sent {attempt.sent_count} times{result}",
            )
    if tx.history is not UNSET:
        for period in tx.history:
            actions = ", ".join(f"{action.count} {action.action}" for action in period.actions)
            yield "history", f"{local_time(period.time)} {period.sub_status}: {actions}"


def _receipt_lines(receipt: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if receipt.get("contractAddress"):
        yield "contract", str(receipt["contractAddress"])
    for name in ("status", "gasUsed", "effectiveGasPrice", "transactionIndex"):
        if receipt.get(name) is not None:
            yield "receipt", f"{name} {_number(receipt[name])}"
    yield "receipt", f"{len(receipt.get('logs') or ())} logs"


def _number(value: object) -> str:
    """Write a hex quantity of a receipt as a decimal number."""
    text = str(value)
    return str(int(text, 16)) if text.startswith("0x") else text


def _state(tx: TxOut) -> str:
    return f"{tx.state} ({tx.sub_state})" if tx.sub_state else str(tx.state)


def local_time(at: object) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if isinstance(at, datetime) else ""


def not_reached(client: Client, error: NotReached, *, as_json: bool) -> int:
    """Print the transaction, why it has not reached the milestone, and how to continue waiting; return exit code 1."""
    finish(error.tx, as_json=as_json)
    click.echo(f"fencepost: {error}", err=True)
    try:
        print_explanation(client.explain(error.tx.tx_id), err=True)
    except ClientError as failure:
        click.echo(f"fencepost: the cause is unknown: {failure}", err=True)
    click.echo(f"fencepost: follow it with fencepost tx watch {error.tx.tx_id}", err=True)
    return NO
