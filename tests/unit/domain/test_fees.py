"""The fees of a replacement: always enough for an endpoint to accept it, never above the cap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.fees import MIN_BUMP_PERCENT, raise_by, replacement, within
from fencepost.domain.transaction import Fees

wei = st.integers(min_value=0, max_value=2**120)
percents = st.integers(min_value=0, max_value=400)


@st.composite
def fees(draw: st.DrawFn) -> Fees:
    cap_wei = draw(wei)
    return Fees(cap_wei, draw(st.integers(min_value=0, max_value=cap_wei)))


@given(wei, percents)
def test_a_raise_is_at_least_the_given_per_cent_and_one_wei(price_wei: int, percent: int) -> None:
    raised = raise_by(price_wei, percent)
    assert raised * 100 >= price_wei * (100 + percent)
    assert raised > price_wei
    assert (raised - 1) * 100 < price_wei * (100 + percent) or raised == price_wei + 1


@given(fees(), percents, wei, st.none() | fees())
def test_endpoints_accept_a_replacement(last: Fees, percent: int, cap_wei: int, quote: Fees | None) -> None:
    found = replacement(last, percent=percent, limit=Fees(cap_wei, cap_wei), quote=quote)
    if found is None:
        assert raise_by(last.fee_cap_wei, MIN_BUMP_PERCENT) > cap_wei
        return
    assert found.fee_cap_wei <= cap_wei
    assert found.tip_wei <= found.fee_cap_wei
    for new, old in ((found.fee_cap_wei, last.fee_cap_wei), (found.tip_wei, last.tip_wei)):
        assert new * 100 >= old * (100 + MIN_BUMP_PERCENT)
        assert new > old


@given(fees(), percents, fees())
def test_below_the_cap_a_replacement_pays_the_raise_and_the_quote(
    last: Fees, percent: int, quote: Fees
) -> None:
    found = replacement(last, percent=percent, limit=Fees(2**200, 2**200), quote=quote)
    assert found is not None
    assert found.fee_cap_wei == max(raise_by(last.fee_cap_wei, max(percent, 10)), quote.fee_cap_wei)
    assert found.tip_wei >= max(raise_by(last.tip_wei, max(percent, 10)), quote.tip_wei)


@given(fees(), percents, wei)
def test_bumping_reaches_an_end(last: Fees, percent: int, cap_wei: int) -> None:
    rounds = 0
    current: Fees | None = last
    while current is not None and rounds < 2_000:
        current = replacement(current, percent=percent, limit=Fees(cap_wei, cap_wei))
        rounds += 1
    assert current is None


@given(fees(), wei)
def test_a_first_price_stays_within_the_cap(quote: Fees, cap_wei: int) -> None:
    found = within(quote, Fees(cap_wei, cap_wei))
    assert found.tip_wei <= found.fee_cap_wei <= cap_wei
    assert found.fee_cap_wei == min(quote.fee_cap_wei, cap_wei)
    if quote.fee_cap_wei <= cap_wei:
        assert found == quote


def test_the_constants_that_these_tests_depend_on() -> None:
    assert MIN_BUMP_PERCENT == 10
    assert raise_by(100, 10) == 110
    assert raise_by(101, 10) == 112
    assert raise_by(0, 10) == 1


def test_a_replacement_rises_by_what_the_chain_requires() -> None:
    limit = Fees(fee_cap_wei=1000, tip_wei=1000)
    assert replacement(Fees(100, 10), percent=10, limit=limit, min_percent=13) == Fees(113, 12)
    assert replacement(Fees(100, 10), percent=50, limit=limit, min_percent=13) == Fees(150, 15)
    assert replacement(Fees(100, 10), percent=10, limit=limit, min_percent=0) == Fees(110, 11)
    assert replacement(Fees(100, 10), percent=10, limit=Fees(112, 112), min_percent=13) is None
