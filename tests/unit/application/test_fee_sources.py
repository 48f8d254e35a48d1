"""The price source of a chain: which source answers, what replaces one that fails, and what a lie costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from fakes.bench import GWEI, QUICK, SINK, Bench
from fakes.clock import FakeClock
from fencepost.application.fee_sources import MAX_QUOTE_AGE_S, FeeSources
from fencepost.application.signing import fee_limit
from fencepost.application.spending_policy import Limits
from fencepost.domain.fees import FeeQuote, FeeTier
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, Fees
from fencepost.domain.transaction_state import Intent, Purpose
from fencepost.errors import FeeSourceError, RpcUnavailable
from fencepost.testing import InMemoryChain

TIERS = FeeQuote(
    Fees(10 * GWEI, GWEI),
    Fees(20 * GWEI, 2 * GWEI),
    Fees(30 * GWEI, 3 * GWEI),
    Fees(40 * GWEI, 4 * GWEI),
    "gas_station",
)


@dataclass
class Station:
    quoted: FeeQuote = TIERS
    is_silent: bool = False

    async def quote(self) -> FeeQuote:
        if self.is_silent:
            raise FeeSourceError("silent")
        return self.quoted


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def chain(bench: Bench) -> InMemoryChain:
    bench.chain.base_fee_wei, bench.chain.tip_wei = 8 * GWEI, GWEI  # quoted as 17
    return bench.chain


def sources(chain: InMemoryChain, station: Station | None = None) -> tuple[FeeSources, list[str], FakeClock]:
    limited: list[str] = []
    clock = FakeClock()
    found = FeeSources(chain, clock, station=station, on_limited=limited.append)
    return found, limited, clock


async def test_a_gas_station_is_used_and_named(chain: InMemoryChain) -> None:
    fees, limited, _ = sources(chain, Station())
    assert await fees.quote() == TIERS
    assert not limited


async def test_a_failing_station_is_replaced_by_its_last_quote_and_then_by_the_endpoints(
    chain: InMemoryChain,
) -> None:
    station = Station()
    fees, _, clock = sources(chain, station)
    await fees.quote()
    station.is_silent = True
    cached = await fees.quote()
    assert (cached.normal, cached.source) == (TIERS.normal, "cache")
    clock.advance(MAX_QUOTE_AGE_S + 1)
    assert await fees.quote() == FeeQuote.flat(Fees(17 * GWEI, GWEI), "node")
    chain.offline = True
    with pytest.raises(RpcUnavailable):
        await fees.quote()


async def test_a_station_is_used_alone_while_the_endpoints_are_silent(chain: InMemoryChain) -> None:
    fees, _, _ = sources(chain, Station())
    chain.offline = True
    assert await fees.quote() == TIERS


async def test_a_station_far_above_the_endpoints_is_not_used(chain: InMemoryChain) -> None:
    station = Station(FeeQuote.flat(Fees(86 * GWEI, GWEI), "gas_station"))  # 5 times 17 is 85
    fees, limited, _ = sources(chain, station)
    assert (await fees.quote()).source == "node"
    assert len(limited) == 1
    assert "5 times" in limited[0]
    station.quoted = FeeQuote.flat(Fees(85 * GWEI, GWEI), "gas_station")
    assert (await fees.quote()).source == "gas_station"


async def test_a_jump_of_the_endpoints_is_cut_and_a_rising_market_is_followed(chain: InMemoryChain) -> None:
    fees, limited, clock = sources(chain)
    await fees.quote()
    chain.base_fee_wei = 1000 * GWEI
    assert (await fees.quote()).normal == Fees(85 * GWEI, GWEI)
    assert (await fees.quote()).normal == Fees(425 * GWEI, GWEI)
    assert (await fees.quote()).normal == Fees(2001 * GWEI, GWEI)
    assert len(limited) == 2
    clock.advance(MAX_QUOTE_AGE_S + 1)
    chain.base_fee_wei = 20_000 * GWEI
    assert (await fees.quote()).normal.fee_cap_wei == 40_001 * GWEI  # nothing recent to compare it with


async def test_prices_below_the_floor_are_not_cut(chain: InMemoryChain) -> None:
    chain.base_fee_wei, chain.tip_wei = 7, 1
    fees, limited, _ = sources(chain)
    await fees.quote()
    chain.tip_wei = 9 * GWEI
    assert (await fees.quote()).normal.tip_wei == 9 * GWEI
    assert not limited


async def test_endpoints_that_fail_are_replaced_by_their_last_quote(chain: InMemoryChain) -> None:
    fees, _, _ = sources(chain)
    await fees.quote()
    chain.offline = True
    assert (await fees.quote()).source == "cache"


# ---- in a lane


def with_station(bench: Bench, station: Station) -> None:
    bench.fees = FeeSources(bench.chain, bench.clock, station=station)


async def test_a_request_pays_its_tier_and_the_attempt_names_the_source(
    bench: Bench, chain: InMemoryChain
) -> None:
    del chain
    with_station(bench, Station())
    node = bench.node(replace(QUICK, fee_tier=FeeTier.SLOW))
    call = Call(to=SINK, value_wei=1)
    of_signer = await bench.request(Intent(call=call, gas=21_000))
    own = await bench.request(Intent(call=call, gas=21_000, tier=FeeTier.URGENT))
    priced = await bench.request(Intent(call=call, gas=21_000, fees=Fees(18 * GWEI, GWEI)))
    await node.turn(2)
    assert [
        (bench.tx(tx_id).latest.fees, bench.tx(tx_id).latest.fee_source) for tx_id in (of_signer, own, priced)
    ] == [
        (TIERS.slow, "gas_station"),
        (TIERS.urgent, "gas_station"),
        (Fees(18 * GWEI, GWEI), "request"),
    ]


async def test_no_tier_and_no_source_goes_above_the_cap(bench: Bench, chain: InMemoryChain) -> None:
    del chain
    with_station(bench, Station())
    node = bench.node(replace(QUICK, fee_cap_wei=25 * GWEI))
    tx_id = await bench.request(Intent(call=Call(to=SINK), gas=21_000, tier=FeeTier.URGENT))
    await node.turn(2)
    assert bench.tx(tx_id).latest.fees == Fees(25 * GWEI, 4 * GWEI)


async def test_a_request_without_a_price_is_rejected_where_the_source_is_disabled(bench: Bench) -> None:
    node = bench.node(replace(QUICK, price_required=True))
    without = await bench.request(Intent(call=Call(to=SINK), gas=21_000))
    priced = await bench.request(Intent(call=Call(to=SINK), gas=21_000, fees=Fees(5 * GWEI, GWEI)))
    await node.turn(2)
    assert bench.state(without) is State.FAILED
    assert bench.tx(without).nonce is None
    assert "fees.source is disabled" in (bench.tx(without).error or "")
    assert bench.tx(priced).latest.fee_source == "request"


async def test_fixed_prices_are_named(bench: Bench) -> None:
    fixed = Fees(5 * GWEI, GWEI)
    node = bench.node(replace(QUICK, fixed_fees=fixed))
    tx_id = await bench.request(Intent(call=Call(to=SINK), gas=21_000, tier=FeeTier.URGENT))
    await node.turn(2)
    assert (bench.tx(tx_id).latest.fees, bench.tx(tx_id).latest.fee_source) == (fixed, "fixed")


@pytest.mark.parametrize("reserve", [0, 25])
async def test_a_filler_may_pay_the_reserve_above_the_cap(bench: Bench, *, reserve: int) -> None:
    cap_wei = 20 * GWEI
    node = bench.node(
        replace(QUICK, fee_cap_wei=cap_wei, filler_reserve_percent=reserve, min_bump_percent=13)
    )
    tx_id = await bench.request(Intent(call=Call(to=SINK), gas=21_000, fees=Fees(cap_wei, cap_wei)))
    await node.turn(2)
    await bench.ask("cancel", tx_id)
    await node.turn(2)
    tx = bench.tx(tx_id)
    prices = [attempt.fees.fee_cap_wei for attempt in tx.attempts]
    if reserve:
        assert prices == [cap_wei, cap_wei * 113 // 100]
        assert tx.nonce == 0
    else:
        assert prices == [cap_wei]


async def test_the_policy_holds_for_the_reserve_of_fillers_too(bench: Bench) -> None:
    node = bench.node(replace(QUICK, fee_cap_wei=20 * GWEI, filler_reserve_percent=25))
    tx_id = await bench.request(Intent(call=Call(to=SINK), gas=21_000, fees=Fees(10 * GWEI, GWEI)))
    await node.turn(2)
    lane = node.lane
    lane.sending.limits = Limits(fee_cap_max_wei=15 * GWEI)
    assert fee_limit(lane, bench.tx(tx_id), Purpose.FILLER).fees.fee_cap_wei == 15 * GWEI
    lane.sending.limits = None
    assert fee_limit(lane, bench.tx(tx_id), Purpose.FILLER).fees.fee_cap_wei == 25 * GWEI
    assert fee_limit(lane, bench.tx(tx_id), Purpose.INTENT).fees.fee_cap_wei == 10 * GWEI
