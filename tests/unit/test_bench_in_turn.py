"""Which of several rounds speaks for all."""

from __future__ import annotations

from fencepost.lab.bench.in_turn import middle


def ratio(measured: tuple[float, float]) -> float:
    return measured[0] / measured[1]


def test_a_machine_that_slows_down_changes_both_and_no_ratio() -> None:
    slowing = [(12.0, 10.0), (18.0, 15.0), (24.0, 20.0)]
    assert ratio(middle(slowing, ratio)) == 1.2


def test_a_burst_in_one_round_is_passed_over() -> None:
    assert middle([(12.0, 10.0), (30.0, 10.0), (13.0, 10.0)], ratio) == (13.0, 10.0)


def test_one_round_speaks_for_itself_and_of_two_the_lower_one() -> None:
    assert middle([(12.0, 10.0)], ratio) == (12.0, 10.0)
    assert middle([(15.0, 10.0), (12.0, 10.0)], ratio) == (12.0, 10.0)
