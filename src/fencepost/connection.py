"""HTTP/1.1 on one connection: requests come in, an ASGI application answers them, one after the other.

uvicorn runs the server (listening, the date, stopping) and llhttp reads the requests; this is what lies between, in place
of uvicorn's own. It costs half as much: head and body of an answer leave in one packet, and what few requests need (a
timer, an event, a queue) is made for those few.

What the applications here never do is not offered: the body of an answer is one message, and its length is told here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from fencepost.exchange import PLAIN_TEXT, Exchange, Headers, Offer, answer_bytes

_log = logging.getLogger(__name__)

MOST_HEAD_BYTES = 64 * 1024  # of a request, besides what came with its first bytes
MOST_UNREAD_BYTES = 64 * 1024  # of a body, before the client has to wait for its reader


class Connection(asyncio.Protocol):
    """Made by uvicorn for each client; the names of its arguments are uvicorn's."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002 - of a lifespan, and there is none
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast("ASGIApp", config.loaded_app)
        self._offer: Offer | None = getattr(config.loaded_app, "begin", None)
        self._idle_s_max = config.timeout_keep_alive
        self._server = server_state
        self._connections: set[Any] = server_state.connections  # uvicorn names its own protocols there
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # What follows a request that asked to close is not looked at; it does not spoil the answer.
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
        self._expects_continue = False
        self._url = b""
        self._headers: Headers = []
        self._arriving: Exchange | None = None  # whose body comes in
        self._current: Exchange | None = None  # the one that is being answered
        self._waiting: deque[Exchange] = (
            deque()
        )  # sent by the client before it had the answers to those before
        self._is_reading = True
        self.is_stopping = False  # the current exchange is the last
        self.must_wait = False  # with the next answer: the client does not read fast enough
        self._can_write = asyncio.Event()
        self._idle_since_s: float | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    # ---- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._scope["client"] = _place(transport.get_extra_info("peername"))
        self._scope["server"] = _place(transport.get_extra_info("sockname"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - lost is lost
        self._connections.discard(self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._waiting.clear()
        if self._current is not None:
            self._current.lose()
        self.resume_writing()
        del self._parser  # which knows us: nobody has to look for such circles

    def data_received(self, data: bytes) -> None:
        self._idle_since_s = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # nobody here speaks anything else: it is answered as any, and is the last
        except httptools.HttpParserError:
            _log.debug("what came is no request", exc_info=True)
            self._refuse(HTTPStatus.BAD_REQUEST)
        arriving = self._arriving
        if arriving is not None and arriving is self._current and not arriving.has_begun:
            self._begin(arriving)  # its body is still to come
        if self._is_in_head:
            self._head_bytes = self._head_bytes + len(data) if self._head_bytes >= 0 else 0
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _refuse(self, status: HTTPStatus) -> None:
        """What came is no request, or does not end as one. Who waits for the answer to one before still gets it."""
        self._is_in_head = False
        self.is_stopping = True
        self._waiting.clear()
        arriving, self._arriving = self._arriving, None
        if self._current is not None and self._current is not arriving:
            self._pause_reading()
            return
        if self._current is not None:
            self._current.lose()
        said = answer_bytes(
            status, self._server.default_headers, PLAIN_TEXT, status.phrase.encode(), is_last=True
        )
        self._transport.write(said)
        self._transport.close()

    def pause_writing(self) -> None:
        self.must_wait = True
        self._can_write.clear()

    def resume_writing(self) -> None:
        self.must_wait = False
        self._can_write.set()

    async def can_write(self) -> None:
        await self._can_write.wait()

    def say_go_on(self) -> None:
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_reading and not self._waiting and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    # ---- the parser

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_bytes = -1  # the first of them may stand behind another request, and are not counted
        self._expects_continue = False
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_head:  # else it stands behind the body, where it could say something else than before
            name = name.lower()
            self._headers.append((name, value))
            if name == b"expect" and value.lower() == b"100-continue":
                self._expects_continue = True

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        parser = self._parser
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        scope = self._scope.copy()
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = url.path
        scope["query_string"] = url.query or b""
        scope["headers"] = self._headers
        version = parser.get_http_version()
        is_last = not parser.should_keep_alive() or parser.should_upgrade()
        if version != "1.1":
            scope["http_version"] = version
            is_last = is_last or version == "1.0"
        exchange = self._arriving = Exchange(
            self, self._server, scope, expects_continue=self._expects_continue, is_last=is_last
        )
        if self._current is None:
            self._current = exchange
        else:
            self._waiting.append(exchange)
            self._pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None and self._arriving.add(body) > MOST_UNREAD_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        arriving = self._arriving
        if arriving is not None:
            self._arriving = None
            arriving.complete()
            if arriving is self._current and not arriving.has_begun:
                self._begin(arriving)

    # ---- one exchange after the other

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        # Who does not read its answers gets no more of them at once: it has to wait, which takes a task.
        if self._offer is None or self.must_wait or not exchange.is_taken(self._offer):
            exchange.run_soon(self._app)

    def answer(self, answer: bytes, *, is_last: bool) -> None:
        """The current exchange is over; then comes the next, if one waits."""
        self._transport.write(answer)
        self._current = None
        self._server.total_requests += 1
        if is_last:
            self._transport.close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
            self.resume_reading()
        else:
            self.resume_reading()
            self._idle_since_s = self._loop.time()
            if self._idle_timer is None:
                self._idle_timer = self._loop.call_later(self._idle_s_max, self._look_if_idle)

    def _look_if_idle(self) -> None:
        """One timer for many requests: it goes on for as long as was not idle."""
        self._idle_timer = None
        if self._idle_since_s is None:
            return  # busy: the next answer begins anew
        left_s = self._idle_since_s + self._idle_s_max - self._loop.time()
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._look_if_idle)
        else:
            self._transport.close()

    def close(self) -> None:
        self._transport.close()

    def shutdown(self) -> None:
        """The server stops: what is under way is answered, and nothing follows."""
        self.is_stopping = True
        if self._current is None:
            self._transport.close()


def _place(address: Any) -> tuple[str, int] | None:
    """Host and port; an IPv6 address has more."""
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
