"""Run a short chaos run on real parts and check that the invariants hold. The long runs are `./dev chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.chaos.failpoints import POINTS
from lab.chaos.report import as_html, as_json
from lab.chaos.run import run
from lab.chaos.testbed import Plan

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


def test_every_port_call_has_failpoints() -> None:
    assert len(POINTS) == len(set(POINTS)) >= 40
    assert {"ledger.commit:before", "ledger.commit:after", "chain.send:after", "keys.sign:before"} <= set(
        POINTS
    )


@pytest.mark.timeout(300)
async def test_faults_lose_duplicate_and_leave_nothing(anvil_binary: Path, tmp_path: Path) -> None:
    del anvil_binary  # install it before the test's time limit starts
    outcome = await run(SHORT, logs=tmp_path, report=lambda _: None, show=lambda _: None)
    assert [str(violation) for violation in outcome.violations] == []
    assert len(outcome.history.txs) > 30
    assert len(outcome.faults) >= 10
    assert len(outcome.by_kind) >= 5
    assert outcome.restored is not None
    assert outcome.restored.found.attached > 0
    assert outcome.lost is not None
    assert outcome.lost.act.commits_lost > 0
    assert as_json(outcome)["ok"]
    assert "<svg" in as_html(outcome)
