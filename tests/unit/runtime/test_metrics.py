"""The metrics of a node, and that alerts, dashboard and documents name only existing ones."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import aiohttp
import prometheus_client
import pytest
import yaml  # type: ignore[import-untyped]  # it ships no types

from fencepost.api import create_app
from fencepost.application.ports import TxChange
from fencepost.domain.ids import Address, Signer
from fencepost.domain.send_result import SendCategory
from fencepost.domain.states import State
from fencepost.domain.transaction import Call
from fencepost.domain.transaction_state import Intent, Kind, ManagedTx
from fencepost.http.server import bind, serve
from fencepost.runtime import logs
from fencepost.runtime.histogram import Histogram
from fencepost.runtime.metrics import MAX_SIGNER_LABELS, Metrics, PoolUse
from fencepost.runtime.observer import NodeObserver

ROOT = Path(__file__).parents[3]
SIGNER = Signer(1, Address("0x" + "5e" * 20))
TX, TAKEN_OVER = UUID(int=1), UUID(int=2)

# Each name that operators' alerts may rely on.
PROMISED = {
    "fencepost_lease_acquire_total": {"result"},
    "fencepost_lease_renew_total": {"result"},
    "fencepost_lease_fenced_total": {"op"},
    "fencepost_tx_submit_total": {"result"},
    "fencepost_receipt_check_total": {"result"},
    "fencepost_confirmations_new_fork_total": set(),
    "fencepost_stuck_hook_failed_total": set(),
    "fencepost_worker_queue_depth": set(),
    "fencepost_worker_queue_wait_seconds": set(),
    "fencepost_tx_state": {"state"},
    "fencepost_tx_stage_seconds": {"stage"},
    "fencepost_rpc_request_seconds": {"endpoint", "method"},
    "fencepost_rpc_errors_total": {"endpoint", "outcome"},
    "fencepost_rpc_hedged_total": {"endpoint"},
    "fencepost_db_pool_connections": {"use"},
}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def noted(metrics: Metrics) -> NodeObserver:
    return NodeObserver("north", metrics)


def moved(tx_id: UUID, before: State, after: State, *, received_s: float | None = None) -> TxChange:
    intent = Intent(Call(SIGNER.address))
    tx = ManagedTx(tx_id, SIGNER, 1, Kind.INTENT, intent, state=before, received_s=received_s)
    return TxChange(tx, tx.changed(state=after), ())


def exercised(*, signer_labels: bool = False) -> Metrics:
    """Let everything that is counted happen once."""
    metrics = Metrics(signer_labels=signer_labels)
    observer = noted(metrics)
    observer.note("acquire", taken=2, missed=1)
    observer.note("renew", renewed=3, fenced=1)
    observer.note("renew", error=4)
    observer.note("fenced", signer=SIGNER, token=1, op="allocate")
    accepted = SendCategory.ACCEPTED
    observer.note("sent", signer=SIGNER, txs=[TX, TX], token=1, results=[accepted, accepted], again=1)
    observer.note("receipts", signer=SIGNER, asked=5, found=2)
    observer.note("receipts_failed", signer=SIGNER)
    observer.note("new_fork", signer=SIGNER, tx=TX, token=1)
    observer.note("waited", seconds=[0.01])
    observer.note("handed_over", signer=SIGNER, token=1, seconds=0.1)
    observer.note("overloaded", bound="all", count=3)
    observer.note("duplicate_node", name="north", incarnation="x")
    observer.note("history_changed", before="1", after="2")
    observer.note("lane_lost", signer=SIGNER, token=1, error="OSError")
    observer.note("protect", signer=SIGNER, token=1, reason="because")
    queued = moved(TX, State.QUEUED, State.ALLOCATED, received_s=9.0)
    observer.note("moved", signer=SIGNER, changes=[queued], at_s=10.0)
    observer.note("moved", signer=SIGNER, changes=[moved(TX, State.TRACKING, State.CONFIRMED)], at_s=12.0)
    metrics.rpc_call("http://node:8545", "eth_chainId", 0.02, "ok")
    metrics.rpc_call("http://node:8545", "eth_chainId", 0.02, "unavailable")
    metrics.rpc_hedged_call("http://node:8545")
    metrics.sampled({State.QUEUED: {SIGNER: 7}})
    metrics.watch(held=lambda: 5, waiting=lambda: 6, pool=lambda: PoolUse(used=1, idle=2, maximum=10))
    return metrics


def families(metrics: Metrics) -> dict[str, set[str]]:
    """Map each name to its labels, as queries use them."""
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        found[name] = labels
    return found


@pytest.mark.parametrize("name", PROMISED)
def test_every_documented_metric_is_exported(name: str) -> None:
    assert families(exercised())[name] == PROMISED[name]


def test_every_metric_carries_the_prefix() -> None:
    assert not [name for name in families(exercised()) if not name.startswith("fencepost_")]


def test_counters_count_events() -> None:
    metrics = exercised()
    assert value(metrics, "fencepost_lease_acquire_total", result="acquired") == 2
    assert value(metrics, "fencepost_lease_acquire_total", result="missed") == 1
    assert value(metrics, "fencepost_lease_renew_total", result="renewed") == 3
    assert value(metrics, "fencepost_lease_renew_total", result="fenced") == 1
    assert value(metrics, "fencepost_lease_renew_total", result="error") == 4
    assert value(metrics, "fencepost_lease_fenced_total", op="allocate") == 1
    assert value(metrics, "fencepost_tx_submit_total", result="accepted") == 2
    assert value(metrics, "fencepost_tx_resubmit_total") == 1
    assert value(metrics, "fencepost_receipt_check_total", result="found") == 2
    assert value(metrics, "fencepost_receipt_check_total", result="missing") == 3
    assert value(metrics, "fencepost_receipt_check_total", result="error") == 1
    assert (
        value(metrics, "fencepost_rpc_errors_total", endpoint="http://node:8545", outcome="unavailable") == 1
    )
    assert value(metrics, "fencepost_db_pool_connections", use="most") == 10
    assert value(metrics, "fencepost_worker_queue_depth") == 6
    assert value(metrics, "fencepost_admission_rejected_total", bound="all") == 3


def test_a_stage_is_timed_from_the_previous_change_or_from_the_ledger() -> None:
    metrics = Metrics(signer_labels=False)
    observer = noted(metrics)
    for at_s, change in (
        (10.0, moved(TX, State.QUEUED, State.ALLOCATED, received_s=7.5)),
        (11.0, moved(TX, State.ALLOCATED, State.SUBMITTED, received_s=7.5)),
        (15.0, moved(TX, State.SUBMITTED, State.TRACKING, received_s=7.5)),
        (23.0, moved(TX, State.TRACKING, State.FAILED, received_s=7.5)),
        (30.0, moved(TAKEN_OVER, State.TRACKING, State.CONFIRMED, received_s=7.5)),
    ):
        observer.note("moved", signer=SIGNER, changes=[change], at_s=at_s)
    took = {
        stage: value(metrics, "fencepost_tx_stage_seconds_sum", stage=stage)
        for stage in (
            "queued_to_allocated",
            "allocated_to_submitted",
            "submitted_to_mined",
            "mined_to_confirmed",
        )
    }
    assert list(took.values()) == [2.5, 1.0, 4.0, 8.0]
    assert value(metrics, "fencepost_tx_stage_seconds_count", stage="mined_to_confirmed") == 1, (
        "the start of the other is unknown"
    )
    assert value(metrics, "fencepost_tx_finished_total", state="CONFIRMED") == 1


@pytest.mark.parametrize("end", [State.TRACKING, State.CONFIRMED])
def test_a_send_reported_with_later_events_is_timed_separately(end: State) -> None:
    metrics = Metrics(signer_labels=False)
    observer = noted(metrics)
    allocated, mined = moved(TX, State.QUEUED, State.ALLOCATED), moved(TX, State.ALLOCATED, end)
    mined = mined.changed(after=mined.after.changed(last_submit_s=11.0))
    observer.note("moved", signer=SIGNER, changes=[allocated], at_s=10.0)
    observer.note("moved", signer=SIGNER, changes=[mined], at_s=15.0)
    assert value(metrics, "fencepost_tx_stage_seconds_sum", stage="allocated_to_submitted") == 1.0
    assert value(metrics, "fencepost_tx_stage_seconds_sum", stage="submitted_to_mined") == 4.0


def test_remembered_transactions_are_bounded() -> None:
    metrics = Metrics(signer_labels=False)
    changes = [moved(UUID(int=n), State.QUEUED, State.ALLOCATED) for n in range(MAX_SIGNER_LABELS + 10)]
    noted(metrics).note("moved", signer=SIGNER, changes=changes, at_s=1.0)
    assert len(metrics._since) == MAX_SIGNER_LABELS


@pytest.mark.parametrize("labels", [(), ("stage",)])
def test_our_histogram_reads_like_that_of_the_library(labels: tuple[str, ...]) -> None:
    bounds, values = (0.005, 0.1, 1, 30), (0.0, 0.005, 0.0051, 0.1, 0.7, 1, 29, 30, 31, 1e9)
    ours, theirs = prometheus_client.CollectorRegistry(), prometheus_client.CollectorRegistry()
    mine = Histogram("took", "How long.", bounds, labels, ours)
    library = prometheus_client.Histogram("took", "How long.", labels, buckets=bounds, registry=theirs)
    assert _samples(ours) == _samples(theirs), "before anything was seen"
    for value in values:
        mine[labels].observe(value)
        (library.labels(*labels) if labels else library).observe(value)
    assert _samples(ours) == _samples(theirs)


def _samples(registry: prometheus_client.CollectorRegistry) -> list[str]:
    """Return the samples without the creation times of the library."""
    text = prometheus_client.generate_latest(registry).decode()
    return [line for line in text.splitlines() if "_created" not in line]


def test_signers_have_their_own_label_only_on_request() -> None:
    assert "5e5e" not in exercised().render().decode()
    named = exercised(signer_labels=True)
    assert value(named, "fencepost_tx_submit_total", result="accepted", signer=str(SIGNER)) == 2
    assert value(named, "fencepost_tx_state", state="QUEUED", signer=str(SIGNER)) == 7
    named.sampled({})
    assert value(named, "fencepost_tx_state", state="QUEUED", signer=str(SIGNER)) is None, (
        "it has nothing any more"
    )


def test_invented_methods_share_one_label() -> None:
    metrics = Metrics(signer_labels=False)
    before = len(metrics.render())
    for number in range(1000):
        metrics.rpc_call("http://node", f"eth_made_up_{number}", 0.1, "refused")
    metrics.rpc_call("http://node", "eth_call", 0.1, "ok")
    text = metrics.render().decode()
    assert "made_up" not in text
    assert 'method="other"' in text
    assert 'method="eth_call"' in text
    assert len(text) - before < 10_000


def test_two_nodes_in_one_process_do_not_mix_their_figures() -> None:
    exercised()
    assert value(Metrics(signer_labels=False), "fencepost_tx_resubmit_total") == 0


async def test_prometheus_reads_the_metrics_endpoint() -> None:
    services = SimpleNamespace(
        keys=SimpleNamespace(find=None),  # the endpoint needs no key, so none is looked up
        settings=SimpleNamespace(host="127.0.0.1", auth="open", max_waits_per_key=1, max_streams_per_key=1),
        cluster=SimpleNamespace(forward_tokens=None),
        node=SimpleNamespace(version="0", incarnation=uuid4(), metrics=exercised().render),
    )
    app = create_app(cast("Any", services))
    with bind("127.0.0.1", 0) as listener:
        async with (
            serve(app, listener) as url,
            aiohttp.ClientSession() as session,
            session.get(f"{url}/metrics") as answer,
        ):
            assert answer.status == 200
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert 'fencepost_tx_submit_total{result="accepted"} 2.0' in await answer.text()


# ---- alerts and dashboard

_WORDS = {
    "sum",
    "max",
    "min",
    "avg",
    "rate",
    "increase",
    "by",
    "le",
    "histogram_quantile",
    "clamp_min",
    "for",
    "or",
    "and",
    "up",  # of Prometheus itself
}


def named_in(expression: str) -> set[str]:
    bare = re.sub(r"\{[^}]*\}", "{}", expression)
    bare = re.sub(r"\b(?:by|without)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\[[^\]]*\]", "[]", bare)
    return {name for name in re.findall(r"[a-z][a-z0-9_]*", bare) if name not in _WORDS}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions(path: Path) -> Iterator[str]:
    if path.suffix == ".yml":
        yield from (rule["expr"] for rule in rules())
        return
    for panel in json.loads(path.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


@pytest.mark.parametrize("path", ["deploy/prometheus/alerts.yml", "deploy/grafana/fencepost.json"])
def test_every_metric_in_alerts_and_dashboard_exists(path: str) -> None:
    there = set(families(exercised()))
    there |= {f"{name}_{part}" for name in there for part in ("bucket", "sum", "count")}
    named = {name for expression in expressions(ROOT / path) for name in named_in(expression)}
    assert len(named) >= 3
    assert named <= there, named - there


def documents() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_every_metric_in_the_documents_exists() -> None:
    """A name that ends with an underscore stands for all metrics that begin with it, as in `fencepost_nonce_…`."""
    there = set(families(exercised()))
    named = {
        name
        for path in documents()
        for name in re.findall(r"`(fencepost_[a-z_]+)", path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 3
    unknown = {
        name
        for name in named
        if not any(metric.startswith(name) if name.endswith("_") else metric == name for metric in there)
    }
    assert not unknown


def test_the_scan_finds_a_metric_that_does_not_exist() -> None:
    expression = (
        'sum by (result) (rate(fencepost_tx_submit_total{result="x"}[5m])) / clamp_min(nonsense_total, 1)'
    )
    assert named_in(expression) == {"fencepost_tx_submit_total", "nonsense_total"}


def test_the_required_alerts_exist() -> None:
    alerts = {rule["alert"] for rule in rules()}
    assert {"FencepostFencedSurge", "FencepostReceiptBacklog", "FencepostResubmitRate"} <= alerts
    assert all({"summary", "description"} <= rule["annotations"].keys() for rule in rules())
    assert all(rule["labels"]["severity"] in ("warning", "critical") for rule in rules())


# ---- the log


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Collect what the root logger writes as JSON at debug level."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("json", "debug", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("event", "fields", "shown"),
    [
        ("wrote", {"op": "allocate", "txs": [TX]}, {"op": "allocate", "txs": [str(TX)]}),
        (
            "sent",
            {"txs": [TX], "results": [SendCategory.ACCEPTED], "again": 0},
            {"txs": [str(TX)], "results": ["accepted"]},
        ),
        ("fenced", {"op": "renew"}, {"op": "renew"}),
        ("new_fork", {"tx": TX}, {"tx": str(TX)}),
    ],
)
def test_a_critical_write_is_logged_with_signer_transaction_node_and_token(
    written: io.StringIO, event: str, fields: dict[str, Any], shown: dict[str, Any]
) -> None:
    NodeObserver("north").note(event, signer=SIGNER, token=77, **fields)
    (line,) = [json.loads(line) for line in written.getvalue().splitlines()]
    assert line["message"] == event
    assert (line["node"], line["signer"], line["token"]) == ("north", str(SIGNER), 77)
    assert {key: line[key] for key in shown} == shown


def test_metric_only_events_are_not_logged(written: io.StringIO) -> None:
    NodeObserver("north").note("waited", seconds=[0.1])
    assert written.getvalue() == ""


def test_every_metric_has_the_prefix_once() -> None:
    rendered = Metrics(signer_labels=False).render().decode()
    assert "fencepost_redis_up 1.0" in rendered.splitlines()
    assert "fencepost_fencepost_" not in rendered
