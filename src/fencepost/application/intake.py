"""How much may wait: beyond the bounds a caller is told to come back, before memory or the database fill up.

The queue is counted in the database now and then (`sampled`); what this node takes in between is added. So a check
costs nothing, and the bounds are kept to within what all nodes take in one sampling interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fencepost.application.ports import Observer
from fencepost.domain.ids import Signer
from fencepost.domain.states import State
from fencepost.errors import Overloaded

# Requests that this process has read but not stored yet.
MOST_BEING_STORED = 20_000

RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What the database holds: live transactions by signer and state, and signers that have open commands."""

    counts: Mapping[Signer, Mapping[State, int]]
    asked: frozenset[Signer] = frozenset()

    def queued(self, signer: Signer) -> int:
        return self.counts.get(signer, {}).get(State.QUEUED, 0)


@dataclass(slots=True)
class Intake:
    observer: Observer
    max_queued: int
    max_queued_per_signer: int
    _queued: Counter[Signer] = field(default_factory=Counter)
    _in_all: int = 0
    _being_stored: int = 0

    def sampled(self, sample: Sample) -> None:
        self._queued = Counter(
            {signer: queued for signer in sample.counts if (queued := sample.queued(signer))}
        )
        self._in_all = self._queued.total()

    def stored(self, signer: Signer, count: int = 1) -> None:
        self._queued[signer] += count
        self._in_all += count

    def taking(self, signers: Sequence[Signer]) -> _Taking:
        """Entered while requests are being stored. Raises `Overloaded` when there is no room for them."""
        self._require_room(signers)
        return _Taking(self, len(signers))

    def _require_room(self, signers: Sequence[Signer]) -> None:
        if self._being_stored and self._being_stored + len(signers) > MOST_BEING_STORED:
            raise self._refusal("being_stored", len(signers), "this node is busy storing requests")
        if self._in_all >= self.max_queued:
            raise self._refusal("all", len(signers), f"{self._in_all} requests wait already")
        for signer in set(signers):
            if self._queued[signer] >= self.max_queued_per_signer:
                waiting = f"{self._queued[signer]} requests of {signer.address} wait already"
                raise self._refusal("signer", len(signers), waiting)

    def _refusal(self, bound: str, count: int, waiting: str) -> Overloaded:
        self.observer.note("overloaded", bound=bound, count=count)
        return Overloaded(waiting, retry_after_s=RETRY_AFTER_S)

    def being_stored(self, more: int) -> None:
        self._being_stored += more


class _Taking:
    """So many requests on their way into the database, from when it is entered until it is left."""

    __slots__ = ("_count", "_intake")

    def __init__(self, intake: Intake, count: int) -> None:
        self._intake = intake
        self._count = count

    def __enter__(self) -> None:
        self._intake.being_stored(self._count)

    def __exit__(self, *_: object) -> None:
        self._intake.being_stored(-self._count)
