"""Wait until a transaction has reached a milestone. `TxEvents` wakes the waiter; polling sees the commits of other nodes.

When the process stops, all waits end at once with `Stopping`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from enum import IntEnum
from uuid import UUID

from fencepost.application.ports import Ledger
from fencepost.application.tx_events import TxEvents, TxsChanged
from fencepost.domain.states import State
from fencepost.domain.transaction_state import ManagedTx
from fencepost.errors import Stopping

POLL_S = 0.25


class Milestone(IntEnum):
    """Name how far a caller waits. `CONFIRMED` is another name of `FINISHED`, kept for callers that use it."""

    ALLOCATED = 1
    SUBMITTED = 2
    MINED = 3
    FINISHED = 4  # CONFIRMED, FAILED or CANCELLED
    CONFIRMED = 4


_REACHED = {
    State.QUEUED: 0,
    State.ALLOCATED: Milestone.ALLOCATED,
    State.SUBMITTED: Milestone.SUBMITTED,
    State.TRACKING: Milestone.MINED,
    State.SUSPENDED: 0,
    State.CONFIRMED: Milestone.FINISHED,
    State.FAILED: Milestone.FINISHED,
    State.CANCELLED: Milestone.FINISHED,
}


def has_reached(tx: ManagedTx, milestone: Milestone) -> bool:
    """Return whether the transaction is at this milestone or beyond; a suspended one is at none."""
    return _REACHED[tx.state] >= milestone


@dataclass(slots=True)
class TxWaiter:
    """Wake the callers that wait for a transaction when it has changed."""

    ledger: Ledger
    tx_events: InitVar[TxEvents]
    is_stopped: bool = False
    _events: dict[UUID, set[asyncio.Event]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self, tx_events: TxEvents) -> None:
        tx_events.subscribe(self._wake)

    def stop(self) -> None:
        """End all waits, now and later, with `Stopping`."""
        self.is_stopped = True
        for waiting in self._events.values():
            for event in waiting:
                event.set()

    def _wake(self, changed: TxsChanged) -> None:
        if not self._events:  # the usual case
            return
        for change in changed.changes:
            for event in self._events.get(change.before.tx_id, ()):
                event.set()

    async def wait_for(self, tx_id: UUID, milestone: Milestone, *, timeout_s: float) -> ManagedTx | None:
        """Return the transaction when it reaches the milestone, or as it is at the time-out; None if there is none.

        Raises `Stopping` if this process stops first.
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
                    raise Stopping(
                        "this node stopped before the transaction reached the milestone: ask another node"
                    )
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(POLL_S, left)):
                        await event.wait()
        finally:
            self._events[tx_id].discard(event)
            if not self._events[tx_id]:
                del self._events[tx_id]
