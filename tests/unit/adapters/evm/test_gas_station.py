"""A gas station over HTTP: prices by pointer and unit, bounds, cache, and failures that are not repeated at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from aiohttp import web

from fencepost.adapters.evm.gas_station import (
    MAX_BODY_BYTES,
    HttpGasStation,
    Pointers,
    StationSettings,
    read_quote,
)
from fencepost.domain.fees import FeeQuote, FeeTier
from fencepost.domain.transaction import Fees
from fencepost.errors import FeeSourceError

GWEI = 10**9
BODY = b'{"safe~/Low":{"maxFee":30.5,"maxPriorityFee":"30"},"all":[{"maxFee":"0x9502f9000","maxPriorityFee":31.2}]}'
TIERS = {
    FeeTier.SLOW: Pointers("/safe~0~1Low/maxFee", "/safe~0~1Low/maxPriorityFee"),
    FeeTier.NORMAL: Pointers("/all/0/maxFee", "/all/0/maxPriorityFee"),
}
SETTINGS = StationSettings("http://127.0.0.1/", TIERS)


def test_prices_are_read_by_pointer_and_unit() -> None:
    quote = read_quote(BODY, SETTINGS)
    normal = Fees(40 * GWEI, 31 * GWEI + GWEI // 5)
    assert quote == FeeQuote(
        Fees(30 * GWEI + GWEI // 2, 30 * GWEI), normal, normal, normal, source="gas_station"
    )


def test_one_price_is_fee_cap_and_tip_and_is_rounded_up() -> None:
    tiers = {FeeTier.NORMAL: Pointers("/p")}
    assert read_quote(b'{"p":1.0000000001}', StationSettings("", tiers)).normal == Fees(GWEI + 1, GWEI + 1)
    assert read_quote(b'{"p":7}', StationSettings("", tiers, unit="wei")).normal == Fees(7, 7)


def test_a_tip_above_the_fee_cap_is_cut() -> None:
    tiers = {FeeTier.NORMAL: Pointers("/p", "/t")}
    assert read_quote(b'{"p":1,"t":2}', StationSettings("", tiers)).normal == Fees(GWEI, GWEI)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"<html>", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b'{"q":1}', "nothing at /p"),
        (b'{"p":null}', "no price at /p"),
        (b'{"p":true}', "no price at /p"),
        (b'{"p":0}', "no price at /p"),
        (b'{"p":-1}', "no price at /p"),
        (b'{"p":"NaN"}', "no price at /p"),
        (b'{"p":1e300}', "no price at /p"),
        (b'{"p":"1e999999"}', "no price at /p"),
        (b'{"p":"0xzz"}', "no price at /p"),
        (b'{"p":[1]}', "no price at /p"),
    ],
)
def test_what_is_no_price_is_an_error(body: bytes, message: str) -> None:
    with pytest.raises(FeeSourceError, match=message):
        read_quote(body, StationSettings("", {FeeTier.NORMAL: Pointers("/p")}))


@dataclass
class Server:
    url: str = ""
    calls: int = 0
    status: int = 200
    body: bytes = BODY
    keys: list[str | None] = field(default_factory=list)
    hangs: asyncio.Event | None = None

    async def answer(self, request: web.Request) -> web.Response:
        self.calls += 1
        self.keys.append(request.headers.get("X-Key"))
        if self.hangs is not None:
            await self.hangs.wait()
        return web.Response(body=self.body, status=self.status, headers={"Location": "/other"})


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    app = web.Application()
    app.router.add_get("/{any:.*}", found.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}/gas"
    yield found
    if found.hangs is not None:
        found.hangs.set()
    await runner.cleanup()


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_an_answer_serves_all_callers_for_a_while(server: Server) -> None:
    clock = Clock()
    settings = StationSettings(server.url, TIERS, headers=(("X-Key", "hush"),), cache_s=10)
    station = HttpGasStation(settings, clock=clock)
    try:
        quotes = await asyncio.gather(*(station.quote() for _ in range(4)))
        assert {quote.source for quote in quotes} == {"gas_station"}
        assert (server.calls, server.keys) == (1, ["hush"])
        clock.now_s += 11
        await station.quote()
        assert server.calls == 2
    finally:
        await station.aclose()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, b"", "HTTP 500"),
        (302, b"", "HTTP 302"),
        (200, b" " * (MAX_BODY_BYTES + 1), "larger than"),
        (200, b"{}", "nothing at"),
    ],
)
async def test_a_failure_is_not_repeated_at_once(
    server: Server, status: int, body: bytes, message: str
) -> None:
    clock = Clock()
    server.status, server.body = status, body
    station = HttpGasStation(StationSettings(server.url, TIERS, cache_s=10), clock=clock)
    try:
        for _ in range(3):
            with pytest.raises(FeeSourceError, match=message):
                await station.quote()
        assert server.calls == 1
        server.status, server.body = 200, BODY
        clock.now_s += 11
        assert (await station.quote()).source == "gas_station"
    finally:
        await station.aclose()


async def test_a_silent_station_is_given_up_after_its_timeout(server: Server) -> None:
    server.hangs = asyncio.Event()
    station = HttpGasStation(StationSettings(server.url, TIERS, timeout_s=0.1))
    try:
        with pytest.raises(FeeSourceError, match=r"did not answer within 0\.1 s"):
            await station.quote()
    finally:
        await station.aclose()


async def test_an_unreachable_station_is_named_without_its_url() -> None:
    station = HttpGasStation(StationSettings("http://127.0.0.1:1/hush", TIERS))
    try:
        with pytest.raises(FeeSourceError, match="can't be reached") as raised:
            await station.quote()
        assert "hush" not in str(raised.value)
    finally:
        await station.aclose()
