"""A cheap load generator: requests are prepared before the clock starts, and connections are kept.

`send_over` keeps a number of connections busy, one request at a time on each. `send_at_rate` sends at a fixed rate, whether
or not responses arrive, so that a slow response does not lower the rate.
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
from lab.bench.signers import Signers

BATCH = 500

# A request without a response by then has failed: all measurements take seconds.
ANSWERED_TIMEOUT_S = 120.0
_STATUS = slice(len("HTTP/1.1 "), len("HTTP/1.1 200"))
_LENGTH_AND_END = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n(?:[^\r]+\r\n)*\r\n", re.IGNORECASE)


class Response(NamedTuple):
    """When a request was sent and answered, on the machine's monotonic clock."""

    number: int  # of the request, starting at 0
    status: int
    sent_s: float
    answered_s: float


def single_requests(url: str, signers: Signers, count: int, run: str) -> list[bytes]:
    """Prepare one `POST /tx` per transaction."""
    return [
        post(url, "/api/v1/tx", msgspec.json.encode(_request(signers, index, run))) for index in range(count)
    ]


def batch_requests(url: str, signers: Signers, count: int, run: str) -> list[bytes]:
    """Prepare `POST /tx/batch` requests of up to `BATCH` transactions."""
    return [post(url, "/api/v1/tx/batch", body) for body in batch_bodies(signers, count, run)]


def batch_bodies(signers: Signers, count: int, run: str) -> list[bytes]:
    """Return the JSON bodies of the batches."""
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
    """Return the bytes of a POST request."""
    host = urlsplit(url).netloc
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """Send one request at a time; call `on_answer` with its response, or `on_lost` if the connection breaks.

    The server may close idle connections; those are not used again.
    """

    def __init__(
        self, on_answer: Callable[[_Connection, Response], None], on_lost: Callable[[Exception | None], None]
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
        self._on_answer(self, Response(self._index, int(come[_STATUS]), self._asked_s, time.monotonic()))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_waiting:
            self._on_lost(exc)


class _Run:
    """The state that all connections of one run share."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.answers: list[Response] = []
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

    def take(self, answer: Response) -> None:
        self.answers.append(answer)
        if len(self.answers) == self.expected and not self._done.done():
            self._done.set_result(None)

    def lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(RpcUnavailable(f"a connection was lost: {error}"))

    async def connect(
        self, url: str, count: int, on_answer: Callable[[_Connection, Response], None]
    ) -> list[_Connection]:
        place = urlsplit(url)
        host, port = str(place.hostname), int(place.port or 80)
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: _Connection(on_answer, self.lost), host, port)
            for _ in range(count)
        ]
        return [connection for _, connection in made]


async def send_over(
    url: str, requests: Sequence[bytes], *, connections: int, within_s: float = ANSWERED_TIMEOUT_S
) -> list[Response]:
    """Send all requests over a number of connections, and return the responses."""
    waiting: Iterator[tuple[int, bytes]] = enumerate(requests)
    run = _Run(len(requests))

    def answered(connection: _Connection, answer: Response) -> None:
        run.take(answer)
        next_request = next(waiting, None)
        if next_request is not None:
            connection.ask(*next_request)

    opened = await run.connect(url, min(connections, len(requests)), answered)
    for connection in opened:
        connection.ask(*next(waiting))
    try:
        await run.until_answered(within_s)
    finally:
        for connection in opened:
            connection.close()
    return run.answers


async def send_at_rate(url: str, requests: Sequence[bytes], *, rate: float) -> list[Response]:
    """Send one request every `1 / rate` seconds; open another connection when all are waiting."""
    run = _Run(len(requests))
    free: list[_Connection] = []
    opened: list[_Connection] = []

    def answered(connection: _Connection, answer: Response) -> None:
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
        await run.until_answered(ANSWERED_TIMEOUT_S)
    finally:
        for connection in opened:
            connection.close()
    return run.answers


async def send_all(url: str, requests: Sequence[bytes], connections: int, wanted: int) -> float:
    """Send all requests, require a status, and return the seconds from the first send to the last response.

    Connecting is not counted, as in pgbench.
    """
    answers = await send_over(url, requests, connections=connections)
    require_status(answers, wanted)
    return max(answer.answered_s for answer in answers) - min(answer.sent_s for answer in answers)


def require_status(answers: Sequence[Response], wanted: int) -> None:
    """Raise `Unready` unless every response has this status."""
    unwanted = {answer.status for answer in answers} - {wanted}
    if unwanted:
        raise Unready(f"the node answered {sorted(unwanted)}, not only {wanted}")
