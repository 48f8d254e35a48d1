"""Any server bytes in any pieces: a caller gets the answer to its own request, or a contract error, in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import h11
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.transport import FakeTransport, cut
from fencepost.adapters.evm import http_transport
from fencepost.adapters.evm.http_transport import BodyTooLarge, ConnectionLost, HttpTransport
from fencepost.adapters.evm.rpc import JsonRpc
from fencepost.errors import RpcError, RpcRefused

MAX_BYTES = 1_000
SHORT_S, LONG_S = 0.05, 20.0
Outcome = tuple[int, bytes] | type[Exception]


@dataclass(frozen=True, slots=True)
class Turn:
    """The server's answer to one request: its pieces, and whether it closes afterwards. An empty piece is a pause."""

    pieces: tuple[bytes, ...]
    closes: bool = False

    @property
    def wire(self) -> bytes:
        return b"".join(self.pieces)


@dataclass(slots=True)
class Server:
    """Answers each request with its turn, over any number of connections."""

    turns: list[Turn]
    timeout_s: float
    requests: list[bytes] = field(default_factory=list)
    saying: set[asyncio.Task[None]] = field(default_factory=set)
    transports: list[FakeTransport] = field(default_factory=list)

    def poster(self) -> HttpTransport:
        server = self

        class Wired(HttpTransport):
            async def _connect(self, deadline_s: float) -> http_transport._Connection:  # noqa: ARG002 - it is there at once
                connection = http_transport._Connection(asyncio.get_running_loop(), self._all)
                server.transports.append(FakeTransport(connection, on_write=server.hear))
                return connection

        return Wired("http://node.example/", timeout_s=server.timeout_s, body_bytes_max=MAX_BYTES)

    def hear(self, request: bytes) -> None:
        self.requests.append(request)
        turn, transport = self.turns[len(self.requests) - 1], self.transports[-1]
        task = asyncio.get_running_loop().create_task(self._say(turn, transport))
        self.saying.add(task)
        task.add_done_callback(self.saying.discard)

    async def _say(self, turn: Turn, transport: FakeTransport) -> None:
        await asyncio.sleep(0)
        await transport.come(turn.pieces)
        if turn.closes:
            transport.lose(None)


async def _ask(turns: Sequence[Turn], timeout_s: float) -> tuple[list[Outcome], Server]:
    server = Server(list(turns), timeout_s)
    poster = server.poster()
    outcomes: list[Outcome] = []
    try:
        for number in range(len(turns)):
            began_s = asyncio.get_running_loop().time()
            try:
                posted = await poster.post(b"question %d" % number)
                outcomes.append((posted.status, posted.body))
            except (TimeoutError, ConnectionLost, BodyTooLarge) as error:
                outcomes.append(type(error))
            assert asyncio.get_running_loop().time() - began_s < timeout_s + 2
    finally:
        await poster.aclose()
        await asyncio.gather(*server.saying)
    assert not poster._all
    return outcomes, server


# ---- well-formed answers


