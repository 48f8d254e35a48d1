"""One fee quote shared by all callers: how long it is fresh, when callers wait for a new one, and errors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from fencepost.adapters.evm.fee_quotes import FRESH_S, FeeQuotes
from fencepost.domain.fees import FeeQuote
from fencepost.domain.transaction import Fees
from fencepost.errors import RpcUnavailable


@dataclass
class Market:
    """An endpoint whose price rises with every call; it answers on demand."""

    now_s: float = 100.0
    asked: int = 0
    is_silent: bool = False
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.open.set()

    async def ask(self) -> FeeQuote:
        self.asked += 1
        price = self.asked
        await self.open.wait()
        if self.is_silent:
            raise RpcUnavailable("silent")
        return FeeQuote.flat(Fees(price, price))


@pytest.fixture
def market() -> Market:
    return Market()


@pytest.fixture
def quotes(market: Market) -> FeeQuotes:
    return FeeQuotes(market.ask, lambda: market.now_s)


async def test_a_fresh_quote_serves_all_callers(market: Market, quotes: FeeQuotes) -> None:
    first = await asyncio.gather(*(quotes.now() for _ in range(5)))
    market.now_s += FRESH_S / 2 - 0.01
    assert {await quotes.now(), *first} == {FeeQuote.flat(Fees(1, 1))}
    assert market.asked == 1


async def test_a_quote_is_renewed_halfway_without_a_waiting_caller(market: Market, quotes: FeeQuotes) -> None:
    await quotes.now()
    market.now_s += FRESH_S / 2
    market.open.clear()
    assert await quotes.now() == FeeQuote.flat(Fees(1, 1))
    assert await quotes.now() == FeeQuote.flat(Fees(1, 1))
    await asyncio.sleep(0)
    assert market.asked == 2
    market.open.set()
    market.now_s += FRESH_S / 2  # expired: callers wait for the renewal in progress
    assert await quotes.now() == FeeQuote.flat(Fees(2, 2))
    assert market.asked == 2


async def test_an_expired_quote_is_waited_for(market: Market, quotes: FeeQuotes) -> None:
    await quotes.now()
    market.now_s += FRESH_S
    assert await quotes.now() == FeeQuote.flat(Fees(2, 2))


async def test_an_error_reaches_the_waiting_callers_and_is_not_cached(
    market: Market, quotes: FeeQuotes
) -> None:
    market.is_silent = True
    ends = await asyncio.gather(quotes.now(), quotes.now(), return_exceptions=True)
    assert [type(end) for end in ends] == [RpcUnavailable, RpcUnavailable]
    market.is_silent = False
    assert await quotes.now() == FeeQuote.flat(Fees(2, 2))


async def test_a_failed_renewal_keeps_the_quote_until_it_expires(market: Market, quotes: FeeQuotes) -> None:
    await quotes.now()
    market.is_silent = True
    market.now_s += FRESH_S / 2
    assert await quotes.now() == FeeQuote.flat(Fees(1, 1))
    await asyncio.sleep(0)
    assert await quotes.now() == FeeQuote.flat(Fees(1, 1))
    market.now_s += FRESH_S
    with pytest.raises(RpcUnavailable):
        await quotes.now()


async def test_a_cancelled_caller_does_not_cancel_the_quote_of_others(
    market: Market, quotes: FeeQuotes
) -> None:
    market.open.clear()
    gone = asyncio.get_running_loop().create_task(quotes.now())
    stays = asyncio.get_running_loop().create_task(quotes.now())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    market.open.set()
    assert await stays == FeeQuote.flat(Fees(1, 1))


async def test_closing_cancels_the_running_call(market: Market, quotes: FeeQuotes) -> None:
    market.open.clear()
    waits = asyncio.get_running_loop().create_task(quotes.now())
    await asyncio.sleep(0)
    await quotes.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waits
