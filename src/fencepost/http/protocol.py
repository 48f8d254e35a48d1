"""Implement HTTP/1.1 on one connection: an ASGI application handles its requests one after the other.

Every wait for the client has a deadline (`ConnectionLimits`): for a head, a body, the next request, and for reading a
response. The connection table checks the deadlines about once a second and closes overdue connections.

uvicorn runs the server (listening, the date header, shutdown) and llhttp parses the requests; this class replaces
uvicorn's protocol between them, which has no deadlines, no limits per peer, and accepts heads that a proxy could
understand in another way.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from http import HTTPStatus
from typing import Any, NoReturn, cast
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from fencepost.http.connection_limits import HEALTH_PATHS, Admission, ConnectionTable, peer_name
from fencepost.http.request_cycle import PLAIN_TEXT, Headers, RequestCycle, response_bytes
from fencepost.http.websocket import WebSocketConnection

_log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024  # of a request, not counting its first packet
MAX_FRAMING_BYTES = 64 * 1024  # of chunk extensions and trailers without any byte of the body between them
MAX_UNREAD_BYTES = 64 * 1024  # of a body, before reading from the client pauses

_HTTP_VERSIONS = frozenset({"1.0", "1.1"})


class _Rejected(Exception):
    """The head of a request is well-formed HTTP that this server does not serve."""


class HttpConnection(asyncio.Protocol):
    """The protocol of one client connection. uvicorn creates it and defines the argument names."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - of a lifespan, and there is none
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        table: ConnectionTable | None = None,
        allow_websockets: bool = False,
    ) -> None:
        self._config = config
        self._allow_websockets = allow_websockets
        self._handshake: bytes | None = None  # the head of a request for a WebSocket
        self._app = cast("ASGIApp", config.loaded_app)
        self._table = table or ConnectionTable()
        self._limits = self._table.limits
        self.peer = ""
        self._is_health_only = False  # beyond the limit: only health checks are served
        self._server = server_state
        self._connections: set[Any] = server_state.connections  # uvicorn names its own protocols there
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # Data after a request with `connection: close` is ignored instead of failing the request.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
        }
        self._is_in_head = False
        self._head_bytes = 0
        self._framing_bytes = 0
        self._expects_continue = False
        self._url = b""
        self._headers: Headers = []
        self._arriving: RequestCycle | None = None  # the request whose body is being received
        self._current: RequestCycle | None = None  # the request that is being handled
        self._waiting: deque[RequestCycle] = deque()  # pipelined requests
        self._is_reading = True
        self.is_stopping = False  # the current request is the last one
        self.must_wait = False  # before the next response: the client does not read fast enough
        self._can_write = asyncio.Event()
        self._reject_status = HTTPStatus.BAD_REQUEST
        self._is_idle = False  # between two requests
        self._waits_since_s: float | None = None
        self._unread_since_s: float | None = None  # since when the client does not read its responses
        self._due_s = math.inf  # when the client must have sent its bytes
        self._write_due_s = math.inf  # when the client must have read the response

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._scope["client"] = _host_and_port(transport.get_extra_info("peername"))
        self._scope["server"] = _host_and_port(transport.get_extra_info("sockname"))
        self.peer = peer_name(self._scope["client"])
        admission = self._table.add(self)
        self._is_health_only = admission is Admission.HEALTH_ONLY
        self._wait_for_client(self._limits.head_timeout_s)
        if admission is Admission.REJECTED:
            self._respond_error(HTTPStatus.SERVICE_UNAVAILABLE)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the cause makes no difference
        self._connections.discard(self)
        self._table.remove(self)
        self._waiting.clear()
        if self._current is not None:
            self._current.on_disconnect()
        self.resume_writing()
        del self._parser  # breaks the reference cycle, so that the garbage collector need not find it

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return  # the connection is closing: further data is ignored
        if self._is_idle:
            self._is_idle = False
            self._wait_for_client(self._limits.head_timeout_s)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._handshake is not None:
                self._upgrade_to_websocket(self._handshake + data[upgrade.args[0] :])
                return
            # No other upgrade is supported: the request gets a normal response and is the last one.
        except httptools.HttpParserError:
            _log.debug("a client sent an invalid HTTP request", exc_info=True)
            self._respond_error(self._reject_status)
        arriving = self._arriving
        if arriving is not None and arriving is self._current and not arriving.has_begun:
            self._start_request(arriving)  # before its body is complete
        self._check_size(data)

    def _check_size(self, data: bytes) -> None:
        """Reject a head, or framing around a body, that does not end."""
        if self._is_in_head:
            self._head_bytes = self._head_bytes + len(data) if self._head_bytes >= 0 else 0
            if self._head_bytes > MAX_HEAD_BYTES:
                self._respond_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._arriving is not None:
            self._framing_bytes = self._framing_bytes + len(data) if self._framing_bytes >= 0 else 0
            if self._framing_bytes > MAX_FRAMING_BYTES:
                self._respond_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _respond_error(self, status: HTTPStatus) -> None:
        """Respond with an error to an invalid or overdue request and close.

        A request before it still gets its response. A request that already has its response gets no second one, which
        a proxy could take for the response to the next request.
        """
        self._is_in_head = False
        self.is_stopping = True
        self._waiting.clear()
        arriving, self._arriving = self._arriving, None
        if self._current is not None and self._current is not arriving:
            self._pause_reading()
            return
        if arriving is not None and self._current is not arriving:
            self.close()
            return
        if self._current is not None:
            self._current.on_disconnect()
        response = response_bytes(
            status, self._server.default_headers, PLAIN_TEXT, status.phrase.encode(), is_last=True
        )
        self._transport.write(response)
        self.close()

    # ---- deadlines

    @property
    def waits_since_s(self) -> float | None:
        return self._waits_since_s if self._unread_since_s is None else self._unread_since_s

    def _wait_for_client(self, timeout_s: float) -> None:
        self._waits_since_s = self._loop.time()
        self._due_s = self._waits_since_s + timeout_s

    def _stop_waiting(self) -> None:
        self._waits_since_s = None
        self._due_s = math.inf

    def evict(self) -> None:
        """Make room for another connection."""
        self._transport.abort()

    def check_deadlines(self, now_s: float) -> None:
        if self._transport.is_closing():
            self._write_due_s = min(self._write_due_s, now_s + self._limits.write_timeout_s)
        if now_s >= self._write_due_s:
            self._transport.abort()
        elif now_s >= self._due_s and not self._transport.is_closing():
            self._due_s = math.inf
            if self._is_in_head or self._arriving is not None:
                self._respond_error(HTTPStatus.REQUEST_TIMEOUT)
            else:
                self.close()

    def pause_writing(self) -> None:
        self._unread_since_s = self._loop.time()
        self._write_due_s = self._unread_since_s + self._limits.write_timeout_s
        self.must_wait = True
        self._can_write.clear()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._write_due_s = math.inf
        self._unread_since_s = None
        self.must_wait = False
        self._can_write.set()

    async def can_write(self) -> None:
        await self._can_write.wait()

    def send_continue(self) -> None:
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()
            self._stop_waiting()  # from now on the client waits for the server

    def resume_reading(self) -> None:
        if not self._is_reading and not self._waiting and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()
            if self._arriving is not None:
                self._wait_for_client(self._limits.body_timeout_s)

    # ---- the parser

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = -1  # the first bytes may follow another request in one packet, and are not counted
        self._expects_continue = False
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # else it is a trailer after the body, which could contradict the head
            name = name.lower()
            self._headers.append((name, value))
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        parser = self._parser
        version = parser.get_http_version()
        if version not in _HTTP_VERSIONS:
            self._reject(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        self._check_framing(version)
        url = httptools.parse_url(self._url)
        if url.host is not None:  # the host of an absolute target replaces the header: RFC 9112, 3.2.2
            host = b"[%b]" % url.host if b":" in url.host else url.host
            host = b"%b:%d" % (host, url.port) if url.port else host
            self._headers = [header for header in self._headers if header[0] != b"host"] + [(b"host", host)]
        path = url.path.decode("ascii")
        scope = self._scope.copy()
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        scope["headers"] = self._headers
        if self._is_health_only and scope["path"] not in HEALTH_PATHS:
            self._reject(HTTPStatus.SERVICE_UNAVAILABLE)
        if self._is_websocket(scope["method"], version):
            query = b"?" + url.query if url.query else b""
            lines = [b"%b: %b\r\n" % header for header in self._headers]
            self._handshake = b"GET %b%b HTTP/1.1\r\n%b\r\n" % (url.path, query, b"".join(lines))
            return
        is_last = not parser.should_keep_alive() or parser.should_upgrade() or self._is_health_only
        if version != "1.1":
            scope["http_version"] = version
            is_last = is_last or version == "1.0"
        cycle = self._arriving = RequestCycle(
            self, self._server, scope, expects_continue=self._expects_continue, is_last=is_last
        )
        self._framing_bytes = -1
        self._wait_for_client(self._limits.body_timeout_s)
        if self._current is None:
            self._current = cycle
        else:
            self._waiting.append(cycle)
            self._pause_reading()

    def _is_websocket(self, method: str, version: str) -> bool:
        """Return whether the head asks for a WebSocket that this connection can become now."""
        if (
            not self._allow_websockets
            or not self._parser.should_upgrade()
            or method != "GET"
            or version != "1.1"
        ):
            return False
        if self._current is not None or self._is_health_only or self.is_stopping:
            return False
        headers = dict(self._headers)
        has_body = b"content-length" in headers or b"transfer-encoding" in headers
        return headers.get(b"upgrade", b"").lower() == b"websocket" and not has_body

    def _upgrade_to_websocket(self, received: bytes) -> None:
        """Give the transport to the WebSocket protocol. The connection table still counts this connection."""
        self._stop_waiting()
        self._connections.discard(self)
        websocket = WebSocketConnection(self._config, self._server, self)
        self._transport.set_protocol(websocket)
        websocket.connection_made(self._transport)
        websocket.data_received(received)
        if not websocket.handshake_initiated:  # the WebSocket protocol rejects the head
            self._respond_error(HTTPStatus.BAD_REQUEST)

    def _check_framing(self, version: str) -> None:
        """Reject a head that a proxy in front of this server could understand in another way: RFC 9112, 3.2 and 6.1."""
        hosts = 0
        for name, value in self._headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                if version == "1.0":
                    self._reject(HTTPStatus.BAD_REQUEST)
                if value.strip().lower() != b"chunked":
                    self._reject(HTTPStatus.NOT_IMPLEMENTED)
        if hosts > 1 or (hosts == 0 and version != "1.0"):
            self._reject(HTTPStatus.BAD_REQUEST)

    def _reject(self, status: HTTPStatus) -> NoReturn:
        self._reject_status = status
        raise _Rejected

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = -1  # a packet with a part of the body is not counted
        if self._arriving is not None and self._arriving.add(body) > MAX_UNREAD_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        arriving = self._arriving
        if arriving is not None:
            self._arriving = None
            self._stop_waiting()
            arriving.complete()
            if arriving is self._current and not arriving.has_begun:
                self._start_request(arriving)

    # ---- one request after the other

    def _start_request(self, cycle: RequestCycle) -> None:
        self._current = cycle
        cycle.run_soon(self._app)

    def write(self, part: bytes) -> None:
        """Write a part of the response of the current request."""
        self._transport.write(part)

    def respond(self, response: bytes, *, is_last: bool) -> None:
        """Write the response of the current request, then begin the next pipelined one."""
        self._transport.write(response)
        self._current = None
        self._server.total_requests += 1
        if is_last:
            self.close()
        elif self._waiting:
            self._start_request(self._waiting.popleft())
            self.resume_reading()
        else:
            self.resume_reading()
            if self._is_in_head:
                self._wait_for_client(self._limits.head_timeout_s)
            elif self._arriving is None:
                self._is_idle = True
                self._wait_for_client(self._limits.idle_timeout_s)

    def close(self) -> None:
        """Close once the client has read everything written, or when `write_timeout_s` is over."""
        self._write_due_s = min(self._write_due_s, self._loop.time() + self._limits.write_timeout_s)
        self._transport.close()

    def shutdown(self) -> None:
        """Stop after the response to the current request. uvicorn calls this on shutdown."""
        self.is_stopping = True
        if self._current is None:
            self.close()


def _host_and_port(address: Any) -> tuple[str, int] | None:
    """Return host and port; the tuple of an IPv6 address has more items."""
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
