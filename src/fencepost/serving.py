"""The HTTP server around an application: bound before anything else starts, gone within a bounded time."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp

from fencepost.connection import Connection
from fencepost.errors import Unready
from fencepost.runtime.beside import beside

STOP_WITHIN_S = 1


def bind(host: str, port: int) -> socket.socket:
    """The listening socket; a port that is taken is said at once, in one line."""
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
        """Signals belong to the program, not to the server inside it."""
        yield


@asynccontextmanager
async def serve(app: ASGIApp, listener: socket.socket, *more: socket.socket) -> AsyncIterator[str]:
    """The application at its URL (the first listener's), until the body ends; requests under way are given a moment."""
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_WITHIN_S,
    )
    server = _Server(config)
    for each in (listener, *more):
        each.listen(
            config.backlog
        )  # from here on nobody is refused: who comes early waits for the first turn
    async with beside(server.serve(sockets=[listener, *more]), name="http") as task:
        try:
            yield url_of(listener)
        finally:
            server.should_exit = True
            await task


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
