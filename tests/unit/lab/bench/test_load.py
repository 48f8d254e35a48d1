"""The load generator sends everything once, and reports what is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fencepost.errors import RpcUnavailable, Unready
from lab.bench.load import Response, post, require_status, send_at_rate, send_over

PATIENCE_S = 10.0
ANSWER = b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answer in two pieces; close the connection before or after an answer if the test asks for it."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.hangs_up_after: bytes | None = None  # the others are answered after that
        self.has_hung_up = asyncio.Event()
        self.hangs_up_on: bytes | None = None
        self.is_silent_on: bytes | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(
                    int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                )
                self.bodies.append(body)
                if body == self.hangs_up_on:
                    break
                if body == self.is_silent_on:
                    continue
                if self.hangs_up_after not in (None, body):
                    await self.has_hung_up.wait()
                writer.write(ANSWER[:20])
                await writer.drain()
                await asyncio.sleep(0)
                writer.write(ANSWER[20:])
                if body == self.hangs_up_after:
                    break
        except asyncio.IncompleteReadError:
            pass  # the client has disconnected
        finally:
            writer.close()
            if self.hangs_up_after:
                await writer.wait_closed()
                self.has_hung_up.set()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()


def requests(url: str, count: int) -> list[bytes]:
    return [post(url, "/", str(index).encode()) for index in range(count)]


async def test_every_request_is_sent_once_over_the_open_connections() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        answers = await send_over(server.url, requests(server.url, 40), connections=4)
    assert sorted(answer.number for answer in answers) == list(range(40))
    assert sorted(server.bodies, key=int) == [str(index).encode() for index in range(40)]
    assert all(answer.status == 202 and answer.answered_s >= answer.sent_s for answer in answers)


async def test_an_idle_connection_that_the_server_closes_is_replaced() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        server.hangs_up_after = b"0"
        answers = await send_over(server.url, requests(server.url, 2), connections=2)
    assert [answer.number for answer in answers] == [0, 1]


async def test_requests_are_sent_at_a_fixed_rate_without_waiting_for_answers() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        began_s = time.monotonic()
        answers = await send_at_rate(server.url, requests(server.url, 20), rate=50)
    assert sorted(answer.number for answer in answers) == list(range(20))
    assert all(answer.sent_s >= began_s + answer.number / 50 for answer in answers)


async def test_a_missing_answer_is_reported() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        server.hangs_up_on = b"3"
        with pytest.raises(RpcUnavailable):
            await send_over(server.url, requests(server.url, 10), connections=2)


async def test_a_silent_server_is_given_up_after_a_bound() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        server.is_silent_on = b"3"
        with pytest.raises(Unready, match="1 of 4 requests were not answered"):
            await send_over(server.url, requests(server.url, 4), connections=4, within_s=0.2)


def test_an_unexpected_status_fails_the_figure() -> None:
    require_status([Response(0, 202, 0.0, 1.0)], 202)
    with pytest.raises(Unready, match="429"):
        require_status([Response(0, 202, 0.0, 1.0), Response(1, 429, 0.0, 1.0)], 202)
