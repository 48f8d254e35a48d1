"""Any bytes in any pieces on a connection: well-formed requests are answered as by uvicorn's own protocol.

Whatever arrives, each request gets its own answer or none, and every connection ends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httptools
import uvicorn
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from fakes.raw_http import whole
from fakes.transport import FakeTransport, cut
from fencepost.http.protocol import MAX_UNREAD_BYTES, HttpConnection

WITHIN_S = 20.0
_TURNS = 30  # loop turns: more than any application here needs for an answer and all pieces for delivery
Said = tuple[int, frozenset[tuple[bytes, bytes]], bytes]

# ---- requests


_TOKENS = st.text("abcdefghijklmnopqrstuvwxyz-_.0123456789!#$", min_size=1, max_size=12)
_VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
_PATHS = st.sampled_from(
    ["/", "/echo", "/unread", "/slow", "/soon", "/a%20b%2Fc", "/%C3%BC", "//x/../y", "/soon/%"]
)
_QUERIES = st.sampled_from(["", "?", "?a=1&b=%20", "?=/?"])


@dataclass(frozen=True, slots=True)
class RequestSpec:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    pieces: tuple[int, ...] | None  # its chunk sizes; None: it has a content length
    is_last: bool = False
    version: str = "1.1"

    @property
    def wire(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/{self.version}", "host: here"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += ["connection: close"] if self.is_last else []
        if self.pieces is None:
            lines += [f"content-length: {len(self.body)}"] if self.body or self.method == "POST" else []
            return "\r\n".join([*lines, "", ""]).encode() + self.body
        lines.append("transfer-encoding: chunked")
        said, left = b"", self.body
        for size in (*self.pieces, len(left)):
            piece, left = left[:size], left[size:]
            said += b"%x;ext\r\n%b\r\n" % (len(piece), piece) if piece else b""
        return "\r\n".join([*lines, "", ""]).encode() + said + b"0\r\n\r\n"


_FORBIDDEN = {
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "expect",
    "upgrade",
    "te",
    "trailer",
}
_HEADERS = st.lists(st.tuples(_TOKENS.filter(lambda name: name not in _FORBIDDEN), _VALUES), max_size=4).map(
    tuple
)
ASKED = st.builds(
    RequestSpec,
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
    target=st.builds(str.__add__, _PATHS, _QUERIES),
    headers=_HEADERS,
    body=st.one_of(st.just(b""), st.binary(max_size=60), st.just(b"x" * (MAX_UNREAD_BYTES + 10))),
    pieces=st.one_of(st.none(), st.lists(st.integers(1, 40), max_size=3).map(tuple)),
)


@st.composite
def conversations(draw: st.DrawFn) -> list[RequestSpec]:
    asked = draw(st.lists(ASKED, min_size=1, max_size=5))
    last = draw(st.sampled_from(["goes on", "closes", "1.0"]))
    if last == "goes on":
        return asked
    is_old = last == "1.0"
    ending = asked[-1]
    asked[-1] = RequestSpec(
        ending.method, ending.target, ending.headers, ending.body,
        None if is_old else ending.pieces, is_last=not is_old, version="1.0" if is_old else "1.1",
    )  # fmt: skip
    return asked


CUTS = st.lists(st.integers(0, 2**20), max_size=8)

# ---- the application


@dataclass(slots=True)
class Echo:
    """Answers with the request and a running number."""

    calls: int = 0
    busy: int = 0
    most_busy: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        number = self._begin()
        is_busy = True
        try:
            if scope["path"].startswith("/slow"):
                for _ in range(3):
                    await asyncio.sleep(0)
            body = b"" if scope["path"] == "/unread" else await whole(receive)
            said = _echo(number, scope, body)
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(said))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            self.busy -= 1
            is_busy = False
            await send({"type": "http.response.body", "body": said})
        finally:
            self.busy -= is_busy

    def _begin(self) -> int:
        self.calls += 1
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        return self.calls


def _echo(number: int, scope: Scope, body: bytes) -> bytes:
    said = {
        "number": number,
        "method": scope["method"],
        "path": scope["path"],
        "raw": scope["raw_path"].decode("latin-1"),
        "query": scope["query_string"].decode("latin-1"),
        "version": scope["http_version"],
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
        "body": body.decode("latin-1"),
    }
    return json.dumps(said).encode()


@dataclass(slots=True)
class Heard:
    """Answers as a client reads them."""

    methods: list[str]
    answers: list[Said] = field(default_factory=list)

    def read(self, written: bytes) -> list[Said]:
        rest = written
        while rest:
            head, found, rest = rest.partition(b"\r\n\r\n")
            assert found, written
            parser = httptools.HttpResponseParser(SimpleNamespace())
            parser.feed_data(head + found)
            lines = [line.partition(b": ") for line in head.split(b"\r\n")[1:]]
            headers = {name: value for name, _, value in lines if name != b"date"}
            number = sum(status >= 200 for status, _, _ in self.answers)
            is_head = number < len(self.methods) and self.methods[number] == "HEAD"
            length = 0 if is_head or parser.get_status_code() < 200 else int(headers[b"content-length"])
            body, rest = rest[:length], rest[length:]
            assert len(body) == length
            self.answers.append((parser.get_status_code(), frozenset(headers.items()), body))
        return self.answers


@dataclass(frozen=True, slots=True)
class Came:
    written: bytes
    is_closed: bool
    app: Echo
    tasks_left: int
    connections_left: int


_CONFIG = uvicorn.Config(Echo(), log_config=None, access_log=False, proxy_headers=False, ws="none")
_CONFIG.load()


async def _run(protocol: type[Any], pieces: Sequence[bytes]) -> Came:
    app = Echo()
    _CONFIG.loaded_app = app
    state = ServerState()
    talk = protocol(_CONFIG, state, {}, _loop=asyncio.get_running_loop())
    transport = FakeTransport(talk)
    async with asyncio.timeout(WITHIN_S):
        heard = 0
        feeding = asyncio.ensure_future(transport.come(pieces))
        quiet = 0
        while quiet < _TURNS:
            await asyncio.sleep(0)
            quiet = 0 if len(transport.written) > heard else quiet + 1
            heard = len(transport.written)
        written, is_closed = bytes(transport.written), transport.is_closing()
        was_heard = feeding.done()
        transport.lose(None)
        await feeding
        assert was_heard, "a request was never answered"
        for _ in range(20):
            await asyncio.sleep(0)
    return Came(written, is_closed, app, len(state.tasks), len(state.connections))


def talk(protocol: type[Any], pieces: Sequence[bytes]) -> Came:
    return asyncio.run(_run(protocol, pieces))


# ---- properties


@given(conversations(), CUTS)
@settings(max_examples=150, deadline=None)
@example([RequestSpec("POST", "/soon", (), b"x", None), RequestSpec("GET", "/echo", (), b"", None)], [])
@example(
    [RequestSpec("POST", "/unread", (), b"x" * 70_000, (3,)), RequestSpec("GET", "/soon", (), b"", None)], []
)
def test_well_formed_requests_are_answered_as_by_uvicorn(asked: list[RequestSpec], places: list[int]) -> None:
    pieces = cut(b"".join(each.wire for each in asked), places)
    methods = [each.method for each in asked]
    ours, theirs = talk(HttpConnection, pieces), talk(HttpToolsProtocol, pieces)
    heard = Heard(methods).read(ours.written)
    assert heard == Heard(methods).read(theirs.written)
    assert [status for status, _, _ in heard] == [200] * len(asked)
    assert ours.is_closed == theirs.is_closed
    assert ours.app.most_busy == 1
    assert (ours.tasks_left, ours.connections_left) == (0, 0)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """Requests with some bytes changed, removed or inserted; or no requests at all."""
    wire = bytearray(b"".join(each.wire for each in draw(st.lists(ASKED, max_size=4))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(wire)))
        removed = draw(st.integers(0, 12))
        inserted = draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from(
                    [
                        b"\r\n", b"\n", b"\r\n\r\n", b"\0", b"expect: 100-continue\r\n", b"content-length: 5\r\n",
                        b"transfer-encoding: chunked\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n",
                        b"GET /soon HTTP/1.1\r\nhost: here\r\n\r\n", b"HTTP/1.0", b"-1", b"ffffffffffffffffff\r\n", b"CONNECT ",
                    ]
                ),
            )
        )  # fmt: skip
        wire[place : place + removed] = inserted
    return bytes(wire)


@given(st.one_of(spoilt(), st.binary(max_size=200)), CUTS)
@settings(max_examples=400, deadline=None)
@example(b"POST /echo HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc", [72])
@example(b"CONNECT here:1 HTTP/1.1\r\nhost: here\r\n\r\n", [])
@example(b"OPTIONS * HTTP/1.1\r\nhost: here\r\n\r\n", [])
@example(b"GET http://there/echo HTTP/1.1\r\nhost: here\r\n\r\n", [])
@example(b"GET /soon HTTP/1.1\r\nhost: here\r\n\r\nPOST /soon HTTP/1.1\r\ncontent-length: x\r\n\r\n", [])
def test_each_request_gets_its_own_answer_or_none(wire: bytes, places: list[int]) -> None:
    came = talk(HttpConnection, cut(wire, places))
    numbers = []
    rest = came.written
    while rest:
        head, found, rest = rest.partition(b"\r\n\r\n")
        assert found
        lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if head.startswith(b"HTTP/1.1 100"):
            continue
        length = int(lines[b"content-length"])
        if b"\n" not in rest[:length] and rest[:1] == b"{" and head.startswith(b"HTTP/1.1 200"):
            numbers.append(json.loads(rest[:length])["number"])
            rest = rest[length:]
        elif head.startswith(b"HTTP/1.1 200"):
            numbers.append(len(numbers) + 1)  # to a HEAD: there is no body
        else:
            assert head.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501", b"HTTP/1.1 505"))
            assert rest[length:] == b""
            assert came.is_closed
            rest = b""
    assert numbers == list(range(1, len(numbers) + 1))
    assert came.app.most_busy <= 1
    assert len(numbers) <= came.app.calls <= len(numbers) + 1
    assert (came.app.busy, came.tasks_left, came.connections_left) == (0, 0, 0)
