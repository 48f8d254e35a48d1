"""The alert rules fire for the series of each fault and for no quiet node, according to Prometheus' own tool."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from fencepost.application.admission import ClusterSample
from fencepost.domain.states import CursorState, SubState
from fencepost.runtime.metrics import Metrics
from fixtures.api import ApiServer
from fixtures.core import eventually

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"
SECTIONS = ("## What it means", "## How to see it", "## What to do", "## What not to do")


async def run(*command: str, cwd: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode(errors="replace")


@pytest.fixture
async def promtool(tmp_path: Path) -> str:
    """Return promtool: an installed one, or that of Debian's package, which is unpacked and not installed."""
    installed = shutil.which("promtool")
    if installed is not None:
        return installed
    if shutil.which("apt-get") is None:
        pytest.skip("promtool is not installed, and there is no apt-get to fetch it")
    code, said = await run("apt-get", "download", "prometheus", cwd=tmp_path)
    if code != 0:  # a new machine has no list of packages yet
        await run("apt-get", "update", cwd=tmp_path)
        code, said = await run("apt-get", "download", "prometheus", cwd=tmp_path)
    assert code == 0, f"install Debian's package prometheus: {said}"
    code, said = await run("sh", "-c", "dpkg-deb -x prometheus_*.deb unpacked", cwd=tmp_path)
    assert code == 0, said
    return str(tmp_path / "unpacked" / "usr" / "bin" / "promtool")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


async def test_each_rule_fires_for_its_fault_and_never_when_quiet(promtool: str) -> None:
    code, said = await run(promtool, "test", "rules", "alerts_test.yml", cwd=RULES)
    assert code == 0, said


def test_each_rule_has_a_fault() -> None:
    tests = yaml.safe_load((RULES / "alerts_test.yml").read_text())["tests"]
    assert {test["name"] for test in tests} - {"quiet"} == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_each_rule_has_a_page_in_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["runbook"] == f"docs/runbook/{rule['alert']}.md"
    page = (ROOT / "docs" / "runbook" / f"{rule['alert']}.md").read_text()
    assert rule["expr"] in page
    for section in SECTIONS:
        assert f"{section}\n\n" in page
    assert f"[{rule['alert']}]({rule['alert']}.md)" in (ROOT / "docs/runbook/README.md").read_text()


def test_series_exist_before_anything_happened() -> None:
    text = Metrics(signer_labels=False).render().decode()
    for line in (
        'fencepost_signers{state="PROTECT"} 0.0',
        'fencepost_tx_sub_state{sub_state="UNFUNDED"} 0.0',
        'fencepost_tx_oldest_seconds{stage="in_flight"} 0.0',
        'fencepost_tx_submit_total{result="underpriced"} 0.0',
        'fencepost_tx_finished_total{state="FAILED"} 0.0',
        'fencepost_lease_renew_total{result="error"} 0.0',
    ):
        assert line in text


def test_a_sample_sets_the_gauges_and_resets_them() -> None:
    metrics = Metrics(signer_labels=False)
    metrics.cluster_sampled(ClusterSample({CursorState.PROTECT: 2}, 1, 5.0, 7.0, {SubState.UNFUNDED: 3}))
    read = metrics.registry.get_sample_value
    assert read("fencepost_signers", {"state": "PROTECT"}) == 2
    assert read("fencepost_tx_sub_state", {"sub_state": "UNFUNDED"}) == 3
    assert read("fencepost_signers_without_lease") == 1
    assert read("fencepost_tx_oldest_seconds", {"stage": "queued"}) == 5
    metrics.cluster_sampled(ClusterSample())
    assert read("fencepost_signers", {"state": "PROTECT"}) == 0


async def test_a_node_exports_the_state_of_its_signers_and_endpoints(api: ApiServer) -> None:
    signer = api.signers[0]
    answer = await api.post(f"/signers/{signer}/protect", None, timeout=60)
    assert answer.json["applied"], answer

    def value(name: str, **labels: str) -> float | None:
        return api.running.observer.metrics.registry.get_sample_value(name, labels)

    async def is_sampled() -> bool:
        return value("fencepost_signers", state="PROTECT") == 1

    await eventually(is_sampled)
    (endpoint,) = (one["endpoint"] for one in (await api.get("/status")).json["chains"][0]["endpoints"])
    assert value("fencepost_rpc_up", endpoint=endpoint) == 1
    assert value("fencepost_rpc_head_lag_blocks", endpoint=endpoint) == 0
    assert value("fencepost_rpc_wrong_chain", endpoint=endpoint) == 0
    assert value("fencepost_chain_silent_seconds", chain="31337") == 0
    assert value("fencepost_deferred_writes") == 0
