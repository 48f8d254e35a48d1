"""Wait until a transaction has come some way. Commits of this process wake the waiter; polling sees those of others.

Nobody waits for a process that stops: whoever does is told so at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from fencepost.application.ports import Ledger
from fencepost.domain.managed import ManagedTx
from fencepost.domain.states import State
from fencepost.errors import Stopping

POLL_S = 0.25


class Milestone(IntEnum):
    ALLOCATED = 1
    SUBMITTED = 2
    MINED = 3
    CONFIRMED = 4  # it has ended, well or not


_REACHED = {
    State.QUEUED: 0,
    State.ALLOCATED: Milestone.ALLOCATED,
    State.SUBMITTED: Milestone.SUBMITTED,
    State.TRACKING: Milestone.MINED,
    State.SUSPENDED: 0,
    State.CONFIRMED: Milestone.CONFIRMED,
    State.FAILED: Milestone.CONFIRMED,
    State.CANCELLED: Milestone.CONFIRMED,
}


def has_reached(tx: ManagedTx, milestone: Milestone) -> bool:
    return _REACHED[tx.state] >= milestone


@dataclass(slots=True)
class Waiting:
    ledger: Ledger
    is_stopped: bool = False
    _events: dict[UUID, set[asyncio.Event]] = field(default_factory=lambda: defaultdict(set))

    def stop(self) -> None:
        self.is_stopped = True
        self.changed(list(self._events))

    def changed(self, tx_ids: Iterable[UUID]) -> None:
        if not self._events:  # nobody waits, nearly always
            return
        for tx_id in tx_ids:
            for event in self._events.get(tx_id, ()):
                event.set()

    async def wait_for(self, tx_id: UUID, milestone: Milestone, *, timeout_s: float) -> ManagedTx | None:
        """The transaction as it is when the milestone is reached, or at the time-out; None if there is none.

        Raises `Stopping` when this process stops before.
        """
        event = asyncio.Event()
        self._events[tx_id].add(event)
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            while True:
                event.clear()
                tx = await self.ledger.get(tx_id)
                left = deadline - asyncio.get_running_loop().time()
                if tx is None or has_reached(tx, milestone) or left <= 0:
                    return tx
                if self.is_stopped:
                    raise Stopping("this node stopped before the transaction had come so far")
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(POLL_S, left)):
                        await event.wait()
        finally:
            self._events[tx_id].discard(event)
            if not self._events[tx_id]:
                del self._events[tx_id]
