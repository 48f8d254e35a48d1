"""Serve a WebSocket on a connection that began as HTTP: uvicorn's protocol, within the limits of the connection.

The application authenticates before it accepts: it gets the handshake as an ASGI scope of type `websocket`, and sends
`websocket.accept`, or `websocket.close` or `websocket.http.response.start` to reject it.
"""

from __future__ import annotations

import asyncio
import logging

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

# uvicorn logs the target of each handshake as information, and a query may hold a secret.
_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)

MAX_MESSAGE_BYTES = 64 * 1024  # of one message from a client
PING_INTERVAL_S = 20.0
PONG_TIMEOUT_S = 20.0


class WebSocketConnection(WebSocketsSansIOProtocol):
    """The protocol of a connection after its upgrade. `http` is the protocol before it, which the connection table counts."""

    def __init__(self, config: uvicorn.Config, server: ServerState, http: asyncio.Protocol) -> None:
        super().__init__(config, server, {})
        self.logger = _log
        self._http = http

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._http.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._http.resume_writing()
