"""`HttpTransport` against a server that answers any bytes the test chooses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fencepost.adapters.evm.http_transport import BodyTooLarge, ConnectionLost, HttpTransport

CERTIFICATE = Path(__file__).parent / "tls" / "certificate.pem"  # a self-signed certificate for 127.0.0.1
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
Say = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A server; `say` gets the number of the request, counted over all connections."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self.url = ""
        self.requests: list[bytes] = []
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._say(len(self.requests), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(say: Say, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(say)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls) as listening:
        scheme = "https" if tls else "http"
        server.url = f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v3?key=1"
        yield server


@asynccontextmanager
async def posting(
    url: str, *, timeout_s: float = 5, body_bytes_max: int = 1000
) -> AsyncIterator[HttpTransport]:
    poster = HttpTransport(url, timeout_s=timeout_s, body_bytes_max=body_bytes_max)
    try:
        yield poster
    finally:
        await poster.aclose()


async def answer_to(poster: HttpTransport, body: bytes) -> tuple[int, bytes]:
    posted = await poster.post(body)
    return posted.status, posted.body


def saying(*pieces: bytes, then_close: bool = False) -> Say:
    async def say(_: int, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
        if then_close:
            writer.close()

    return say


async def test_a_connection_is_reused_and_the_request_is_complete() -> None:
    async with serving(saying(OK)) as server, posting(server.url.replace("//", "//me:p%40ss@")) as poster:
        assert await answer_to(poster, b'{"a": 1}') == (200, b"{}")
        assert await answer_to(poster, b"[]") == (200, b"{}")
        assert server.connections == 1
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        assert body == b'{"a": 1}'
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /v3?key=1 HTTP/1.1"
        assert b"host: " + server.url.split("/")[2].encode() in lines
        assert b"authorization: Basic bWU6cEBzcw==" in lines
        assert b"content-type: application/json" in lines
        assert any(line.startswith(b"user-agent: fencepost/") for line in lines)


@pytest.mark.parametrize(
    "pieces",
    [
        [OK],
        [OK[i : i + 1] for i in range(len(OK))],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n", b"1\r\n}\r\n0\r\n\r\n"],
        [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", OK],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + OK],
    ],
)
async def test_every_framing_of_a_delimited_body_is_read(pieces: list[bytes]) -> None:
    async with serving(saying(*pieces)) as server, posting(server.url) as poster:
        assert [await answer_to(poster, b"1") for _ in range(3)] == [(200, b"{}")] * 3
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
async def test_a_body_may_end_with_the_connection(answer: bytes) -> None:
    async with serving(saying(answer, then_close=True)) as server, posting(server.url) as poster:
        assert [await answer_to(poster, b"1") for _ in range(3)] == [(200, b"{}")] * 3
        assert server.connections == 3


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"HTTP/1.1 200 OK\r\ncontent-le"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}"],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n"],
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
        [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
    ],
)
async def test_a_truncated_answer_is_an_error_and_is_not_requested_again(pieces: list[bytes]) -> None:
    async with serving(saying(*pieces, then_close=True)) as server, posting(server.url) as poster:
        with pytest.raises(ConnectionLost):
            await poster.post(b"1")
        assert len(server.requests) == 1


async def test_late_or_unsolicited_bytes_answer_no_request() -> None:
    async def say(number: int, writer: asyncio.StreamWriter) -> None:
        if number == 1:
            await asyncio.sleep(0.6)  # too late
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number)
        if number == 2:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n9")  # more than the requested answer
        if number == 3:
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(b"HTTP/1.1 408 Timeout\r\ncontent-length: 0\r\n\r\n")

    async with serving(say) as server, posting(server.url, timeout_s=0.4) as poster:
        with pytest.raises(TimeoutError):
            await poster.post(b"1")
        await asyncio.sleep(0.3)
        assert await answer_to(poster, b"2") == (200, b"2")
        assert await answer_to(poster, b"3") == (200, b"3")
        await asyncio.sleep(0.2)
        assert await answer_to(poster, b"4") == (200, b"4")
        assert server.connections == 4


async def test_the_first_answer_of_a_connection_is_marked() -> None:
    async with serving(saying(OK)) as server, posting(server.url) as poster:
        assert [(await poster.post(b"1")).is_first for _ in range(3)] == [True, False, False]
        poster.disable_reuse()
        assert [(await poster.post(b"1")).is_first for _ in range(3)] == [True, True, True]
        assert server.connections == 4


async def test_a_caller_that_leaves_closes_its_connection() -> None:
    async def say(number: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3 if number == 1 else 0)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % number)

    async with serving(say) as server, posting(server.url) as poster:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await poster.post(b"1")
        assert await answer_to(poster, b"2") == (200, b"2")
        assert server.connections == 2


async def test_a_connection_closed_while_idle_is_not_reused() -> None:
    async with serving(saying(OK, then_close=True)) as server, posting(server.url) as poster:
        assert await answer_to(poster, b"1") == (200, b"{}")
        await asyncio.sleep(0.2)
        assert await answer_to(poster, b"2") == (200, b"{}")
        assert server.connections == 2


async def test_the_answer_size_is_bounded() -> None:
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000
    async with serving(saying(endless)) as server, posting(server.url) as poster:
        with pytest.raises(BodyTooLarge):
            await poster.post(b"1")


async def test_the_number_of_connections_is_bounded() -> None:
    asked, most_at_once = 0, 0

    async def say(_: int, writer: asyncio.StreamWriter) -> None:
        nonlocal asked, most_at_once
        asked += 1
        most_at_once = max(most_at_once, asked)
        await asyncio.sleep(0.01)
        asked -= 1
        writer.write(OK)

    async with serving(say) as server, posting(server.url, timeout_s=30) as poster:
        assert await asyncio.gather(*(answer_to(poster, b"1") for _ in range(60))) == [(200, b"{}")] * 60
        assert most_at_once == server.connections == 16


async def test_the_wait_for_a_connection_is_as_long_as_the_wait_for_an_answer() -> None:
    async with serving(saying()) as server, posting(server.url, timeout_s=0.2) as poster:
        began_s = asyncio.get_running_loop().time()
        ended = await asyncio.gather(*(poster.post(b"1") for _ in range(160)), return_exceptions=True)
        assert all(isinstance(error, TimeoutError) for error in ended)
        assert asyncio.get_running_loop().time() - began_s < 1.5, (
            "ten times sixteen, one after another: two seconds"
        )


async def test_closing_fails_the_waiting_callers() -> None:
    async with serving(saying()) as server, posting(server.url) as poster:
        waiting = asyncio.ensure_future(poster.post(b"1"))
        await asyncio.sleep(0.05)
        await poster.aclose()
        with pytest.raises(ConnectionLost):
            await waiting


async def test_a_tls_endpoint_is_trusted_only_by_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    async with serving(saying(OK), tls=tls) as server:
        async with posting(server.url) as unverified:
            with pytest.raises(ssl.SSLCertVerificationError):
                await unverified.post(b"[]")
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        async with posting(server.url) as friend:
            assert await answer_to(friend, b"[]") == (200, b"{}")
            assert await answer_to(friend, b"{}") == (200, b"{}")
        assert (server.connections, len(server.requests)) == (1, 2)
