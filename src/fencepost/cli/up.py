"""Implement `fencepost up`: run one or more nodes, with embedded servers where none are configured.

SIGINT and SIGTERM stop the nodes and every server that the command started.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import click
import uvloop
from rich.console import Console

from fencepost.adapters.postgres.database import is_failure, start_failures_explained
from fencepost.api import create_app, require_keys
from fencepost.application.explain_facts import SURVEY_TIMEOUT_S
from fencepost.bootstrap.api import api_dependencies
from fencepost.bootstrap.node import RunningNode, node_name, open_node
from fencepost.cli.options import settings_options
from fencepost.cli.processes import MAX_PROCESSES, ChildConfig, child_config, processes, stop_with_parent
from fencepost.cli.rendering import console
from fencepost.client.amounts import in_ether
from fencepost.dev.embedded import EmbeddedServices, embedded_services
from fencepost.errors import ChainUnusable, FencepostError, SettingError
from fencepost.http.connection_limits import ConnectionLimits
from fencepost.http.server import bind, serve, url_of
from fencepost.runtime import gc_tuning, logs
from fencepost.runtime.logs import log_abandoned_attempts
from fencepost.settings import Loaded, Settings
from fencepost.settings.masking import mask_dsn, mask_url

MAX_SIGNERS_SHOWN = 5
DEV_CONFIRMATIONS = 1


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when the node is ready.")
@click.option(
    "--while-stdin", is_flag=True, help="Stop when standard input is closed; for programs that start nodes."
)
@click.option(
    "--processes",
    "count",
    type=click.IntRange(1, MAX_PROCESSES),
    default=1,
    help="How many nodes to start, one process per node, behind one port.",
)
@settings_options
def up(*, as_json: bool, while_stdin: bool, count: int, loaded: Loaded) -> None:
    """Start a node. Without a DSN or an RPC URL, start an embedded PostgreSQL or dev chain too."""
    logs.configure(loaded.settings.log.format, loaded.settings.log.level)
    uvloop.run(_run(loaded, as_json=as_json, while_stdin=while_stdin, count=count))


async def _run(loaded: Loaded, *, as_json: bool, while_stdin: bool, count: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if while_stdin:
        _stop_at_end_of_input(stop)
    out = console()
    settings = _with_dev_defaults(loaded)
    listener = bind(settings.api.host, settings.api.port)
    with listener:
        report = (lambda _: None) if as_json else (lambda text: out.print(f"… {text}"))
        async with embedded_services(settings, report=report) as embedded:
            if count > 1:
                await _run_processes(
                    embedded, listener, count, stop, partial(_print_ready, out, as_json=as_json)
                )
                return
            block_time_s = None if embedded.dev_chain_folder is None else settings.embedded.block_time_s
            try:
                async with _node(
                    embedded.settings, embedded.dsn, embedded.private_keys, listener, url=url_of(listener)
                ) as running:
                    _print_ready(out, url_of(listener), running.node.name, as_json=as_json)
                    if not as_json:
                        await _print_surroundings(out, running, dsn=embedded.dsn, block_time_s=block_time_s)
                    await stop.wait()
            except ChainUnusable as error:
                raise embedded.explain(error) from error


@asynccontextmanager
async def _node(
    settings: Settings, dsn: str, private_keys: Sequence[str], *listeners: socket.socket, url: str
) -> AsyncIterator[RunningNode]:
    """Run a node and its API; yield the node."""
    log_abandoned_attempts(asyncio.get_running_loop(), is_failure)

    @asynccontextmanager
    async def open_api(running: RunningNode) -> AsyncIterator[None]:
        services = api_dependencies(running)
        with start_failures_explained():
            keys_exist = await services.keys.exist()
        require_keys(settings.api.host, auth=settings.api.auth, keys_exist=keys_exist)
        limits = ConnectionLimits(
            max_connections=settings.api.max_connections, max_per_peer=settings.api.max_connections_per_peer
        )
        async with serve(create_app(services), *listeners, limits=limits, allow_websockets=True):
            yield

    async with open_node(
        settings, dsn=dsn, more_private_keys=private_keys, url=url, open_api=open_api
    ) as running:
        gc_tuning.tune_gc()
        yield running


async def _run_processes(
    embedded: EmbeddedServices,
    listener: socket.socket,
    count: int,
    stop: asyncio.Event,
    print_ready: Callable[[str, str], None],
) -> None:
    url = embedded.settings.node.url
    if url and urlsplit(url).port is not None:
        raise SettingError("node.url must not have a port with --processes: each process uses its own port")
    base = node_name(embedded.settings, url=url_of(listener))
    configs = [
        child_config(
            embedded.settings,
            name=f"{base}-{number}",
            dsn=embedded.dsn,
            private_keys=embedded.private_keys,
            listener=listener,
        )
        for number in range(1, count + 1)
    ]
    async with processes(_child, configs):
        print_ready(url_of(listener), f"{base}-1 … {base}-{count}")
        await stop.wait()


def _child(config: ChildConfig, ready: Connection) -> None:
    """Run one node in a child process. It listens on the shared port and on one of its own."""
    logs.configure(config.settings.log.format, config.settings.log.level)
    try:
        uvloop.run(_child_node(config, ready))
    except FencepostError as error:
        click.echo(f"fencepost: node {config.settings.node.id}: {error}", err=True)
        with suppress(OSError):  # the parent may have exited
            ready.send(str(error))
        sys.exit(2)


async def _child_node(config: ChildConfig, ready: Connection) -> None:
    stop = asyncio.Event()
    stop_with_parent(stop)
    with bind(config.settings.api.host, 0) as own:
        async with _node(
            config.settings, config.dsn, config.private_keys, config.listener, own, url=url_of(own)
        ):
            with suppress(OSError):  # after a restart the parent has closed the pipe
                ready.send("")
            ready.close()
            await stop.wait()


def _print_ready(out: Console, url: str, name: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"url": url, "node": name}))
    else:
        out.print(f"✓ node {name} is ready at {url}  (docs at {url}/docs)", style="green")


def _with_dev_defaults(loaded: Loaded) -> Settings:
    """Require one confirmation on the embedded dev chain, which has no forks, unless the settings say otherwise."""
    settings = loaded.settings
    is_dev = not settings.chains[settings.default_chain].rpc_urls
    if not is_dev or loaded.sources.get("confirmations.required", "default") != "default":
        return settings
    return replace(settings, confirmations=replace(settings.confirmations, required=DEV_CONFIRMATIONS))


async def _print_surroundings(
    out: Console, running: RunningNode, *, dsn: str, block_time_s: float | None
) -> None:
    """Print the database, the chains, the signers with their balances, and how long a transaction takes."""
    settings = running.settings
    out.print(f"  database   {mask_dsn(dsn)}", markup=False)
    for name, served in settings.chains.items():
        urls = ", ".join(map(mask_url, served.rpc_urls))
        out.print(f"  chain      {name}: id {served.id} at {urls}", markup=False)
    addresses = running.keys.addresses()
    chain = running.chains[running.default_chain_id]
    for address in addresses[:MAX_SIGNERS_SHOWN]:
        reports = await chain.survey(address, (), timeout_s=SURVEY_TIMEOUT_S)
        balance = next((one.balance_wei for one in reports if one.balance_wei is not None), None)
        text = "balance unknown" if balance is None else f"{in_ether(balance)} ether"
        out.print(f"  signer     {address}  {text}", markup=False)
    if len(addresses) > MAX_SIGNERS_SHOWN:
        out.print(f"  … and {len(addresses) - MAX_SIGNERS_SHOWN} more: fencepost signer list", markup=False)
    out.print(f"  tip        {_time_tip(running, block_time_s)}", markup=False)


def _time_tip(running: RunningNode, block_time_s: float | None) -> str:
    required = running.settings.confirmations.required
    if not isinstance(required, int):
        return f'a transaction is final when its block is "{required}"'
    view = running.explainer.views[running.default_chain_id]
    interval_s = view.block_interval_s or block_time_s
    about = f", about {(required + 1) * interval_s:.0f} s" if interval_s else ""
    return f"a transaction is final {required} blocks after its own{about} (confirmations.required)"


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    """Set `stop` at the end of standard input: the kernel closes the pipe even if the parent is killed."""

    def read() -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            stop.set()

    asyncio.get_running_loop().add_reader(0, read)
