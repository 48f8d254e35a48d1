"""A load generator that costs little: requests prepared before the clock runs, over kept connections.

`drive` keeps a number of connections busy, one request at a time on each. `pace` sends at a fixed rate, whether or not
answers come, so that a slow answer shows as a slow answer and not as a lower rate.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from fencepost.errors import RpcUnavailable, Unready
from fencepost.lab.bench.signers import Signers

BATCH = 500

# Who has no answer by then gets none: whatever is measured takes seconds.
ANSWERED_WITHIN_S = 120.0
_STATUS = slice(len("HTTP/1.1 "), len("HTTP/1.1 200"))
_LENGTH_AND_END = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n(?:[^\r]+\r\n)*\r\n", re.IGNORECASE)


class Answer(NamedTuple):
    """When a request went out and when it was answered, on the machine's monotonic clock."""

    number: int  # of the request, from 0
    status: int
    asked_s: float
    answered_s: float


def single_requests(url: str, signers: Signers, count: int, run: str) -> list[bytes]:
    return [
        post(url, "/api/v1/tx", msgspec.json.encode(_request(signers, index, run))) for index in range(count)
    ]


def batch_requests(url: str, signers: Signers, count: int, run: str) -> list[bytes]:
    return [post(url, "/api/v1/tx/batch", body) for body in batch_bodies(signers, count, run)]


def batch_bodies(signers: Signers, count: int, run: str) -> list[bytes]:
    bodies = []
    for start in range(0, count, BATCH):
        requests = [_request(signers, index, run) for index in range(start, min(start + BATCH, count))]
        bodies.append(msgspec.json.encode({"requests": requests}))
    return bodies


def _request(signers: Signers, index: int, run: str) -> dict[str, object]:
    return {
        "signer": signers.addresses[index % len(signers.addresses)],
        "requestId": f"{run}-{index}",
        "payload": {"to": signers.addresses[0], "value": "1", "gas": 21000},
    }


def post(url: str, path: str, body: bytes) -> bytes:
    """The bytes of a request."""
    host = urlsplit(url).netloc
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """One request at a time: `ask` sends it, `on_answer` hears how it ended, `on_lost` that it never will.

    A server closes connections that are idle for long: those are just not used again.
    """

    def __init__(
        self, on_answer: Callable[[_Connection, Answer], None], on_lost: Callable[[Exception | None], None]
    ) -> None:
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._buffer = b""
        self._index = -1
        self._asked_s = 0.0
        self._is_waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, index: int, request: bytes) -> None:
        self._index = index
        self._asked_s = time.monotonic()
        self._is_waiting = True
        self._transport.write(request)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        come = self._buffer + data if self._buffer else data
        found = _LENGTH_AND_END.search(come)
        if found is None or len(come) < found.end() + int(found[1]):
            self._buffer = come
            return
        self._buffer = b""
        self._is_waiting = False
        self._on_answer(self, Answer(self._index, int(come[_STATUS]), self._asked_s, time.monotonic()))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_waiting:
            self._on_lost(exc)


class _Run:
    """What all connections of one run share."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.answers: list[Answer] = []
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def until_answered(self, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self._done
        except TimeoutError:
            missing = self.expected - len(self.answers)
            raise Unready(
                f"{missing} of {self.expected} requests were not answered in {within_s:g} s"
            ) from None

    def take(self, answer: Answer) -> None:
        self.answers.append(answer)
        if len(self.answers) == self.expected and not self._done.done():
            self._done.set_result(None)

    def lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RpcUnavailable(f"a connection was lost: {error}"))

    async def connect(
        self, url: str, count: int, on_answer: Callable[[_Connection, Answer], None]
    ) -> list[_Connection]:
        place = urlsplit(url)
        host, port = str(place.hostname), int(place.port or 80)
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: _Connection(on_answer, self.lost), host, port)
            for _ in range(count)
        ]
        return [connection for _, connection in made]


async def drive(
    url: str, requests: Sequence[bytes], *, connections: int, within_s: float = ANSWERED_WITHIN_S
) -> list[Answer]:
    """All requests, over so many connections."""
    waiting: Iterator[tuple[int, bytes]] = enumerate(requests)
    run = _Run(len(requests))

    def answered(connection: _Connection, answer: Answer) -> None:
        run.take(answer)
        following = next(waiting, None)
        if following is not None:
            connection.ask(*following)

    opened = await run.connect(url, min(connections, len(requests)), answered)
    for connection in opened:
        connection.ask(*next(waiting))
    try:
        await run.until_answered(within_s)
    finally:
        for connection in opened:
            connection.close()
    return run.answers


async def pace(url: str, requests: Sequence[bytes], *, rate: float) -> list[Answer]:
    """One request every `1 / rate` seconds; connections are opened when all there are wait for answers."""
    run = _Run(len(requests))
    free: list[_Connection] = []
    opened: list[_Connection] = []

    def answered(connection: _Connection, answer: Answer) -> None:
        free.append(connection)
        run.take(answer)

    began_s = time.monotonic()
    try:
        for index, request in enumerate(requests):
            await asyncio.sleep(max(0.0, began_s + index / rate - time.monotonic()))
            free = [connection for connection in free if connection.is_open]
            if not free:
                fresh = await run.connect(url, 1, answered)
                opened += fresh
                free += fresh
            free.pop().ask(index, request)
        await run.until_answered(ANSWERED_WITHIN_S)
    finally:
        for connection in opened:
            connection.close()
    return run.answers


async def pour(url: str, requests: Sequence[bytes], connections: int, wanted: int) -> float:
    """Seconds from the first question until all were answered as wanted. Connecting is not counted, as in pgbench."""
    answers = await drive(url, requests, connections=connections)
    require(answers, wanted)
    return max(answer.answered_s for answer in answers) - min(answer.asked_s for answer in answers)


def require(answers: Sequence[Answer], wanted: int) -> None:
    unwanted = {answer.status for answer in answers} - {wanted}
    if unwanted:
        raise Unready(f"the node answered {sorted(unwanted)}, not only {wanted}")
