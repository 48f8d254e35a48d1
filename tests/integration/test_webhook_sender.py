"""The sender of webhooks: private addresses, names that change, redirects, TLS, slow and large answers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from fencepost.adapters.http.webhooks import WebhookSender, is_public
from fencepost.events.subscriptions import MAX_ANSWER_BYTES
from fencepost.events.webhooks import Answer
from fixtures.receiver import Received, Receiver, open_receiver

CERTIFICATE = Path(__file__).parent / "tls" / "certificate.pem"  # a self-signed certificate for 127.0.0.1


class FixedResolver(AbstractResolver):
    """Resolve every name to the given addresses, one list per call; the last one stays."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family
        found = self.answers[min(self.asked, len(self.answers) - 1)]
        self.asked += 1
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=0,
            )
            for address in found
        ]

    async def close(self) -> None:
        pass


@asynccontextmanager
async def opened(
    *,
    allow_private: bool = False,
    timeout_s: float = 20.0,
    resolver: AbstractResolver | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[WebhookSender]:
    sender = WebhookSender(
        timeout_s=timeout_s, allow_private=allow_private, max_in_flight=4, resolver=resolver, ssl=tls
    )
    try:
        yield sender
    finally:
        await sender.close()


async def post(sender: WebhookSender, url: str) -> Answer:
    return await sender(url, {"webhook-id": "evt_1"}, b"{}")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("10.0.0.1", False),
        ("172.16.3.4", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - an address to reject
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("240.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a00:1", False),  # 10.0.0.1 behind NAT64
        ("2002:a00:1::", False),  # 10.0.0.1 behind 6to4
        ("2001:0:1::1", False),  # Teredo
    ],
)
def test_private_addresses_are_recognized(address: str, expected: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert is_public(address) is expected


async def test_a_private_address_is_never_connected_to() -> None:
    async with open_receiver() as receiver:
        port = receiver.url.rsplit(":", 1)[1]
        async with opened() as sender:
            literal = await post(sender, receiver.url)
        async with opened(resolver=FixedResolver(["127.0.0.1"])) as sender:
            named = await post(sender, f"http://receiver.example:{port}")
        async with opened(resolver=FixedResolver(["93.184.216.34", "127.0.0.1"])) as sender:
            mixed = await post(sender, f"http://receiver.example:{port}")
        assert not receiver.received
    for answer in (literal, named, mixed):
        assert answer.status is None
        assert "events.webhook.allow_private" in (answer.error or "")


async def test_a_name_is_resolved_once_per_connection_and_that_address_is_used() -> None:
    """A name that is public when it is checked and private a moment later leads nowhere."""
    resolver = FixedResolver(["127.0.0.1"], ["192.0.2.1"])
    async with open_receiver() as receiver, opened(allow_private=True, resolver=resolver) as sender:
        answer = await post(sender, receiver.url.replace("127.0.0.1", "receiver.example"))
        assert (answer.status, answer.error, resolver.asked) == (200, None, 1)
        assert len(receiver.received) == 1


async def test_only_the_beginning_of_an_answer_is_kept() -> None:
    async def flood(_received: Received) -> web.StreamResponse:
        return web.Response(body=b"\xff" + b"x" * 1_000_000)

    async with open_receiver() as receiver, opened(allow_private=True) as sender:
        receiver.answer = flood
        answer = await post(sender, receiver.url)
        assert answer.error is None
        assert len(answer.body) == MAX_ANSWER_BYTES
        receiver.answer = Receiver().answer
        assert (await post(sender, receiver.url)).body == "thanks"


@pytest.mark.parametrize("headers", [{"x": "y" * 20_000}, {f"x-{number}": "y" for number in range(500)}])
async def test_too_many_or_too_large_headers_are_a_failure(headers: dict[str, str]) -> None:
    async def verbose(_received: Received) -> web.StreamResponse:
        return web.Response(headers=headers)

    async with open_receiver() as receiver, opened(allow_private=True) as sender:
        receiver.answer = verbose
        answer = await post(sender, receiver.url)
    assert answer.error is not None


@pytest.mark.parametrize(
    ("header", "expected_s"), [("120", 120.0), ("soon", None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0)]
)
async def test_retry_after_is_read(header: str, expected_s: float | None) -> None:
    async def busy(_received: Received) -> web.StreamResponse:
        return web.Response(status=429, headers={"retry-after": header})

    async with open_receiver() as receiver, opened(allow_private=True) as sender:
        receiver.answer = busy
        answer = await post(sender, receiver.url)
    assert (answer.status, answer.retry_after_s) == (429, expected_s)


async def test_an_endpoint_that_hangs_or_dribbles_times_out() -> None:
    ends = asyncio.Event()

    async def hang(_received: Received) -> web.StreamResponse:
        await ends.wait()
        return web.Response()

    async with open_receiver() as receiver, opened(allow_private=True, timeout_s=0.3) as sender:
        receiver.answer = hang
        answer = await post(sender, receiver.url)
        ends.set()
    assert answer == Answer(None, "no answer within 0.3 s")


async def test_a_closed_port_is_a_failure() -> None:
    async with open_receiver() as receiver:
        url = receiver.url
    async with opened(allow_private=True) as sender:
        answer = await post(sender, url)
    assert answer.status is None
    assert "no answer" in (answer.error or "")


async def test_a_certificate_that_is_not_trusted_is_a_failure() -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=served) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with opened(allow_private=True) as sender:
            refused = await post(sender, url)
        assert not received
        trusting = ssl.create_default_context(cafile=CERTIFICATE)
        async with opened(allow_private=True, tls=trusting) as sender:
            accepted = await post(sender, url)
    assert refused.status is None
    assert "Certificate" in (refused.error or "")
    assert accepted.status == 200
