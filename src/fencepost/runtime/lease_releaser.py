"""Release leases in batches, and announce it to the other nodes, so that the next lease holder starts at once.

A release that fails costs only time: the lease expires by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fencepost.application.ports import Clock, Ledger, Observer
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term


async def _announce_nothing(_signers: Sequence[Signer]) -> None:
    """Do nothing: the node knows of no other node."""


class _Handover(NamedTuple):
    token: int  # the fencing token of the term that ends
    started_s: float


@dataclass(slots=True)
class LeaseReleaser:
    """Collect the terms to release, and measure how long hand-overs take."""

    ledger: Ledger
    clock: Clock
    observer: Observer
    announce_freed: Callable[[Sequence[Signer]], Awaitable[None]] = _announce_nothing
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _terms: list[Term] = field(default_factory=list)
    _handovers: dict[Signer, _Handover] = field(default_factory=dict)  # not released yet

    def __len__(self) -> int:
        return len(self._terms)

    def start_handover(self, term: Term) -> None:
        """Start the clock of a hand-over. It belongs to this term: the signer's next lane starts without one."""
        handover = self._handovers.get(term.signer)
        if handover is None or handover.token != term.token:
            self._handovers[term.signer] = _Handover(term.token, self.clock.now_s())

    def overdue(self, budget_s: float) -> list[tuple[Signer, int]]:
        """Return signer and token of the hand-overs that have taken longer than `budget_s`."""
        latest_s = self.clock.now_s() - budget_s
        return [
            (signer, handover.token)
            for signer, handover in self._handovers.items()
            if handover.started_s <= latest_s
        ]

    def forget(self, signer: Signer) -> None:
        """Drop the hand-over of a lane that ended in another way, unless its lease is about to be released."""
        if all(term.signer != signer for term in self._terms):
            self._handovers.pop(signer, None)

    def add(self, term: Term) -> None:
        """Release this lease in the next turn."""
        self._terms.append(term)
        self.wake.set()

    def _end_handover(self, term: Term) -> float | None:
        """Return when the hand-over of this term started, or None if there was none."""
        handover = self._handovers.get(term.signer)
        if handover is None or handover.token != term.token:
            return None
        del self._handovers[term.signer]
        return handover.started_s

    async def once(self) -> int:
        """Release all collected leases, and return how many."""
        terms, self._terms = self._terms, []
        if not terms:
            return 0
        started = {term.signer: self._end_handover(term) for term in terms}
        await self.ledger.release(terms)
        await self.announce_freed([term.signer for term in terms])
        for term in terms:
            started_s = started[term.signer]
            if started_s is not None:
                seconds = self.clock.now_s() - started_s
                self.observer.note("handed_over", signer=term.signer, token=term.token, seconds=seconds)
        return len(terms)
