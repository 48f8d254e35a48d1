"""How much may wait: beyond the bounds a caller is told to come back, before memory or the database fill up.

The queue is counted in the database now and then (`sampled`); what this node takes in between is added. So a check
costs nothing, and the bounds are kept to within what all nodes take in one sampling interval.
"""

from __future__ import annotations

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
    """What the database holds: how many live transactions in which state, whose, and signers that have open commands."""

    counts: Mapping[State, Mapping[Signer, int]]
    asked: frozenset[Signer] = frozenset()

    @property
    def queued(self) -> Mapping[Signer, int]:
        return self.counts.get(State.QUEUED, {})


@dataclass(slots=True)
class Intake:
    observer: Observer
    max_queued: int
    max_queued_per_signer: int
    _queued: dict[Signer, int] = field(default_factory=dict)
    _in_all: int = 0
    _being_stored: int = 0

    def sampled(self, sample: Sample) -> None:
        self._queued = dict(sample.queued)
        self._in_all = sum(self._queued.values())

    def stored(self, signer: Signer, count: int = 1) -> None:
        self._queued[signer] = self._queued.get(signer, 0) + count
        self._in_all += count

    def begin(self, signers: Sequence[Signer]) -> None:
        """Requests of these are about to be stored; `end` when they are. `Overloaded` when there is no room for them."""
        if self._being_stored and self._being_stored + len(signers) > MOST_BEING_STORED:
            raise self._refusal("being_stored", len(signers), "this node is busy storing requests")
        if self._in_all >= self.max_queued:
            raise self._refusal("all", len(signers), f"{self._in_all} requests wait already")
        for signer in set(signers):
            queued = self._queued.get(signer, 0)
            if queued >= self.max_queued_per_signer:
                waiting = f"{queued} requests of {signer.address} wait already"
                raise self._refusal("signer", len(signers), waiting)
        self._being_stored += len(signers)

    def end(self, count: int) -> None:
        """So many that had begun are stored, or never will be."""
        self._being_stored -= count

    def _refusal(self, bound: str, count: int, waiting: str) -> Overloaded:
        self.observer.note("overloaded", bound=bound, count=count)
        return Overloaded(waiting, retry_after_s=RETRY_AFTER_S)
