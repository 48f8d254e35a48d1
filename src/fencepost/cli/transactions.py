"""A transaction in the terminal: as lines, as a row, and as one line that moves while it goes its way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol, get_args

import click
from msgspec import UNSET
from rich.console import Console
from rich.text import Text

from fencepost.cli.remote import NO, OK, print_json
from fencepost.cli.tables import console, table
from fencepost.client import Client, TxOut, Until
from fencepost.client.errors import NotReached

MILESTONES: tuple[Until, ...] = get_args(Until)
LOOK_S = 1.0  # so often the progress line learns of new confirmations
_STYLES = {"CONFIRMED": "green", "FAILED": "red", "CANCELLED": "yellow", "SUSPENDED": "yellow"}
_UNWELL = ("FAILED", "CANCELLED")


class _Show(Protocol):
    def __call__(self, tx: TxOut) -> None: ...


def follow(client: Client, tx: TxOut, until: Until, *, timeout_s: float) -> TxOut:
    """The transaction when it has come that far, through all states on the way. Raises `NotReached`."""
    deadline_s = time.monotonic() + timeout_s
    with _progress() as show:
        show(tx)
        for milestone in MILESTONES[: MILESTONES.index(until) + 1]:
            tx = _reach(client, tx, milestone, deadline_s=deadline_s, timeout_s=timeout_s, show=show)
    return tx


def _reach(
    client: Client, tx: TxOut, milestone: Until, *, deadline_s: float, timeout_s: float, show: _Show
) -> TxOut:
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        try:
            tx = client.wait(tx.tx_id, milestone, timeout_s=min(LOOK_S, left_s))
        except NotReached as error:
            show(error.tx)
            if left_s <= LOOK_S:
                raise NotReached(error.tx, milestone, timeout_s) from None
        else:
            show(tx)
            return tx


@contextmanager
def _progress() -> Iterator[_Show]:
    """On a terminal a line that changes in place, on stderr; elsewhere nothing."""
    out = Console(stderr=True, highlight=False)
    if not out.is_terminal:
        yield lambda tx: None  # noqa: ARG005 - nobody looks
        return
    with out.status("") as status:

        def show(tx: TxOut) -> None:
            depth = f", {tx.confirmation_count} confirmations" if tx.state == "TRACKING" else ""
            status.update(Text(f"{_state(tx)}{depth}  {tx.hash or tx.tx_id}"))

        yield show


def finish(tx: TxOut, *, as_json: bool) -> int:
    """The last word about a transaction, and the exit code that goes with it."""
    if as_json:
        print_json(tx)
    else:
        out = console()
        for name, value in _lines(tx):
            out.print(Text.assemble((f"{name:<14}", "bold"), value))
    return NO if tx.state in _UNWELL else OK


def print_table(txs: list[TxOut]) -> None:
    rows = [
        (
            tx.tx_id,
            tx.request_id or "",
            tx.signer,
            Text(_state(tx), _STYLES.get(tx.state, "")),
            tx.hash or "",
            "" if tx.block_number is None else str(tx.block_number),
            moment(tx.created_at),
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
        yield "created", moment(tx.created_at)
    if isinstance(tx.finished_at, datetime):
        yield "finished", moment(tx.finished_at)
    yield from _parts(tx)


def _parts(tx: TxOut) -> Iterator[tuple[str, str]]:
    """What `--include` brought."""
    if tx.attempts is not UNSET:
        for one in tx.attempts:
            told = f", last {one.last_result}" if one.last_result else ""
            yield f"attempt {one.number}", f"{one.hash} {one.purpose}, sent {one.sent_count} times{told}"
    if tx.history is not UNSET:
        for stretch in tx.history:
            done = ", ".join(f"{action.count} {action.action}" for action in stretch.actions)
            yield "history", f"{moment(stretch.time)} {stretch.sub_status}: {done}"


def _state(tx: TxOut) -> str:
    return f"{tx.state} ({tx.sub_state})" if tx.sub_state else str(tx.state)


def moment(at: object) -> str:
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if isinstance(at, datetime) else ""


def not_reached(error: NotReached, *, as_json: bool) -> int:
    finish(error.tx, as_json=as_json)
    click.echo(f"fencepost: {error}: fencepost tx watch {error.tx.tx_id}", err=True)
    return NO
