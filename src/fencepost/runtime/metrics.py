"""Export the metrics of one node to Prometheus. Each node has its own registry, also if two run in one process.

Counters and histograms are fed by the events of the node (`NodeObserver` passes every event on) and by the RPC client.
Gauges are read when Prometheus scrapes (`render`), or come from the last sample of the database. `fencepost_tx_state` is
the database's view, the same from every node: take the maximum over nodes, not the sum. Labels have few values each; the
signer is a label only if `metrics.signer_labels` is on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from fencepost.application.ports import TxChange
from fencepost.domain.ids import Signer
from fencepost.domain.send_result import SendCategory
from fencepost.domain.states import LIVE, TERMINAL, State
from fencepost.runtime.histogram import Histogram

Word = TypeVar("Word", bound=str)

# Every metric name starts with it, so that a Prometheus that scrapes many programs can tell them apart.
PREFIX = "fencepost_"

# For this many transactions the last change of state is kept in memory, to measure how long a stage took.
MAX_SIGNER_LABELS = 100_000

_STAGE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_WAIT_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_RPC_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_HANDOVER_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5)

# Callers of `/rpc` choose the method names; methods that are not listed here are counted as "other".
RPC_METHODS = frozenset(
    [
        "batch",
        "eth_accounts",
        "eth_blockNumber",
        "eth_call",
        "eth_chainId",
        "eth_createAccessList",
        "eth_estimateGas",
        "eth_feeHistory",
        "eth_gasPrice",
        "eth_getBalance",
        "eth_getBlockByHash",
        "eth_getBlockByNumber",
        "eth_getBlockReceipts",
        "eth_getCode",
        "eth_getLogs",
        "eth_getStorageAt",
        "eth_getTransactionByHash",
        "eth_getTransactionCount",
        "eth_getTransactionReceipt",
        "eth_maxPriorityFeePerGas",
        "eth_sendRawTransaction",
        "eth_syncing",
        "net_version",
        "txpool_status",
        "web3_clientVersion",
    ]
)

# The `stage` label of each change of state.
_STAGES: dict[tuple[State, State], tuple[str]] = {
    (State.QUEUED, State.ALLOCATED): ("queued_to_allocated",),
    (State.ALLOCATED, State.SUBMITTED): ("allocated_to_submitted",),
    (State.SUBMITTED, State.TRACKING): ("submitted_to_mined",),
    (State.SUBMITTED, State.CONFIRMED): ("submitted_to_mined",),  # deep enough when its receipt was found
    **{(State.TRACKING, end): ("mined_to_confirmed",) for end in TERMINAL},
}

_UNSEEN: tuple[State | None, float | None] = (None, None)
_QUEUED, _ALLOCATED, _SUBMITTED = (
    State.QUEUED,
    State.ALLOCATED,
    State.SUBMITTED,
)  # Python 3.11 calls a function to find a member of an enumeration


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Count the connections of the database pool."""

    used: int
    idle: int
    maximum: int


