"""The load generator: everything is asked once, and what is lost is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fencepost.errors import RpcUnavailable, Unready
from fencepost.lab.bench.load import Answer, drive, pace, post, require

PATIENCE_S = 10.0
ANSWER = b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """Answers in two pieces; hangs up when it is told to, before an answer or after it."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.hangs_up_after: bytes | None = None  # the others are answered when that has happened
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
            pass  # the client has gone
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


async def test_all_is_asked_once_over_the_connections_there_are() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        answers = await drive(server.url, requests(server.url, 40), connections=4)
    assert sorted(answer.number for answer in answers) == list(range(40))
    assert sorted(server.bodies, key=int) == [str(index).encode() for index in range(40)]
    assert all(answer.status == 202 and answer.answered_s >= answer.asked_s for answer in answers)


async def test_a_connection_that_the_server_closes_when_it_is_idle_is_no_loss() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        server.hangs_up_after = b"0"
        answers = await drive(server.url, requests(server.url, 2), connections=2)
    assert [answer.number for answer in answers] == [0, 1]


async def test_a_pace_is_kept_whether_or_not_answers_come() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        began_s = time.monotonic()
        answers = await pace(server.url, requests(server.url, 20), rate=50)
    assert sorted(answer.number for answer in answers) == list(range(20))
    assert all(answer.asked_s >= began_s + answer.number / 50 for answer in answers)


async def test_an_answer_that_never_comes_is_told() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        server.hangs_up_on = b"3"
        with pytest.raises(RpcUnavailable):
            await drive(server.url, requests(server.url, 10), connections=2)


async def test_who_is_silent_is_not_waited_for_without_end() -> None:
    async with serving() as server, asyncio.timeout(PATIENCE_S):
        server.is_silent_on = b"3"
        with pytest.raises(Unready, match="1 of 4 requests were not answered"):
            await drive(server.url, requests(server.url, 4), connections=4, within_s=0.2)


def test_another_status_than_wanted_makes_a_figure_worthless() -> None:
    require([Answer(0, 202, 0.0, 1.0)], 202)
    with pytest.raises(Unready, match="429"):
        require([Answer(0, 202, 0.0, 1.0), Answer(1, 429, 0.0, 1.0)], 202)
