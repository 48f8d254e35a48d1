"""Leases on their way back: released together, and told to the others, so that the next owner starts at once.

A release that fails costs time only: the lease runs out by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from fencepost.application.ports import Clock, Ledger, Observer
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term


async def _tell_nobody(_signers: Sequence[Signer]) -> None:
    """For a node that is alone."""


@dataclass(slots=True)
class LettingGo:
    ledger: Ledger
    clock: Clock
    observer: Observer
    tell_freed: Callable[[Sequence[Signer]], Awaitable[None]] = _tell_nobody
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _terms: list[Term] = field(default_factory=list)
    _wished_at_s: dict[Signer, float] = field(default_factory=dict)  # of hand-overs that are under way

    def __len__(self) -> int:
        return len(self._terms)

    def wish(self, signer: Signer) -> None:
        """From here on its hand-over is timed."""
        self._wished_at_s.setdefault(signer, self.clock.now_s())

    def overdue(self, budget_s: float) -> list[Signer]:
        """Hand-overs whose step takes longer than it may."""
        return [s for s, wished_s in self._wished_at_s.items() if self.clock.now_s() - wished_s >= budget_s]

    def add(self, term: Term) -> None:
        self._terms.append(term)
        self.wake.set()

    async def once(self) -> int:
        """How many leases went back."""
        terms, self._terms = self._terms, []
        if not terms:
            return 0
        wished = {term.signer: self._wished_at_s.pop(term.signer, None) for term in terms}
        await self.ledger.release(terms)
        await self.tell_freed([term.signer for term in terms])
        for term in terms:
            wished_s = wished[term.signer]
            if wished_s is not None:
                seconds = self.clock.now_s() - wished_s
                self.observer.note("handed_over", signer=term.signer, token=term.token, seconds=seconds)
        return len(terms)
