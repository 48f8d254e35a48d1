"""docs/lab.md says what the figures say, and no more."""

from __future__ import annotations

import json
from pathlib import Path

from fencepost.lab import chaos_lost_commits
from fencepost.lab.chaos import STRANDS
from fencepost.lab.fault_kinds import KINDS
from fencepost.lab.page import page

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"


def test_the_lab_page_is_fresh() -> None:
    recorded = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    assert recorded == page(FIGURES), "run: ./dev run fencepost lab page > docs/lab.md"


def test_what_was_not_run_is_said_to_be_so(tmp_path: Path) -> None:
    empty = page(tmp_path)
    assert empty.count("Not run yet.") == 4
    (tmp_path / "sim.json").write_text(
        '{"machine": {"cores": "2", "memory": "4 GiB", "system": "Linux"}, "seeds": 3, "simulatedHours": 1.5,'
        ' "faultCount": 4, "faultKinds": 2, "requests": 9, "confirmed": 8, "violatingSeeds": 1}'
    )
    told = page(tmp_path)
    assert told.count("Not run yet.") == 3
    assert "`./dev sim --seeds 3 --json`" in told
    assert "| **seeds with a violation** | **1** |" in told


def test_what_a_fail_over_lost_is_told(tmp_path: Path) -> None:
    figures = json.loads((FIGURES / "chaos.json").read_text(encoding="utf-8"))
    figures["lostCommits"] = {
        "tries": 1,
        "commits": 1424,
        "requests": 128,
        "sentAndForgotten": 137,
        "signersProtected": 9,
        "quietWithinS": None,
        "violations": 0,
    }
    (tmp_path / "chaos.json").write_text(json.dumps(figures), encoding="utf-8")
    told = page(tmp_path)
    assert "| lost by the fail-over at the end | 1,424 commits, 128 acknowledged requests |" in told
    assert "| sent before it, and forgotten | 137 transactions |" in told
    assert "| signers in PROTECT for it | 9 |" in told
    assert "| quiet after it | never |" in told


def test_every_fault_of_a_chaos_run_has_words() -> None:
    faults = {fault.__name__ for _, strand in STRANDS.values() for fault in strand}
    told_otherwise = {
        "db_restart": "db_restart_immediate",
        "rpc_hang": "rpc_time_out",
        "rpc_executed": "rpc_executed_then_error",
    }
    assert {told_otherwise.get(name, name) for name in faults} | {"stranger", chaos_lost_commits.KIND} == set(
        KINDS
    )
