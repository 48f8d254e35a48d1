"""What the comparison of nonce schemes counts, and what its page shows."""

from __future__ import annotations

from uuid import uuid4

from fencepost.nonce.port import Hold
from lab.schemes.comparison import Measured, Report
from lab.schemes.faults import FAULTS, Outcome
from lab.schemes.load import Rate, Tally, rate
from lab.schemes.page import render_page
from lab.schemes.testbed import SCHEMES, new_signer


def tally(*nonces: int) -> Tally:
    made, signer = Tally(), new_signer()
    made.note([Hold(signer, nonce, uuid4()) for nonce in nonces])
    return made


def test_a_nonce_that_two_callers_got_is_a_duplicate() -> None:
    assert tally(0, 1, 2).duplicates == 0
    assert tally(0, 1, 1, 2, 2, 2).duplicates == 3


def test_an_unused_nonce_below_the_highest_is_a_gap() -> None:
    assert tally(0, 1, 2).gaps() == set()
    assert tally(0, 3, 5).gaps() == {1, 2, 4}
    assert Tally().gaps() == set()


def test_a_rate_has_a_median_and_a_99th_percentile() -> None:
    found = rate([0.001] * 98 + [0.5] * 2, seconds=2.0)
    assert (found.per_s, found.p50_ms) == (50, 1.0)
    assert found.p99_ms > 100


def test_the_page_shows_every_scheme_and_every_duplicate() -> None:
    outcome = Outcome(duplicates=7, gaps=5, gaps_left=2, marks_refused=0, errors=0, stall_s=0.25)
    slow, fast = Rate(100, 1, 2), Rate(1500, 1, 2)
    schemes = {name: Measured(fast, fast, dict.fromkeys(FAULTS, outcome)) for name in SCHEMES}
    schemes["postgres"] = Measured(slow, slow, dict.fromkeys(FAULTS, outcome))
    machine = dict.fromkeys(("cores", "system", "python", "postgresql", "redis"), "x")
    report = Report(machine, bare_lua=fast, bare_lua_pipelined=fast, schemes=schemes)
    text = render_page(report)
    assert all(f"| `{name}` |" in text for name in SCHEMES)
    assert text.count("7 / 5 → 2 / 0.25") == len(SCHEMES) * len(FAULTS)
    assert report.ratios["leased / postgres"] == 15.0
    assert report.is_fast_enough
    schemes["leased"] = Measured(slow, slow)
    assert not report.is_fast_enough


def test_redis_full_is_compared_with_the_bare_script_under_equal_load() -> None:
    fast, slow = Rate(1500, 1, 2), Rate(100, 1, 2)
    schemes = {name: Measured(slow if name == "postgres" else fast, fast) for name in SCHEMES}

    def is_fast_enough(pipelined: float) -> bool:
        return Report({}, slow, Rate(pipelined, 1, 2), schemes).is_fast_enough

    assert is_fast_enough(2200)
    assert not is_fast_enough(2300)
