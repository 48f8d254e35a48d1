"""Adapt one HTTP request/response cycle to ASGI.

The application runs in one task per request. A response of one body message is written at once, with its length. A
response of several body messages is written message by message, in chunks: `send` waits while the client does not read,
and raises `ClientLeft` after the client has disconnected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Scope
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from fencepost.http.protocol import HttpConnection

_log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

_STATUS_LINES = {status.value: f"HTTP/1.1 {status} {status.phrase}\r\n".encode() for status in HTTPStatus}
_STATUS_LINES[499] = (
    b"HTTP/1.1 499 Client Closed Request\r\n"  # for a client that has disconnected, as in nginx
)
_BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_DISCONNECT: Message = {"type": "http.disconnect"}
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
CHUNKED = (b"transfer-encoding", b"chunked")
PLAIN_TEXT: Headers = [(b"content-type", b"text/plain; charset=utf-8")]


class ClientLeft(OSError):
    """The client has disconnected while its response was being streamed."""


class RequestCycle:
    """One request and its response, with ASGI's `receive` and `send`."""

    __slots__ = (
        "_changed", "_connection", "_expects_continue", "_has_chunks", "_has_responded", "_is_complete", "_is_last", "_is_lost",
        "_is_read", "_is_streaming", "_parts", "_server", "_start", "_task", "_unread_bytes", "has_begun", "scope",
    )  # fmt: skip

    _task: asyncio.Task[None]
    _has_chunks: bool  # of a streamed response

    def __init__(
        self,
        connection: HttpConnection,
        server: ServerState,
        scope: Scope,
        *,
        expects_continue: bool,
        is_last: bool,
    ) -> None:
        self._connection = connection
        self._server = server
        self.scope = scope
        self.has_begun = False
        self._expects_continue = (
            expects_continue  # the client waits for 100 Continue before it sends the body
        )
        self._is_last = is_last  # the connection closes after the response
        self._parts: list[bytes] = []
        self._unread_bytes = 0
        self._is_complete = False  # the whole body has been received
        self._is_read = False  # the application has read the whole body
        self._is_lost = False  # the client has disconnected
        self._start: Message | None = None
        self._is_streaming = False  # a part of the response has been sent
        self._has_responded = False
        self._changed: asyncio.Event | None = None  # created when the application first waits

    # ---- request

    def add(self, part: bytes) -> int:
        """Add a part of the body; return the number of unread bytes."""
        if self._has_responded:
            return 0
        self._parts.append(part)
        self._unread_bytes += len(part)
        if self._changed is not None:
            self._changed.set()
        return self._unread_bytes

    def complete(self) -> None:
        self._is_complete = True
        if self._changed is not None:
            self._changed.set()

    def on_disconnect(self) -> None:
        self._is_lost = True
        if self._changed is not None:
            self._changed.set()

    async def receive(self) -> Message:
        if self._expects_continue and not self._is_complete and not self._is_lost:
            self._expects_continue = False
            self._connection.send_continue()
        while not self._is_lost and not self._has_responded:
            if self._parts or (self._is_complete and not self._is_read):
                body = b"".join(self._parts)
                self._parts.clear()
                self._unread_bytes = 0
                self._is_read = self._is_complete
                return {"type": "http.request", "body": body, "more_body": not self._is_complete}
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            self._connection.resume_reading()
            await self._changed.wait()
        return _DISCONNECT

    # ---- response

    def run_soon(self, app: ASGIApp) -> None:
        """Run the application in a task. On shutdown, uvicorn waits for the task and cancels it in the end."""
        self.has_begun = True
        self._task = asyncio.get_running_loop().create_task(self._run(app))
        self._server.tasks.add(self._task)

    async def _run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
            if not self._has_responded and not self._is_lost:
                await self._fail("did not end its response" if self._is_streaming else "sent no response")
        except ClientLeft:
            pass  # the application ends because nothing reads its response any more
        except Exception:  # noqa: BLE001 - the edge: the error is logged, and the client gets a response
            await self._fail("failed")
        finally:
            if (
                not self._has_responded
            ):  # the task was cancelled, or a stream was cut: the client sees no end of it
                self._connection.close()
            self._server.tasks.discard(self._task)

    async def _fail(self, how: str) -> None:
        method, path = self.scope["method"], self.scope["path"][:200]
        _log.error("the application %s: %s %s", how, method, path, exc_info=True)
        if not self._has_responded and not self._is_streaming:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            self._start = {"type": "http.response.start", "status": status, "headers": PLAIN_TEXT}
            await self.send({"type": "http.response.body", "body": status.phrase.encode()})

    async def send(self, message: Message) -> None:
        start = self._start
        if start is None:
            if message["type"] != "http.response.start":
                raise RuntimeError(f"a response can't begin with {message['type']}")
            self._start = message
            return
        if message["type"] != "http.response.body" or self._has_responded:
            raise RuntimeError(
                "a response must have one start, then body messages, and nothing after the last one"
            )
        if self._connection.must_wait:
            await self._connection.can_write()
        if message.get("more_body"):
            self._stream(start, message.get("body", b""))
        elif self._is_streaming:
            self._end_stream(message.get("body", b""))
        else:
            self.respond(start["status"], start["headers"], message.get("body", b""))

    def _stream(self, start: Message, part: bytes) -> None:
        """Send a part of a response whose length is not known; raise `ClientLeft` if nothing reads it any more."""
        if start["status"] in _BODILESS:
            raise RuntimeError(f"a response with status {start['status']} has no body")
        if self._is_lost:
            raise ClientLeft
        head = b""
        if not self._is_streaming:
            self._is_streaming = True
            self._is_last = self._closes_after()
            self._has_chunks = (
                self.scope["http_version"] != "1.0"
            )  # else the end of the connection ends the body
            framing = (CHUNKED,) if self._has_chunks else ()
            head = head_bytes(
                start["status"],
                (*self._server.default_headers, *start["headers"]),
                *framing,
                is_last=self._is_last,
            )
        self._connection.write(head + self._framed(part))

    def _end_stream(self, part: bytes) -> None:
        end = b"0\r\n\r\n" if self._has_chunks and self.scope["method"] != "HEAD" else b""
        self._finish(self._framed(part) + end, is_last=self._closes_after())

    def _framed(self, part: bytes) -> bytes:
        if not part or self.scope["method"] == "HEAD":
            return b""
        return b"%x\r\n%b\r\n" % (len(part), part) if self._has_chunks else part

    def _closes_after(self) -> bool:
        """Return whether the connection closes after this response.

        Without 100 Continue the client may send the body or another request next, and the server can't distinguish them.
        """
        is_unclear = self._expects_continue and not self._is_complete
        return self._is_last or self._connection.is_stopping or is_unclear

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send the full response; do nothing if the client has disconnected."""
        is_last = self._closes_after()
        is_head = self.scope["method"] == "HEAD"
        default = self._server.default_headers
        self._finish(
            response_bytes(status, default, headers, body, is_last=is_last, is_head=is_head), is_last=is_last
        )

    def _finish(self, rest: bytes, *, is_last: bool) -> None:
        self._has_responded = True
        if self._changed is not None:
            self._changed.set()
        if not self._is_lost:
            self._connection.respond(rest, is_last=is_last)


def response_bytes(
    status: int, default: Headers, headers: Headers, body: bytes, *, is_last: bool, is_head: bool = False
) -> bytes:
    """Encode a full response."""
    if status in _BODILESS:
        return head_bytes(status, (*default, *headers), is_last=is_last)
    length = (b"content-length", b"%d" % len(body))
    head = head_bytes(status, (*default, *headers), length, is_last=is_last)
    return head if is_head else head + body


def head_bytes(
    status: int, headers: Sequence[tuple[bytes, bytes]], *framing: tuple[bytes, bytes], is_last: bool
) -> bytes:
    """Encode the head of a response. Only this module sets the framing headers and `connection`."""
    given = [header for header in headers if header[0] not in _FRAMING]
    lines = [b"%b: %b\r\n" % header for header in (*given, *framing)]
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise RuntimeError("a response header contains a line break or NUL")
    last = b"connection: close\r\n" if is_last else b""
    return b"%b%b%b\r\n" % (_STATUS_LINES[status], head, last)
