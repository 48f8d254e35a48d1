"""Run the HTTP server: bind before anything else starts, stop within a bounded time."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from fencepost.errors import Unready
from fencepost.http.connection_limits import ConnectionLimits, ConnectionTable
from fencepost.http.protocol import HttpConnection
from fencepost.http.websocket import MAX_MESSAGE_BYTES, PING_INTERVAL_S, PONG_TIMEOUT_S
from fencepost.tasks.background_task import background_task

STOP_TIMEOUT_S = 1


def bind(host: str, port: int) -> socket.socket:
    """Return the bound socket; raise `Unready` if the address can't be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unready(
            f"can't listen on {host}:{port} ({error.strerror}): choose another api.port, or 0 for any free one"
        ) from error
    return listener


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the program."""
        yield


@asynccontextmanager
async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *more: socket.socket,
    limits: ConnectionLimits | None = None,
    allow_websockets: bool = False,
) -> AsyncIterator[str]:
    """Serve the application and yield the URL of the first listener; on exit, give running requests a moment to end."""
    bounds = (limits or ConnectionLimits()).within_descriptors()
    protocol = partial(HttpConnection, table=ConnectionTable(bounds), allow_websockets=allow_websockets)
    config = uvicorn.Config(
        app,
        http=cast("type[HttpConnection]", protocol),  # uvicorn only calls it
        backlog=bounds.backlog,
        ws="none",  # `HttpConnection` creates the WebSocket protocol; these are its bounds
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_INTERVAL_S,
        ws_ping_timeout=PONG_TIMEOUT_S,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_TIMEOUT_S,
    )
    server = _Server(config)
    for each in (listener, *more):
        each.listen(config.backlog)  # early connections wait in the backlog until the server accepts them
    async with background_task(server.serve(sockets=[listener, *more]), name="http") as task:
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            await task


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
