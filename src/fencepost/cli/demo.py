"""Implement `fencepost demo`: run three nodes, kill one, and show the progress in a live table."""

from __future__ import annotations

import asyncio
import json
import signal

import click
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table

from fencepost.cli.demo_run import Demo, Outcome, Progress, open_demo
from fencepost.cli.options import settings_options
from fencepost.cli.rendering import console, table
from fencepost.settings import Loaded

TRANSACTIONS = 300


@click.command()
@click.option("--transactions", type=click.IntRange(20, 20_000), default=TRANSACTIONS, show_default=True)
@click.option("--keep", is_flag=True, help="Leave the nodes running until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@settings_options
def demo(*, transactions: int, keep: bool, as_json: bool, loaded: Loaded) -> int:
    """Run three nodes, kill one half-way, and check that every transaction is mined exactly once."""
    outcome = asyncio.run(_run(loaded, transactions, keep=keep, as_json=as_json))
    return 0 if outcome.is_ok else 1


async def _run(loaded: Loaded, transactions: int, *, keep: bool, as_json: bool) -> Outcome:
    out = Console(stderr=True, highlight=False) if as_json else console()
    async with open_demo(
        loaded.settings, transactions=transactions, report=lambda text: out.print(f"… {text}")
    ) as running:
        outcome = await _watch(running, out)
        if as_json:
            click.echo(json.dumps(outcome.as_json(), indent=2))
        else:
            _print_outcome(outcome, out)
        if keep:
            await _keep(running, out)
    return outcome


async def _watch(running: Demo, out: Console) -> Outcome:
    bar = Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=out)
    task = bar.add_task("confirmed", total=running.transactions)
    if not out.is_terminal:
        return await running.run(lambda _: None)
    with Live(console=out, refresh_per_second=10) as live:

        def show(progress: Progress) -> None:
            bar.update(task, completed=sum(row[3] for row in progress.rows))
            grid = Table.grid()
            grid.add_row(_progress_table(progress))
            grid.add_row(bar)
            live.update(grid)

        return await running.run(show)


def _progress_table(progress: Progress) -> Table:
    rows = [
        (
            signer,
            str(queued),
            str(in_flight),
            str(confirmed),
            owner if owner in progress.alive else f"{owner} (dead)",
        )
        for signer, queued, in_flight, confirmed, owner in progress.rows
    ]
    progress_table = table(("signer", "queued", "in flight", "confirmed", "lease holder"), rows)
    progress_table.title = f"nodes: {' '.join(progress.alive)} · {progress.note}"
    progress_table.title_justify = "left"
    return progress_table


def _print_outcome(outcome: Outcome, out: Console) -> None:
    for problem in outcome.problems[:20]:
        out.print(f"✗ {problem}", style="red")
    if outcome.is_ok:
        out.print(
            f"✓ {outcome.requests} requests, each mined exactly once; no nonce gap, no nonce used twice ({outcome.seconds} s)",
            style="green",
        )
    if outcome.failover_s is not None:
        out.print(
            f"✓ {outcome.killed} was killed with kill -9; another node sent for one of its signers {outcome.failover_s} s later"
        )


async def _keep(running: Demo, out: Console) -> None:
    for node in running.nodes:
        if node.is_alive:
            out.print(f"{node.name} is at {node.url} (docs: {node.url}/docs)")
    out.print("Press Ctrl-C to stop")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
