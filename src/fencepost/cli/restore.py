"""Implement `fencepost restore`: compare a restored database with the chain before a node is started."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from fencepost.application.lane import Lane
from fencepost.application.restore import SignerReport, examine, reconcile_signer
from fencepost.bootstrap.restore import RestoreTools, open_restore
from fencepost.cli.options import settings_options
from fencepost.cli.rendering import console, table
from fencepost.dev.embedded import embedded_services
from fencepost.domain.ids import Signer
from fencepost.errors import FencepostError
from fencepost.settings import Loaded

_STYLES = {"ok": "green", "attach": "green", "fill": "yellow", "decide": "red", "failed": "red"}

# Attachments and decisions that are printed per signer; JSON has all of them.
MAX_SHOWN = 10


@click.group()
def restore() -> None:
    """Compare a restored database with the chain, before a node is started on it.

    A backup lacks what was sent after it was made. Requests that look unsent are matched with transactions on the chain.
    """


@restore.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def check(*, as_json: bool, loaded: Loaded) -> int:
    """Show per signer what `reconcile` would attach, fill, or leave to the operator.

    Writes nothing. Exit code 1: an operator must decide something.
    """
    return asyncio.run(_run(loaded, as_json=as_json, applies=False))


@restore.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options
def reconcile(*, as_json: bool, loaded: Loaded) -> int:
    """Attach requests to their transactions on the chain, and protect signers that need a decision.

    Stop all nodes first: this acquires each signer's lease. Nothing is signed or sent. Exit code 1: an operator must
    decide something.
    """
    return asyncio.run(_run(loaded, as_json=as_json, applies=True))


async def _run(loaded: Loaded, *, as_json: bool, applies: bool) -> int:
    reports: list[SignerReport] = []
    failures: list[tuple[Signer, str]] = []
    async with (
        embedded_services(loaded.settings, report=lambda _: None) as embedded,
        open_restore(embedded.settings, dsn=embedded.dsn) as tools,
    ):
        signers = await tools.signers()
        with _progress(hidden=as_json) as progress:
            task = progress.add_task("signers", total=len(signers))
            for signer in signers:
                try:
                    reports.append(await _report_signer(tools, signer, applies=applies))
                except FencepostError as error:
                    failures.append((signer, str(error)))
                progress.advance(task)
    if as_json:
        click.echo(json.dumps([_as_json(r) for r in reports] + [_failed(*f) for f in failures], indent=2))
    else:
        _print(reports, failures, applies=applies)
    return 1 if failures or any(report.decisions for report in reports) else 0


async def _report_signer(tools: RestoreTools, signer: Signer, *, applies: bool) -> SignerReport:
    if not applies:
        return await examine(tools.reading_lane(signer))
    use: Callable[[Lane], Awaitable[SignerReport]] = reconcile_signer
    return await tools.with_lease(signer, use)


def _progress(*, hidden: bool) -> Progress:
    """Build a progress bar that is shown on a terminal only."""
    out = console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=out,
        transient=True,
        disable=hidden or not out.is_terminal,
    )


def _as_json(report: SignerReport) -> dict[str, Any]:
    return {
        "chainId": report.signer.chain_id,
        "signer": report.signer.address,
        "verdict": report.verdict,
        "nextNonce": report.ours,
        "chainNonce": report.on_chain,
        "pendingNonce": report.pending,
        "attached": [
            {"nonce": one.nonce, "hash": one.tx_hash, "txId": str(one.tx_id), "requestId": one.request_id}
            for one in report.attached
        ],
        "filled": report.filled,
        "requestsWait": report.waiting,
        "decisions": report.decisions,
    }


def _failed(signer: Signer, error: str) -> dict[str, Any]:
    return {
        "chainId": signer.chain_id,
        "signer": signer.address,
        "verdict": "failed",
        "decisions": [error],
    }


def _print(reports: list[SignerReport], failures: list[tuple[Signer, str]], *, applies: bool) -> None:
    rows: list[tuple[str | Text, ...]] = [
        (
            str(report.signer),
            Text(report.verdict, _STYLES[report.verdict]),
            "none" if report.ours is None else str(report.ours),
            str(report.on_chain),
            str(len(report.attached)),
            str(report.filled),
            str(len(report.decisions)),
        )
        for report in reports
    ]
    rows += [
        (str(signer), Text("failed", _STYLES["failed"]), "", "", "", "", error) for signer, error in failures
    ]
    attached = "attached" if applies else "to attach"
    columns = ("signer", "verdict", "next nonce", "chain nonce", attached, "to fill", "to decide")
    console().print(table(columns, rows))
    for report in reports:
        for one in report.attached[:MAX_SHOWN]:
            name = f" ({one.request_id})" if one.request_id else ""
            click.echo(f"{report.signer}: nonce {one.nonce}, {one.tx_hash} is request {one.tx_id}{name}")
        for decision in report.decisions[:MAX_SHOWN]:
            click.echo(f"{report.signer}: {decision}")
    if any(report.decisions for report in reports):
        click.echo(
            "Start a node, then decide: fencepost signer unprotect ADDRESS --decision adopt|keep|fill --reason TEXT"
        )
