"""The settings of a node among others: who works for whom, how much may wait, what is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fencepost.settings.kinds import Choice, Flag, Secret
from fencepost.settings.quantities import Duration, Whole
from fencepost.settings.rules import setting

_MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class RoutingRules:
    mode: Literal["basic", "worker_queue"] = setting(
        Choice(("basic", "worker_queue")),
        "basic",
        "Whether any node takes a signer that has work, or the one preferred by hash comes first.",
    )
    grace_s: float = setting(
        Duration(0, _MINUTE_S),
        "250ms",
        "In worker_queue mode, how long a free signer is left to its preferred node.",
    )
    handover_budget_s: float = setting(
        Duration(0.01, _MINUTE_S),
        "1s",
        "In worker_queue mode, how long a step may take to end before its signer is let go all the same.",
    )
    forward: bool = setting(
        Flag(),
        False,
        "Whether a request that only the signer's node takes is handed on to it; else callers are told its name.",
    )
    secret: str = setting(
        Secret("32 to 256 printable characters without spaces", r"[!-~]{32,256}"),
        "",
        "What nodes know each other by when they hand requests on; the same at every node.",
    )


@dataclass(frozen=True, slots=True)
class IntakeRules:
    max_queued: int = setting(
        Whole(1, 1_000_000_000),
        1_000_000,
        "How many requests may wait for a nonce in all; beyond that callers are told to come back.",
    )
    max_queued_per_signer: int = setting(
        Whole(1, 1_000_000_000), 100_000, "How many requests of one signer may wait for a nonce."
    )


@dataclass(frozen=True, slots=True)
class MetricsRules:
    signer_labels: bool = setting(
        Flag(), False, "Whether figures are told apart by signer; with many signers that is many figures."
    )