def _chunked(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x;a=b\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, bool]:
    """Generate an answer, and whether the server closes after it."""
    status = draw(st.sampled_from([200, 200, 200, 201, 204, 400, 429, 500, 503]))
    body = b"" if status == 204 else draw(st.one_of(st.binary(max_size=80), st.just(b"y" * (MAX_BYTES + 1))))
    lines = [f"HTTP/1.1 {status} Said".encode()]
    lines += draw(
        st.lists(st.sampled_from([b"x-a: b", b"server: c", b"date: today", b"x-empty:"]), max_size=3)
    )
    way = "length" if status == 204 else draw(st.sampled_from(["length", "chunks", "end"]))
    closes = way == "end"
    if draw(st.booleans()):
        lines.append(b"connection: close")
        closes = True
    announced = draw(st.sampled_from([b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n"]))
    if way == "chunks":
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(body, draw(st.integers(1, 200)))
    elif way == "length" and status != 204:
        lines.append(b"Content-Length: %d" % len(body))
    return announced + b"\r\n".join([*lines, b"", b""]) + body, closes


CUTS = st.lists(st.integers(0, 2**16), max_size=6)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    wire, closes = draw(answers())
    return Turn(cut(wire, draw(CUTS)), closes)


def _by_the_book(turn: Turn) -> Outcome:
    """Parse with h11."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(turn.wire)
    if turn.closes:
        client.receive_data(b"")
    status, body = 0, b""
    while True:
        event = client.next_event()
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            return BodyTooLarge if len(body) > MAX_BYTES else (status, body)
        else:
            assert isinstance(event, h11.InformationalResponse), event


@given(st.lists(turns(), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_well_formed_answers_are_read_as_by_h11(said: list[Turn]) -> None:
    outcomes, server = asyncio.run(_ask(said, LONG_S))
    assert outcomes == [_by_the_book(turn) for turn in said]
    assert [request.rpartition(b"\r\n\r\n")[2] for request in server.requests] == [
        b"question %d" % number for number in range(len(said))
    ]
    closed = [turn.closes or outcome is BodyTooLarge for turn, outcome in zip(said, outcomes, strict=True)]
    assert len(server.transports) == 1 + sum(closed[:-1]), "a connection is kept if it can be"


# ---- malformed answers


@st.composite
def spoilt_turns(draw: st.DrawFn) -> Turn:
    wire, closes = draw(answers())
    spoilt = bytearray(wire)
    for _ in range(draw(st.integers(0, 3))):
        place, removed = draw(st.integers(0, len(spoilt))), draw(st.integers(0, 10))
        spoilt[place : place + removed] = draw(
            st.one_of(
                st.binary(max_size=4),
                st.sampled_from(
                    [
                        b"\r\n", b"\r\n\r\n", b"\0", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nnever",
                        b"HTTP/1.1 101 Other\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", b"content-length: 3\r\n",
                        b"transfer-encoding: gzip, chunked\r\n", b"HTTP/1.0", b"fffffffffffffffff\r\n",
                    ]
                ),
            )
        )  # fmt: skip
    return Turn(cut(bytes(spoilt), draw(CUTS)), draw(st.booleans()) or closes)


@given(st.lists(spoilt_turns(), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
@example(
    [
        Turn(
            (
                b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                b"",
                b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            )
        )
    ]
)
@example(
    [Turn((b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",))] * 2
)
def test_any_bytes_give_an_answer_or_a_contract_error(said: list[Turn]) -> None:
    outcomes, server = asyncio.run(_ask(said, SHORT_S))
    assert len(server.requests) == len(said), "nothing is asked twice"
    for number, outcome in enumerate(outcomes):
        if not isinstance(outcome, type):
            status, body = outcome
            # Late bytes behind a complete answer may be read as the next answer; the caller detects them by the id.
            heard = b"".join(turn.wire for turn in said[: number + 1])
            assert b"%d" % status in heard
            assert len(body) <= MAX_BYTES
            assert _is_within(body, heard)


def _is_within(body: bytes, wire: bytes) -> bool:
    """Tell whether all bytes of the body occur in the received bytes in order; chunk sizes may come between them."""
    place = 0
    for byte in body:
        place = wire.find(bytes([byte]), place) + 1
        if not place:
            return False
    return True


# ---- JSON-RPC answers


@dataclass(frozen=True, slots=True)
class Spoken:
    """How an endpoint answers a call: correctly and once, or with something before, after or instead of it."""

    before: tuple[int, ...] = ()  # offset of the call whose answer comes first; -1 is an unknown call
    is_said: bool = True
    behind: tuple[int, ...] = ()
    pauses: bool = False
    cuts: tuple[int, ...] = ()
    closes: bool = False


def _answer_of(call_id: int | None, way: int) -> bytes:
    said: dict[str, object] = {"jsonrpc": "2.0", "id": call_id, "result": f"to {call_id}"}
    if way % 5 == 1:
        said = {"jsonrpc": "2.0", "id": call_id, "error": {"code": -32000, "message": f"to {call_id}"}}
    body = msgspec.json.encode(said)
    if way % 3 == 2:
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + _chunked(body, 7)
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Node(Server):
    def __init__(self, spoken: Sequence[Spoken]) -> None:
        super().__init__([], SHORT_S)
        self._spoken = list(spoken)

    def hear(self, request: bytes) -> None:
        call_id = msgspec.json.decode(request.rpartition(b"\r\n\r\n")[2])["id"]
        spoken = self._spoken[len(self.requests)]
        whose = [*spoken.before, *([0] if spoken.is_said else []), *spoken.behind]
        parts = [_answer_of(None if back < 0 else max(1, call_id - back), call_id + back) for back in whose]
        if spoken.pauses:
            pieces = tuple(piece for part in parts for piece in (part, b"", b"", b"", b""))
        else:
            pieces = cut(b"".join(parts), spoken.cuts)
        self.turns.append(Turn(pieces, spoken.closes))
        super().hear(request)


_OTHERS = st.lists(st.sampled_from([-1, 1, 1, 2]), max_size=2).map(tuple)
SPOKEN = st.builds(
    Spoken,
    before=st.one_of(st.just(()), _OTHERS),
    is_said=st.sampled_from([True, True, True, False]),
    behind=st.one_of(st.just(()), _OTHERS),
    pauses=st.booleans(),
    cuts=CUTS.map(tuple),
    closes=st.booleans(),
)


@given(st.lists(SPOKEN, min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
@example([Spoken(behind=(-1,), pauses=True), Spoken(is_said=False)])
@example([Spoken(behind=(-1,), pauses=True), *[Spoken()] * 4])
@example([Spoken(behind=(2,), pauses=True), *[Spoken()] * 4])
@example([Spoken(), Spoken(before=(1,), pauses=True), Spoken()])
def test_a_call_gets_its_own_result_or_an_error(spoken: list[Spoken]) -> None:
    asyncio.run(_call_all(spoken))


async def _call_all(spoken: Sequence[Spoken]) -> None:
    node = Node(spoken)
    rpc = JsonRpc("http://node.example/")
    rpc._transport = node.poster()
    odd = struck = 0
    try:
        for number, each in enumerate(spoken, start=1):
            odd += len(each.before) + len(each.behind) + (not each.is_said)
            own = [f"to {number}"]
            connections = len(node.transports)
            try:
                said = await rpc.call("eth_something")
            except RpcRefused as error:
                said = str(error)
                if len(node.transports) > connections:
                    own.append(
                        "to None"
                    )  # first call of a connection: the endpoint may answer that it could not read it
            except RpcError:
                said, struck = own[0], struck + 1
            assert said in own
            assert struck <= odd, f"call {number} was struck by nothing in {spoken}"
            odd += each.closes  # while the next call is in progress
    finally:
        await rpc.close()
        await asyncio.gather(*node.saying)
