"""The benchmark's verdicts, tables and charts."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from fencepost.errors import Unready
from lab.bench import charts
from lab.bench.page import render_page, write_page
from lab.bench.profile import PackageCost, Profile, Stack, StageTime, cut_stacks
from lab.bench.profiled_node import NodeProfile
from lab.bench.report import Figure, rows
from lab.bench.stack_sampler import named, package_of

FASTER = Figure("accept <all>", 50, "/s", 0.4, True, "pgbench/s", 100)
SLOWER = Figure("growth: cost with 9 signers", 3, "µs a tx", 1.3, False, "1 signer, µs", 2)
ALONE = Figure("idle: CPU", 1.5, "%", 2, False)


@pytest.mark.parametrize(("figure", "ratio", "reached"), [(FASTER, 0.5, True), (SLOWER, 1.5, False)])
def test_a_figure_is_judged_by_its_ratio(figure: Figure, ratio: float, *, reached: bool) -> None:
    assert figure.ratio == ratio
    assert figure.is_reached is reached


def test_a_figure_without_a_baseline_is_judged_by_itself() -> None:
    assert ALONE.ratio is None
    assert ALONE.is_reached
    assert rows([ALONE]) == [("idle: CPU", "1.5 %", "-", "-", "≤ 2", "reached")]


def test_a_figure_without_a_target_is_not_judged() -> None:
    extra = Figure("how it was", 5, "/s", None, True)
    assert extra.is_reached is None
    assert rows([extra]) == [("how it was", "5 /s", "-", "-", "-", "")]
    assert "how it was" not in charts.targets([ALONE, extra], {})


def test_narrow_stacks_are_merged_and_no_sample_is_lost() -> None:
    wide, narrow = ("a", "b", "c"), ("a", "b", "d")
    cut = cut_stacks(NodeProfile([], [], [(wide, 999), (narrow, 1)]), 1_000)
    assert [(stack.frames, stack.share) for stack in cut] == [(["a", "b"], 0.001), (["a", "b", "c"], 0.999)]


def test_code_is_named_by_its_module() -> None:
    assert named(charts.__file__, "bars") == "lab.bench.charts:bars"
    assert named(msgspec.__file__, "encode") == "msgspec"
    assert named(json.__file__, "dumps") == "json"
    assert package_of("fencepost.adapters.evm.rlp:encode") == "fencepost.adapters.evm"
    assert package_of("fencepost.domain.transaction_state:sent") == "fencepost.domain"
    assert package_of("msgspec") == "msgspec"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with figures."""
    figures = tmp_path / "figures"
    figures.mkdir()
    measured = {
        "machine": {"cores": "2"},
        "figures": [figure.as_json() for figure in (FASTER, SLOWER, ALONE)],
        "failures": {"memory": "not measured within 1 s"},
        "notes": ["on a busy machine"],
    }
    (figures / "bench.json").write_text(json.dumps(measured))
    profile = Profile(
        machine={"cores": "2"},
        rate=100,
        stages=[StageTime("HTTP", 1.0, 2.0), StageTime("sign", 3.0, 4.0)],
        transactions=10,
        node_us=200.0,
        packages=[PackageCost("coincurve", 150.0, 0.75)],
        stacks=[Stack(["a", "fencepost.b:<c>"], 0.75), Stack(["a"], 0.25)],
    )
    (figures / "profile.json").write_bytes(msgspec.json.encode(profile))
    return tmp_path


def test_the_page_shows_every_figure_and_names_missing_ones(folder: Path) -> None:
    text = render_page(folder / "figures")["speed.md"]
    assert "| accept <all> | 50 /s | 100 (pgbench/s) | 0.50 | ≥ 0.4 | reached |" in text
    assert "- not measured: memory (not measured within 1 s)\n- on a busy machine\n" in text
    assert "| sign | 3 ms | 4 ms |" in text


def test_the_page_is_written_to_the_given_folder_with_valid_charts(folder: Path) -> None:
    write_page(folder)
    for name, text in render_page(folder / "figures").items():
        assert (folder / name).read_text(encoding="utf-8") == text
        if name.endswith(".svg"):
            ET.fromstring(text)  # noqa: S314 - the project's own text: names that need escaping would break it


def test_flames_are_as_wide_as_their_share() -> None:
    drawn = charts.flames("", [(["low", "high"], 0.25), (["low"], 0.25)])
    assert 'width="600.0"' in drawn
    assert 'width="300.0"' in drawn
    assert "low: 50.0%" in drawn


def test_a_page_without_figures_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Unready, match=r"bench\.json"):
        render_page(tmp_path)
