"""A short chaos run on real parts: whatever strikes, the invariants hold. The long runs are `./dev chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.lab.chaos import run
from fencepost.lab.chaos_report import as_html, as_json
from fencepost.lab.chaos_stage import Plan
from fencepost.lab.failpoints import POINTS

SHORT = Plan(
    seconds=12.0,
    seed=7,
    nodes=3,
    strict=1,
    pipelined=2,
    victims=1,
    lease_s=2.0,
    pipelined_per_s=10,
    quiet_within_s=40,
)


def test_there_are_failpoints_around_every_call_of_a_port() -> None:
    assert len(POINTS) == len(set(POINTS)) >= 40
    assert {"ledger.commit:before", "ledger.commit:after", "chain.send:after", "keys.sign:before"} <= set(
        POINTS
    )


@pytest.mark.timeout(150)
async def test_nothing_is_lost_doubled_or_left_over_under_faults(anvil_binary: Path, tmp_path: Path) -> None:
    del anvil_binary  # fetched before this test's clock runs
    outcome = await run(SHORT, logs=tmp_path, report=lambda _: None, show=lambda _: None)
    assert [str(violation) for violation in outcome.violations] == []
    assert len(outcome.history.txs) > 30
    assert len(outcome.faults) >= 10
    assert len(outcome.by_kind) >= 5
    assert outcome.lost is not None
    assert outcome.lost.act.commits_lost > 0
    assert as_json(outcome)["ok"]
    assert "<svg" in as_html(outcome)
