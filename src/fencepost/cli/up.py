"""`fencepost up`: a node, or several, with what is missing embedded; SIGINT and SIGTERM end it, and everything it started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import click
import uvloop
from rich.console import Console

from fencepost.api import create_app, require_keys
from fencepost.cli.options import settings_options
from fencepost.cli.processes import MOST_PROCESSES, Orders, orders_of, processes, stop_with_parent
from fencepost.cli.tables import console
from fencepost.dev.surroundings import Surroundings, surroundings
from fencepost.errors import FencepostError, SettingError
from fencepost.runtime import garbage, logs
from fencepost.serving import bind, serve, url_of
from fencepost.settings import Loaded, Settings
from fencepost.wiring import Running, node_name, open_node
from fencepost.wiring_api import services_of


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when the node is ready.")
@click.option(
    "--while-stdin", is_flag=True, help="End when standard input ends: for programs that start nodes."
)
@click.option(
    "--processes",
    "count",
    type=click.IntRange(1, MOST_PROCESSES),
    default=1,
    help="How many nodes to start, a process each, behind one port.",
)
@settings_options
def up(*, as_json: bool, while_stdin: bool, count: int, loaded: Loaded) -> None:
    """Start a node. Without a DSN or an RPC URL it brings its own PostgreSQL and dev chain."""
    logs.configure(loaded.settings.log.format, loaded.settings.log.level)
    uvloop.run(_run(loaded, as_json=as_json, while_stdin=while_stdin, count=count))


async def _run(loaded: Loaded, *, as_json: bool, while_stdin: bool, count: int) -> None:
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
        async with surroundings(settings, report=report) as around:
            if count > 1:
                await _several(around, listener, count, stop, partial(_say_ready, out, as_json=as_json))
                return
            async with _node(
                around.settings, around.dsn, around.private_keys, listener, url=url_of(listener)
            ) as name:
                _say_ready(out, url_of(listener), name, as_json=as_json)
                await stop.wait()


@asynccontextmanager
async def _node(
    settings: Settings, dsn: str, private_keys: Sequence[str], *listeners: socket.socket, url: str
) -> AsyncIterator[str]:
    """A node and its API, by its name."""

    @asynccontextmanager
    async def door(running: Running) -> AsyncIterator[None]:
        services = services_of(running)
        require_keys(settings.api.host, await services.keys.exist())
        async with serve(create_app(services), *listeners):
            yield

    async with open_node(settings, dsn=dsn, more_private_keys=private_keys, url=url, door=door) as running:
        garbage.settle()
        yield running.node.name


async def _several(
    around: Surroundings,
    listener: socket.socket,
    count: int,
    stop: asyncio.Event,
    say_ready: Callable[[str, str], None],
) -> None:
    told = around.settings.node.url
    if told and urlsplit(told).port is not None:
        raise SettingError("node.url must name no port: each of several processes has one of its own")
    base = node_name(around.settings, url=url_of(listener))
    orders = [
        orders_of(
            around.settings,
            name=f"{base}-{number}",
            dsn=around.dsn,
            private_keys=around.private_keys,
            listener=listener,
        )
        for number in range(1, count + 1)
    ]
    async with processes(_child, orders):
        say_ready(url_of(listener), f"{base}-1 … {base}-{count}")
        await stop.wait()


def _child(orders: Orders, ready: Connection) -> None:
    """A process of its own: its node is reached by the shared port, and by one that is its alone."""
    logs.configure(orders.settings.log.format, orders.settings.log.level)
    try:
        uvloop.run(_child_node(orders, ready))
    except FencepostError as error:
        click.echo(f"fencepost: node {orders.settings.node.id}: {error}", err=True)
        with suppress(OSError):  # the parent may have gone
            ready.send(str(error))
        sys.exit(2)


async def _child_node(orders: Orders, ready: Connection) -> None:
    stop = asyncio.Event()
    stop_with_parent(stop)
    with bind(orders.settings.api.host, 0) as own:
        async with _node(
            orders.settings, orders.dsn, orders.private_keys, orders.listener, own, url=url_of(own)
        ):
            with suppress(OSError):  # nobody waits for it any more
                ready.send("")
            ready.close()
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
