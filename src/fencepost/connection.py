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
from starlette.types import ASGIApp, Message, Scope
from uvicorn.server import ServerState

_log = logging.getLogger(__name__)

MOST_HEAD_BYTES = 64 * 1024  # of a request, besides what came with its first bytes
MOST_UNREAD_BYTES = 64 * 1024  # of a body, before the client has to wait for its reader

Headers = list[tuple[bytes, bytes]]

_STATUS_LINES = {status.value: f"HTTP/1.1 {status} {status.phrase}\r\n".encode() for status in HTTPStatus}
_BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_PLAIN: Headers = [(b"content-type", b"text/plain; charset=utf-8")]
_GONE: Message = {"type": "http.disconnect"}


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
        if self._is_in_head:
            self._head_bytes = self._head_bytes + len(data) if self._head_bytes >= 0 else 0
            if self._head_bytes > MOST_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _refuse(self, status: HTTPStatus) -> None:
        """What came is no request, or does not end as one. Who waits for the answer to one before still gets it."""
        self._is_in_head = False
        self.is_stopping = True
        self._waiting.clear()
        if self._current is not None and self._current is not self._arriving:
            self._pause_reading()
            return
        if self._current is not None:
            self._current.lose()
        said = _answer(status, self._server.default_headers, _PLAIN, status.phrase.encode(), is_last=True)
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
            self._begin(exchange)
        else:
            self._waiting.append(exchange)
            self._pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None and self._arriving.add(body) > MOST_UNREAD_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._arriving is not None:
            self._arriving.complete()
            self._arriving = None

    # ---- one exchange after the other

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        # It is on the list of those that uvicorn waits for when the server stops, and takes itself off.
        task = exchange.task = self._loop.create_task(exchange.run(self._app))
        self._server.tasks.add(task)

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


class Exchange:
    """A request and its answer, as ASGI sees them."""

    __slots__ = (
        "_connection", "_expects_continue", "_is_answered", "_is_last", "_is_lost", "_is_read", "_is_whole",
        "_news", "_parts", "_scope", "_server", "_start", "_unread_bytes", "task",
    )  # fmt: skip

    task: asyncio.Task[None]  # that answers it

    def __init__(
        self,
        connection: Connection,
        server: ServerState,
        scope: Scope,
        *,
        expects_continue: bool,
        is_last: bool,
    ) -> None:
        self._connection = connection
        self._server = server
        self._scope = scope
        self._expects_continue = expects_continue  # the client waits for a word before it sends the body
        self._is_last = is_last  # of the connection
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._is_whole = False  # the body has come
        self._is_read = False  # and the application has all of it
        self._is_lost = False  # nobody is there any more
        self._start: Message | None = None
        self._is_answered = False
        self._news: asyncio.Event | None = None  # None: nobody has waited for any

    # ---- what comes in

    def add(self, part: bytes) -> int:
        """How many bytes wait to be read."""
        if self._is_answered:
            return 0
        self._parts.append(part)
        self._unread_bytes += len(part)
        if self._news is not None:
            self._news.set()
        return self._unread_bytes

    def complete(self) -> None:
        self._is_whole = True
        if self._news is not None:
            self._news.set()

    def lose(self) -> None:
        self._is_lost = True
        if self._news is not None:
            self._news.set()

    async def receive(self) -> Message:
        if self._expects_continue and not self._is_whole and not self._is_lost:
            self._expects_continue = False
            self._connection.say_go_on()
        while not self._is_lost and not self._is_answered:
            if self._parts or (self._is_whole and not self._is_read):
                body = b"".join(self._parts)
                self._parts.clear()
                self._unread_bytes = 0
                self._is_read = self._is_whole
                return {"type": "http.request", "body": body, "more_body": not self._is_whole}
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            self._connection.resume_reading()
            await self._news.wait()
        return _GONE

    # ---- what goes out

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self.receive, self.send)
            if not self._is_answered and not self._is_lost:
                await self._fail("gave no answer")
        except Exception:  # noqa: BLE001 - the edge: it is logged, and the client gets an answer
            await self._fail("failed")
        finally:
            if not self._is_answered:  # it was cancelled
                self._connection.close()
            self._server.tasks.discard(self.task)

    async def _fail(self, how: str) -> None:
        method, path = self._scope["method"], self._scope["path"][:200]
        _log.error("the application %s at %s %s", how, method, path, exc_info=True)
        if not self._is_answered:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            self._start = {"type": "http.response.start", "status": status, "headers": _PLAIN}
            await self.send({"type": "http.response.body", "body": status.phrase.encode()})

    async def send(self, message: Message) -> None:
        start = self._start
        if start is None:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"an answer does not begin with {message['type']}")
            self._start = message
            return
        if message["type"] != "http.response.body" or message.get("more_body") or self._is_answered:
            raise RuntimeError("an answer has one body, and it comes after its start")
        connection = self._connection
        if connection.must_wait:
            await connection.can_write()
        # A client that was not told to go on with its body may send something else instead: nobody could tell which.
        is_last = self._is_last or connection.is_stopping or (self._expects_continue and not self._is_whole)
        is_head = self._scope["method"] == "HEAD"
        answer = _answer(
            start["status"],
            self._server.default_headers,
            start["headers"],
            message["body"],
            is_last=is_last,
            is_head=is_head,
        )
        self._is_answered = True
        if self._news is not None:
            self._news.set()
        if not self._is_lost:
            connection.answer(answer, is_last=is_last)


def _answer(
    status: int, default: Headers, headers: Headers, body: bytes, *, is_last: bool, is_head: bool = False
) -> bytes:
    """The bytes of an answer. How long it is, and whether it is the last one here, is said here and by nobody else."""
    lines = [b"%b: %b\r\n" % header for header in (*default, *headers) if header[0] != b"content-length"]
    is_bodiless = status in _BODILESS
    if not is_bodiless:
        lines.append(b"content-length: %d\r\n" % len(body))
    if is_last:
        lines.append(b"connection: close\r\n")
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise RuntimeError("a header has characters that would end it")
    return b"%b%b\r\n%b" % (_STATUS_LINES[status], head, b"" if is_head or is_bodiless else body)


def _place(address: Any) -> tuple[str, int] | None:
    """Host and port; an IPv6 address has more."""
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
