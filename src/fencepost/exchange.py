"""A request and its answer: between a connection, which has the bytes, and an application, which has the words.

An application is an ASGI one, run in a task for each request. It may offer something besides (`Offer`): to answer some
requests without a task, which costs a quarter of what is left otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Scope
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from fencepost.connection import Connection

_log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]

_STATUS_LINES = {status.value: f"HTTP/1.1 {status} {status.phrase}\r\n".encode() for status in HTTPStatus}
_BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_GONE: Message = {"type": "http.disconnect"}
PLAIN_TEXT: Headers = [(b"content-type", b"text/plain; charset=utf-8")]


class Exchange:
    """A request and its answer, as ASGI sees them."""

    __slots__ = (
        "_awaited", "_connection", "_expects_continue", "_is_answered", "_is_last", "_is_lost", "_is_read",
        "_is_whole", "_news", "_parts", "_server", "_start", "_unread_bytes", "has_begun", "scope",
    )  # fmt: skip

    _awaited: asyncio.Future[Any]  # what the answer comes from: its task, or what an offer waits for

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
        self.scope = scope
        self.has_begun = False
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

    def is_taken(self, offer: Offer) -> bool:
        """Whether it is answered without a task."""
        self.has_begun = self._is_whole and offer(self)
        return self.has_begun

    def run_soon(self, app: ASGIApp) -> None:
        self.has_begun = True
        self.wait_for(asyncio.get_running_loop().create_task(self._run(app)))

    def wait_for(self, awaited: asyncio.Future[Any]) -> None:
        """It is on the list of what uvicorn waits for when the server stops, and cancels in the end."""
        self._awaited = awaited
        tasks: set[Any] = self._server.tasks  # of which uvicorn asks nothing that other futures can't do
        tasks.add(awaited)

    def forget(self) -> None:
        """What it waited for has come."""
        tasks: set[Any] = self._server.tasks
        tasks.discard(self._awaited)

    async def _run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
            if not self._is_answered and not self._is_lost:
                await self._fail("gave no answer")
        except Exception:  # noqa: BLE001 - the edge: it is logged, and the client gets an answer
            await self._fail("failed")
        finally:
            if not self._is_answered:  # it was cancelled
                self._connection.close()
            self.forget()

    async def _fail(self, how: str) -> None:
        method, path = self.scope["method"], self.scope["path"][:200]
        _log.error("the application %s at %s %s", how, method, path, exc_info=True)
        if not self._is_answered:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            self._start = {"type": "http.response.start", "status": status, "headers": PLAIN_TEXT}
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
        if self._connection.must_wait:
            await self._connection.can_write()
        self.answer(start["status"], start["headers"], message["body"])

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """All of it. Who is gone does not hear it."""
        connection = self._connection
        # A client that was not told to go on with its body may send something else instead: nobody could tell which.
        is_last = self._is_last or connection.is_stopping or (self._expects_continue and not self._is_whole)
        answer = answer_bytes(
            status,
            self._server.default_headers,
            headers,
            body,
            is_last=is_last,
            is_head=self.scope["method"] == "HEAD",
        )
        self._is_answered = True
        if self._news is not None:
            self._news.set()
        if not self._is_lost:
            connection.answer(answer, is_last=is_last)


def answer_bytes(
    status: int, default: Headers, headers: Headers, body: bytes, *, is_last: bool, is_head: bool = False
) -> bytes:
    """The bytes of an answer. How long it is, and whether it is the last one here, is said here and by nobody else."""
    lines = [b"%b: %b\r\n" % header for header in (*default, *headers) if header[0] != b"content-length"]
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
        raise RuntimeError("a header has characters that would end it")
    last = b"connection: close\r\n" if is_last else b""
    if status in _BODILESS:
        return b"%b%b%b\r\n" % (_STATUS_LINES[status], head, last)
    said = b"" if is_head else body
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (_STATUS_LINES[status], head, len(body), last, said)


# Asked for a request that is there as a whole: whether it will call `answer`, or have it run in a task after all. It
# does neither before it returns, and names what it waits for.
Offer = Callable[[Exchange], bool]
