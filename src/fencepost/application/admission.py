"""Bound how many requests may wait (back-pressure): beyond the bounds callers get `Overloaded`, before memory or the database fill up.

A sampler counts the queue in the database periodically (`apply_sample`); requests that this node stores in between are
added. So a check needs no query, and the bounds may be exceeded by what all nodes accept in one sampling interval.

The requests of one API key may fill only a part of the queue, so that one caller can't block all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fencepost.application.ports import Observer
from fencepost.domain.ids import Signer
from fencepost.domain.states import CursorState, State, SubState
from fencepost.errors import Overloaded

# Requests that this process has read but not stored yet.
MAX_BEING_STORED = 20_000

RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts from the database: live transactions by state and signer, and signers that have open commands."""

    counts: Mapping[State, Mapping[Signer, int]]
    signers_with_commands: frozenset[Signer] = frozenset()
    queued_by_key: Mapping[str, int] = field(default_factory=dict)

    @property
    def queued(self) -> Mapping[Signer, int]:
        return self.counts.get(State.QUEUED, {})


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """Counts and ages from the database that alerts are made of."""

    signers: Mapping[CursorState, int] = field(default_factory=dict)
    without_lease: int = 0  # signers with work whose lease no node holds
    oldest_queued_s: float = 0.0
    oldest_in_flight_s: float = 0.0  # of the transactions with a nonce that are in no block
    sub_states: Mapping[SubState, int] = field(default_factory=dict)


@dataclass(slots=True)
class AdmissionControl:
    observer: Observer
    max_queued: int
    max_queued_per_signer: int
    key_share: float = 1.0  # the part of `max_queued` that requests of one API key may fill
    _queued: dict[Signer, int] = field(default_factory=dict)
    _total: int = 0
    _being_stored: int = 0
    _queued_by_key: dict[str, int] = field(default_factory=dict)
    _being_stored_by_key: Counter[str] = field(default_factory=Counter)

    def apply_sample(self, sample: Sample) -> None:
        self._queued = dict(sample.queued)
        self._total = sum(self._queued.values())
        self._queued_by_key = dict(sample.queued_by_key)

    def add_stored(self, signer: Signer, count: int = 1, *, key_id: str | None = None) -> None:
        self._queued[signer] = self._queued.get(signer, 0) + count
        self._total += count
        if key_id is not None:
            self._queued_by_key[key_id] = self._queued_by_key.get(key_id, 0) + count

    def reserve(self, signers: Sequence[Signer], *, key_id: str | None = None) -> None:
        """Reserve room for one request per signer; call `release` when they are stored or failed.

        Raises `Overloaded` if there is no room.
        """
        if self._being_stored and self._being_stored + len(signers) > MAX_BEING_STORED:
            raise self._overloaded(
                "being_stored", len(signers), "this node has too many requests to store at the moment"
            )
        if self._total >= self.max_queued:
            raise self._overloaded("all", len(signers), f"{self._total} requests are already waiting")
        for signer in set(signers):
            queued = self._queued.get(signer, 0)
            if queued >= self.max_queued_per_signer:
                waiting = f"{queued} requests of signer {signer.address} are already waiting"
                raise self._overloaded("signer", len(signers), waiting)
        if key_id is not None:
            self._require_share(key_id, len(signers))
            self._being_stored_by_key[key_id] += len(signers)
        self._being_stored += len(signers)

    def _require_share(self, key_id: str, count: int) -> None:
        limit = max(1, int(self.max_queued * self.key_share))
        waiting = self._queued_by_key.get(key_id, 0) + self._being_stored_by_key[key_id]
        if waiting + count > limit:
            raise self._overloaded(
                "key",
                count,
                f"{waiting} requests of this API key are already waiting, and its share is {limit}",
            )

    def release(self, count: int, *, key_id: str | None = None) -> None:
        """Release the room of requests that were stored or failed."""
        self._being_stored -= count
        if key_id is not None:
            self._being_stored_by_key[key_id] -= count
            if self._being_stored_by_key[key_id] <= 0:
                del self._being_stored_by_key[key_id]

    def _overloaded(self, bound: str, count: int, waiting: str) -> Overloaded:
        self.observer.note("overloaded", bound=bound, count=count)
        return Overloaded(waiting, retry_after_s=RETRY_AFTER_S)
