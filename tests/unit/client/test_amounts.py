"""Amounts are exact at any size, and invalid amounts are rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.client.amounts import DECIMALS, MAX_WEI, in_ether, wei


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("123", 123),
        ("123wei", 123),
        ("5gwei", 5 * 10**9),
        ("0.1ether", 10**17),
        (" 0.1 Ether ", 10**17),
        ("1.000000000000000001eth", 10**18 + 1),
        ("0.1000000000000000000000ether", 10**17),
        ("1.50gwei", 1_500_000_000),
        ("2.0", 2),
        (str(MAX_WEI), MAX_WEI),
    ],
)
def test_amounts_are_parsed_exactly(text: str, expected: int) -> None:
    assert wei(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "ether", ".5ether", "1.", "1.ether", "-1", "+1", "1e18", "0x10", "1,5ether", "1_000"),
        *(
            "1 000",
            "0.1",
            "0.0000000001gwei",
            "0.0000000000000000001ether",
            "1finney",
            "\u0661",
            "1.5.5ether",
        ),
        *("1ether2", "nan", "inf", str(MAX_WEI + 1), "9" * 60 + "ether", "1" * 500),
    ],
)
def test_invalid_amounts_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"amount|unit|fraction|more than"):
        wei(text)


@given(st.integers(0, MAX_WEI))
def test_ether_round_trips_without_loss(amount_wei: int) -> None:
    assert wei(in_ether(amount_wei) + "ether") == amount_wei


@given(st.integers(0, 10**30), st.sampled_from(sorted(DECIMALS)))
def test_a_unit_is_a_power_of_ten(number: int, unit: str) -> None:
    assert wei(f"{number}{unit}") == number * 10 ** DECIMALS[unit]
