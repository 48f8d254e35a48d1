"""Declare the settings of the nonce service; `core` includes them."""

# ruff: noqa: RUF009 - setting() is a dataclasses.field() that also stores type, default and description

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fencepost.settings.fields import setting
from fencepost.settings.numeric_types import Duration, Integer
from fencepost.settings.types import Choice, Flag, Url

NonceScheme = Literal["leased", "postgres", "redis_issue", "redis_full", "segments"]

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class NonceServiceSettings:
    """Configure the nonces for callers that send transactions themselves; see `docs/nonce-schemes.md`."""

    enabled: bool = setting(
        Flag(), False, "Whether nodes allocate nonces to callers that send their transactions themselves."
    )
    scheme: NonceScheme = setting(
        Choice(("leased", "postgres", "redis_issue", "redis_full", "segments")),
        "leased",
        "How nonces are allocated; a signer may override it.",
    )
    redis_url: str = setting(
        Url(("redis", "rediss")), "", 'The URL of Redis, for the schemes that use it; "" means none.'
    )
    redis_lock: bool = setting(
        Flag(), False, "Whether scheme postgres acquires a lock in Redis before the row lock."
    )
    redis_failures: int = setting(
        Integer(1, 1000), 3, "After how many consecutive failures Redis is not used until a probe succeeds."
    )
    redis_probe_interval_s: float = setting(
        Duration(0.1, _HOUR_S), "5s", "How often a Redis that has failed is probed."
    )
    hold_for_s: float = setting(
        Duration(0.1, _DAY_S), "60s", "How long a nonce is held if the caller does not specify it."
    )
    block_size: int = setting(
        Integer(1, 100_000), 500, "In scheme segments, how many nonces a process reserves at once."
    )
    unflushed_max: int = setting(
        Integer(1000, 1_000_000),
        10_000,
        "In scheme segments, how many holds may be in memory before they are stored; beyond that callers wait.",
    )
    dead_after_s: float = setting(
        Duration(0.1, _DAY_S),
        "2m",
        "In scheme segments, how long a process may be silent before its block of nonces is reclaimed.",
    )
    heal_after_s: float = setting(
        Duration(0.1, _DAY_S),
        "2m",
        "How long after a nonce was issued but never stored it is allocated again.",
    )
    tend_interval_s: float = setting(
        Duration(0.01, _MINUTE_S),
        "200ms",
        "How often a scheme renews its reservations, probes Redis, and stores what is in memory or Redis.",
    )
    reclaim_interval_s: float = setting(
        Duration(0.1, _HOUR_S), "5s", "How often expired holds are reclaimed."
    )
