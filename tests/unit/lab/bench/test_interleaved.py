"""The median round represents all rounds."""

from __future__ import annotations

from lab.bench.interleaved import median_round


def ratio(measured: tuple[float, float]) -> float:
    return measured[0] / measured[1]


def test_a_machine_that_slows_down_changes_both_and_no_ratio() -> None:
    slowing = [(12.0, 10.0), (18.0, 15.0), (24.0, 20.0)]
    assert ratio(median_round(slowing, ratio)) == 1.2


def test_a_burst_in_one_round_does_not_count() -> None:
    assert median_round([(12.0, 10.0), (30.0, 10.0), (13.0, 10.0)], ratio) == (13.0, 10.0)


def test_one_round_is_the_result_and_of_two_the_lower_one() -> None:
    assert median_round([(12.0, 10.0)], ratio) == (12.0, 10.0)
    assert median_round([(15.0, 10.0), (12.0, 10.0)], ratio) == (12.0, 10.0)
