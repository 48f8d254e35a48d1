"""The limit on invalid keys per peer."""

from __future__ import annotations

from fencepost.api.auth import FailureLimit


def test_a_burst_is_allowed_and_then_a_rate_per_second() -> None:
    now = [100.0]
    limit = FailureLimit(burst=5, per_s=2.0, now_s=lambda: now[0])
    for _ in range(5):
        assert limit.wait_s("a") == 0
        limit.count("a")
    assert 0 < limit.wait_s("a") <= 0.5
    assert limit.wait_s("b") == 0
    now[0] += 0.5
    assert limit.wait_s("a") == 0
    for _ in range(1000):  # a long attack expires as soon as a short one
        limit.count("a")
    now[0] += 3.5
    assert limit.wait_s("a") == 0