class _Counters(dict[tuple[str, ...], Counter]):
    """Cache a counter's children by their labels: the library's lookup costs more than the counting."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self._counter = counter

    def __missing__(self, labels: tuple[str, ...]) -> Counter:
        child: Counter = self._counter.labels(*labels) if labels else self._counter
        self[labels] = child
        return child


class Metrics:
    """Hold all metrics of a node."""

    def __init__(self, *, signer_labels: bool) -> None:
        self.registry = CollectorRegistry()
        self._signers = ("signer",) if signer_labels else ()
        self._since: OrderedDict[UUID, tuple[State, float]] = OrderedDict()
        self._seen_signers: set[Signer] = set()
        self._leases()
        self._transactions()
        self._work()
        self._external_metrics()
        self._nonce_service()
        self._handlers: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "acquire": self._on_acquire,
            "renew": self._on_renew,
            "fenced": lambda noted: self._count(self.lease_fenced, noted, noted["op"]),
            "handed_over": lambda noted: self.lease_handover_seconds[()].observe(noted["seconds"]),
            "sent": self._on_sent,
            "receipts": self._on_receipts,
            "receipts_failed": lambda noted: self._count(self.receipt_check, noted, "error"),
            "new_fork": lambda noted: self._count(self.confirmations_new_fork, noted),
            "moved": self._on_moved,
            "waited": self._on_waited,
            "lane_lost": lambda _: self.lane_lost.inc(),
            "protect": lambda _: self.signer_protect.inc(),
            "stuck_hook_failed": lambda _: self.stuck_hook_failed.inc(),
            "overloaded": lambda noted: self.admission_rejected[noted["bound"],].inc(noted["count"]),
            "duplicate_node": lambda _: self.node_duplicate.inc(),
            "history_changed": lambda _: self.database_history_changed.inc(),
            "nonce_allocated": lambda noted: self.nonce_allocated[noted["scheme"],].inc(noted["count"]),
            "nonce_marked": lambda noted: self.nonce_marked[noted["scheme"], noted["state"]].inc(),
            "nonce_reclaimed": lambda noted: self.nonce_reclaimed[noted["scheme"],].inc(noted["count"]),
            "nonce_failed": self._on_nonce_failed,
            "redis_lost": lambda _: self._on_redis(up=False),
            "redis_found": lambda _: self._on_redis(up=True),
        }

    def render(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    # ---- definitions

    def _leases(self) -> None:
        self.lease_acquire = self._counters(
            "lease_acquire_total", "Attempts to acquire a lease, by result.", "result"
        )
        self.lease_renew = self._counters("lease_renew_total", "Lease renewals, by result.", "result")
        self.lease_fenced = self._counters(
            "lease_fenced_total", "Writes rejected because a newer term exists.", "op", *self._signers
        )
        self.lease_held = self._gauge("lease_held", "Signers whose lease this node holds.")
        self.lease_handover_seconds = self._histogram(
            "lease_handover_seconds",
            "Time from the start of a signer's hand-over to the release of its lease.",
            _HANDOVER_BUCKETS,
        )
        self.node_duplicate = self._counter(
            "node_duplicate_total", "How often another live process was found with this node's name."
        )

    def _transactions(self) -> None:
        self.tx_submit = self._counters(
            "tx_submit_total", "Sent transactions, by the endpoint's result.", "result", *self._signers
        )
        self.tx_resubmit = self._counters(
            "tx_resubmit_total", "Resubmissions of bytes that had been sent before.", *self._signers
        )
        self.receipt_check = self._counters(
            "receipt_check_total", "Receipt lookups, by result.", "result", *self._signers
        )
        self.confirmations_new_fork = self._counters(
            "confirmations_new_fork_total",
            "Transactions whose confirmations a fork replaced.",
            *self._signers,
        )
        self.tx_finished = self._counters(
            "tx_finished_total", "Transactions that ended, by final state.", "state"
        )
        self.tx_state = self._gauge(
            "tx_state", "Live transactions in the database by state.", "state", *self._signers
        )
        self.tx_stage_seconds = self._histogram(
            "tx_stage_seconds",
            "Time that a transaction took from one state to the next.",
            _STAGE_BUCKETS,
            "stage",
        )
        self.signer_protect = self._counter("signer_protect_total", "How often a signer entered PROTECT.")
        self.stuck_hook_failed = self._counter(
            "stuck_hook_failed_total",
            "Stuck hooks that raised, timed out or returned an invalid decision.",
        )

    def _work(self) -> None:
        self.worker_queue_depth = self._gauge(
            "worker_queue_depth", "Signers that wait for a worker of this node."
        )
        self.worker_queue_wait_seconds = self._histogram(
            "worker_queue_wait_seconds", "Time that a signer waited for its worker.", _WAIT_BUCKETS
        )
        self.lane_lost = self._counter(
            "lane_lost_total", "Steps that failed, after which the lane was acquired again."
        )
        self.admission_rejected = self._counters(
            "admission_rejected_total", "Requests rejected by admission control, by bound.", "bound"
        )

    def _external_metrics(self) -> None:
        self.rpc_request_seconds = self._histogram(
            "rpc_request_seconds", "Duration of calls to endpoints.", _RPC_BUCKETS, "endpoint", "method"
        )
        self.rpc_errors = self._counters(
            "rpc_errors_total", "Calls to endpoints that failed, by outcome.", "endpoint", "outcome"
        )
        self.rpc_hedged = self._counters(
            "rpc_hedged_total",
            "Calls that were repeated, because this endpoint had not answered soon.",
            "endpoint",
        )
        self.db_pool_connections = self._gauge(
            "db_pool_connections", "Connections of the database pool, by use.", "use"
        )
        self.database_history_changed = self._counter(
            "database_history_changed_total", "How often the database came back with another history."
        )

    def _nonce_service(self) -> None:
        self.nonce_allocated = self._counters(
            "nonce_allocated_total", "Nonces allocated by the nonce service.", "scheme"
        )
        self.nonce_marked = self._counters(
            "nonce_marked_total",
            "Nonces marked by their holders or by receipts.",
            "scheme",
            "state",
        )
        self.nonce_reclaimed = self._counters(
            "nonce_reclaimed_total",
            "Nonces whose hold expired and that can be allocated again.",
            "scheme",
        )
        self.nonce_failed = self._counters(
            "nonce_failed_total",
            "Calls to the nonce service that failed.",
            "scheme",
            "operation",
            "code",
        )
        self.redis_lost = self._counter(
            "redis_lost_total", "How often the nonce service lost its connection to Redis."
        )
        self.redis_up = self._gauge(
            "redis_up", "1 if the nonce service's Redis answers or none is configured, else 0."
        )
        self.redis_up.set(1)

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, doc, labels, registry=self.registry)

    def _counters(self, name: str, doc: str, *labels: str) -> _Counters:
        return _Counters(self._counter(name, doc, *labels))

    def _gauge(self, name: str, doc: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(PREFIX + name, doc, bounds, labels, self.registry)

    # ---- updates

    def note(self, event: str, noted: Mapping[str, Any]) -> None:
        """Update the metrics of an event; events without metrics are ignored."""
        handler = self._handlers.get(event)
        if handler is not None:
            handler(noted)

    def rpc_call(self, endpoint: str, method: str, seconds: float, outcome: str) -> None:
        """Record one call that `JsonRpc` made."""
        known = method if method in RPC_METHODS else "other"
        self.rpc_request_seconds[endpoint, known].observe(seconds)
        if outcome != "ok":
            self.rpc_errors[endpoint, outcome].inc()

    def rpc_hedged_call(self, endpoint: str) -> None:
        """Count a read that was asked a second time, because `endpoint` had not answered soon."""
        self.rpc_hedged[endpoint,].inc()

    def sampled(self, counts: Mapping[State, Mapping[Signer, int]]) -> None:
        """Set the number of live transactions per state and signer."""
        if not self._signers:
            for state in LIVE:
                self.tx_state.labels(state).set(sum(counts.get(state, {}).values()))
            return
        signers = {signer for of in counts.values() for signer in of}
        for gone in self._seen_signers - signers:
            for state in LIVE:
                self.tx_state.remove(state, str(gone))
        for signer in signers:
            for state in LIVE:
                self.tx_state.labels(state, str(signer)).set(counts.get(state, {}).get(signer, 0))
        self._seen_signers = signers

    def watch(
        self, *, held: Callable[[], int], waiting: Callable[[], int], pool: Callable[[], PoolUse]
    ) -> None:
        """Set the functions that give the gauges their values at each scrape."""
        self.lease_held.set_function(held)
        self.worker_queue_depth.set_function(waiting)
        self.db_pool_connections.labels("used").set_function(lambda: pool().used)
        self.db_pool_connections.labels("idle").set_function(lambda: pool().idle)
        self.db_pool_connections.labels("most").set_function(lambda: pool().maximum)

    def _count(self, counters: _Counters, noted: Mapping[str, Any], *labels: str, by: int = 1) -> None:
        if self._signers:
            labels = (*labels, str(noted.get("signer", "")))
        if by:
            counters[labels].inc(by)

    def _on_acquire(self, noted: Mapping[str, Any]) -> None:
        self.lease_acquire["acquired",].inc(noted["taken"])
        self.lease_acquire["missed",].inc(noted["missed"])

    def _on_renew(self, noted: Mapping[str, Any]) -> None:
        for result in ("renewed", "fenced", "error"):
            self.lease_renew[result,].inc(noted.get(result, 0))

    def _on_nonce_failed(self, noted: Mapping[str, Any]) -> None:
        self.nonce_failed[noted["scheme"], noted["operation"], noted["code"]].inc()

    def _on_redis(self, *, up: bool) -> None:
        self.redis_up.set(1 if up else 0)
        if not up:
            self.redis_lost.inc()

    def _on_waited(self, noted: Mapping[str, Any]) -> None:
        waits = self.worker_queue_wait_seconds[()]
        for seconds in noted["seconds"]:
            waits.observe(seconds)

    def _on_sent(self, noted: Mapping[str, Any]) -> None:
        results: Iterable[SendCategory] = noted["results"]
        for category, count in _tally(results).items():
            self._count(self.tx_submit, noted, category, by=count)
        self._count(self.tx_resubmit, noted, by=noted["again"])

    def _on_receipts(self, noted: Mapping[str, Any]) -> None:
        found, asked = noted["found"], noted["asked"]
        self._count(self.receipt_check, noted, "found", by=found)
        self._count(self.receipt_check, noted, "missing", by=asked - found)

    def _on_moved(self, noted: Mapping[str, Any]) -> None:
        changes: Iterable[TxChange] = noted["changes"]
        now_s: float = noted["at_s"]
        remembered = self._since
        ended: list[State] = []
        for change in changes:
            before, after = change.before, change.after
            was, is_now, at_s = before.state, after.state, now_s
            state, since_s = remembered.pop(before.tx_id, _UNSEEN)
            if state is not was:
                since_s = before.received_s if was is _QUEUED else None
            if was is _ALLOCATED and after.last_submit_s is not None:
                # A send is recorded later than it was made, often together with the next change.
                at_s = after.last_submit_s
                self._on_stage(was, _SUBMITTED, since_s, at_s)
                was, since_s = _SUBMITTED, at_s
            if was is not is_now:
                at_s = now_s
                self._on_stage(was, is_now, since_s, at_s)
            if is_now in TERMINAL:
                ended.append(is_now)
            else:
                remembered[before.tx_id] = (is_now, at_s)
        for end, count in _tally(ended).items():
            self.tx_finished[end,].inc(count)
        while len(remembered) > MAX_SIGNER_LABELS:
            remembered.popitem(last=False)

    def _on_stage(self, before: State, after: State, since_s: float | None, at_s: float) -> None:
        stage = _STAGES.get((before, after))
        if stage is not None and since_s is not None:
            self.tx_stage_seconds[stage].observe(max(0.0, at_s - since_s))


def _tally(words: Iterable[Word]) -> dict[Word, int]:
    """Count the words. There are few: a `collections.Counter` takes longer to create than to fill."""
    counts: dict[Word, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
