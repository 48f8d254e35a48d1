"""Check that docs/lab.md is generated from the recorded results."""

from __future__ import annotations

import json
from pathlib import Path

from lab.chaos import lost_commits_phase, restore_phase
from lab.chaos.fault_kinds import KINDS
from lab.chaos.run import FAULT_STREAMS
from lab.results_page import render_page

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "figures"


def test_the_lab_page_is_up_to_date() -> None:
    recorded = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    assert recorded == render_page(FIGURES), "run: ./dev run python -m lab page > docs/lab.md"


def test_the_page_says_what_was_not_run(tmp_path: Path) -> None:
    empty = render_page(tmp_path)
    assert empty.count("Not run yet.") == 4
    (tmp_path / "sim.json").write_text(
        '{"machine": {"cores": "2", "memory": "4 GiB", "system": "Linux"}, "seeds": 3, "simulatedHours": 1.5,'
        ' "faultCount": 4, "faultKinds": 2, "requests": 9, "confirmed": 8, "violatingSeeds": 1}'
    )
    rendered = render_page(tmp_path)
    assert rendered.count("Not run yet.") == 3
    assert "`./dev sim --seeds 3 --json`" in rendered
    assert "| **seeds with a violation** | **1** |" in rendered


def test_the_page_reports_what_a_fail_over_lost(tmp_path: Path) -> None:
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
    rendered = render_page(tmp_path)
    assert "| lost by the fail-over at the end | 1,424 commits, 128 acknowledged requests |" in rendered
    assert "| sent before it and forgotten | 137 transactions |" in rendered
    assert "| signers in PROTECT because of it | 9 |" in rendered
    assert "| quiet after it | never |" in rendered


def test_the_page_reports_what_a_restore_attached(tmp_path: Path) -> None:
    figures = json.loads((FIGURES / "chaos.json").read_text(encoding="utf-8"))
    figures["restoredCopy"] = {
        "lostS": 6.2,
        "requestsWithoutNonce": 1140,
        "requestsAttached": 1100,
        "noncesFilled": 1284,
        "droppedFromPool": 0,
        "quietWithinS": 12.5,
        "violations": 0,
    }
    (tmp_path / "chaos.json").write_text(json.dumps(figures), encoding="utf-8")
    rendered = render_page(tmp_path)
    assert (
        "| restored from a copy without its last seconds | 6.2 s, 1,140 requests without a nonce in it |"
        in rendered
    )
    assert "| of them already executed, and attached | 1,100 |" in rendered
    assert "| nonces that fillers took because of the doubt | 1,284 |" in rendered
    assert "| quiet after the restore | 12.5 s |" in rendered


def test_every_chaos_fault_has_a_description() -> None:
    faults = {fault.__name__ for _, strand in FAULT_STREAMS.values() for fault in strand}
    other_names = {
        "db_restart": "db_restart_immediate",
        "rpc_hang": "rpc_time_out",
        "rpc_executed": "rpc_executed_then_error",
    }
    acts = {"foreign_transaction", restore_phase.KIND, lost_commits_phase.KIND}
    assert {other_names.get(name, name) for name in faults} | acts == set(KINDS)
