"""The settings of the nonce service, declared as all others are; `declaration` takes them in."""

# ruff: noqa: RUF009 - setting() is a dataclasses.field() that also remembers kind, default and sentence

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fencepost.settings.kinds import Choice, Flag, Url
from fencepost.settings.quantities import Duration, Whole
from fencepost.settings.rules import setting

NonceScheme = Literal["leased", "postgres", "redis_issue", "redis_full", "segments"]

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class NonceServiceRules:
    """Nonces for those who send by themselves; `docs/nonce-schemes.md` tells which scheme to choose."""

    enabled: bool = setting(
        Flag(), False, "Whether nonces are given to callers who send their transactions by themselves."
    )
    scheme: NonceScheme = setting(
        Choice(("leased", "postgres", "redis_issue", "redis_full", "segments")),
        "leased",
        "How nonces are given; a signer may have its own.",
    )
    redis_url: str = setting(
        Url(("redis", "rediss")), "", 'The Redis of the schemes that use one; "" is none.'
    )
    redis_lock: bool = setting(
        Flag(), False, "Whether a lock in Redis stands in front of the row lock of scheme postgres."
    )
    redis_failures: int = setting(
        Whole(1, 1000), 3, "After how many failures in a row Redis is left alone until a probe finds it."
    )
    redis_probe_interval_s: float = setting(
        Duration(0.1, _HOUR_S), "5s", "How often a Redis that has failed is probed."
    )
    hold_for_s: float = setting(
        Duration(0.1, _DAY_S), "60s", "How long a nonce is held for a caller who does not say how long."
    )
    block_size: int = setting(
        Whole(1, 100_000), 500, "How many nonces a process takes at once in scheme segments."
    )
    unflushed_max: int = setting(
        Whole(1000, 1_000_000),
        10_000,
        "How many holds wait in memory in scheme segments; beyond that callers wait.",
    )
    dead_after_s: float = setting(
        Duration(0.1, _DAY_S),
        "2m",
        "In scheme segments, after how long without a sign of life a block is taken back.",
    )
    heal_after_s: float = setting(
        Duration(0.1, _DAY_S), "2m", "After how long a nonce that was issued but never stored is given again."
    )
    tend_interval_s: float = setting(
        Duration(0.01, _MINUTE_S),
        "200ms",
        "How often schemes renew, probe and write down what is in memory or Redis.",
    )
    reclaim_interval_s: float = setting(
        Duration(0.1, _HOUR_S), "5s", "How often holds whose time is over are looked for."
    )
