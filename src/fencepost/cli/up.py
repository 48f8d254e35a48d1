"""`fencepost up`: one node, with what is missing embedded; SIGINT and SIGTERM end it, and everything it started."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import click
import uvloop
from rich.console import Console

from fencepost.api import create_app, require_keys
from fencepost.cli.options import settings_options
from fencepost.cli.tables import console
from fencepost.dev.surroundings import surroundings
from fencepost.runtime import logs
from fencepost.serving import bind, serve
from fencepost.settings import Loaded
from fencepost.wiring import open_node
from fencepost.wiring_api import services_of


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when the node is ready.")
@click.option(
    "--while-stdin", is_flag=True, help="End when standard input ends: for programs that start nodes."
)
@settings_options
def up(*, as_json: bool, while_stdin: bool, loaded: Loaded) -> None:
    """Start a node. Without a DSN or an RPC URL it brings its own PostgreSQL and dev chain."""
    logs.configure(loaded.settings.log.format, loaded.settings.log.level)
    uvloop.run(_run(loaded, as_json=as_json, while_stdin=while_stdin))


async def _run(loaded: Loaded, *, as_json: bool, while_stdin: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if while_stdin:
        _stop_at_end_of_input(stop)
    out = console()
    settings = loaded.settings
    listener = bind(settings.api.host, settings.api.port)
    with listener:
        report = (lambda _: None) if as_json else (lambda text: out.print(f"… {text}"))
        async with (
            surroundings(settings, report=report) as around,
            open_node(around.settings, dsn=around.dsn, more_private_keys=around.private_keys) as running,
        ):
            services = services_of(running)
            require_keys(settings.api.host, await services.keys.exist())
            async with serve(create_app(services), listener) as url:
                _say_ready(out, url, running.node.name, as_json=as_json)
                await stop.wait()


def _say_ready(out: Console, url: str, name: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"url": url, "node": name}))
    else:
        out.print(f"✓ node {name} is ready at {url}  (docs at {url}/docs)", style="green")


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    """The parent holds the other end of the pipe; the kernel closes it, however the parent dies."""

    def read() -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            stop.set()

    asyncio.get_running_loop().add_reader(0, read)
