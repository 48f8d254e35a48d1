"""Declare the settings of a node in a cluster: routing, admission control, metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fencepost.settings.fields import setting
from fencepost.settings.numeric_types import Duration, Integer, Number
from fencepost.settings.types import Choice, Flag, Secret

_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Select which node serves a signer, and whether nodes forward requests."""

    mode: Literal["basic", "worker_queue"] = setting(
        Choice(("basic", "worker_queue")),
        "basic",
        "Which node acquires the lease of a signer with work: any node (basic), or first the node that a hash prefers"
        " (worker_queue).",
    )
    grace_s: float = setting(
        Duration(0, _MINUTE_S),
        "250ms",
        "In worker_queue mode, how long other nodes leave a free signer to its preferred node.",
    )
    handover_budget_s: float = setting(
        Duration(0.01, _MINUTE_S),
        "1s",
        "In worker_queue mode, how long a node waits for a signer's current step before it releases the lease anyway.",
    )
    forward: bool = setting(
        Flag(),
        False,
        "Whether a node forwards a request that only the lease holder can serve; if off, it rejects the request with"
        " not_leader and the holder's name.",
    )
    secret: str = setting(
        Secret("32 to 256 printable characters without spaces", r"[!-~]{32,256}"),
        "",
        "The shared secret that authenticates forwarded requests; the same on every node.",
    )


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Limit how many requests may wait (admission control)."""

    max_queued: int = setting(
        Integer(1, 1_000_000_000),
        1_000_000,
        "How many requests may wait for a nonce in total; beyond that, new requests are rejected with Retry-After.",
    )
    max_queued_per_signer: int = setting(
        Integer(1, 1_000_000_000), 100_000, "How many requests per signer may wait for a nonce."
    )
    key_share: float = setting(
        Number(0.01, 1),
        0.5,
        "The share of intake.max_queued that the requests of one API key may use; beyond that, its new requests are"
        " rejected with Retry-After and other keys are still served.",
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Configure the exported metrics."""

    signer_labels: bool = setting(
        Flag(), False, "Whether metrics have a signer label; each signer then adds its own time series."
    )
