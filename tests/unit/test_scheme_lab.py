"""What the comparison of nonce schemes counts, and what its page says."""

from __future__ import annotations

from uuid import uuid4

from fencepost.lab.scheme_faults import FAULTS, Outcome
from fencepost.lab.scheme_load import Rate, Tally, rate
from fencepost.lab.scheme_page import page
from fencepost.lab.scheme_stage import SCHEMES, new_signer
from fencepost.lab.schemes import Measured, Report
from fencepost.nonce.port import Hold


def tally(*nonces: int) -> Tally:
    made, signer = Tally(), new_signer()
    made.note([Hold(signer, nonce, uuid4()) for nonce in nonces])
    return made


def test_a_nonce_that_two_callers_got_is_a_duplicate() -> None:
    assert tally(0, 1, 2).duplicates == 0
    assert tally(0, 1, 1, 2, 2, 2).duplicates == 3


def test_a_nonce_below_the_highest_that_nobody_got_is_a_hole() -> None:
    assert tally(0, 1, 2).holes() == set()
    assert tally(0, 3, 5).holes() == {1, 2, 4}
    assert Tally().holes() == set()


def test_a_rate_has_its_median_and_its_worst_hundredth() -> None:
    found = rate([0.001] * 98 + [0.5] * 2, seconds=2.0)
    assert (found.per_s, found.p50_ms) == (50, 1.0)
    assert found.p99_ms > 100


def test_the_page_shows_every_scheme_and_every_duplicate() -> None:
    outcome = Outcome(duplicates=7, holes=5, holes_left=2, marks_refused=0, errors=0, stall_s=0.25)
    slow, fast = Rate(100, 1, 2), Rate(1500, 1, 2)
    schemes = {name: Measured(fast, fast, dict.fromkeys(FAULTS, outcome)) for name in SCHEMES}
    schemes["postgres"] = Measured(slow, slow, dict.fromkeys(FAULTS, outcome))
    machine = dict.fromkeys(("cores", "system", "python", "postgresql", "redis"), "x")
    report = Report(machine, bare_lua=fast, bare_lua_pipelined=fast, schemes=schemes)
    text = page(report)
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
