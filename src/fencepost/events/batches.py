"""Deliver a subscription to one consumer in batches that the consumer acknowledges.

One batch is in flight at a time, and the checkpoint moves when the consumer has acknowledged it. Several consumers of one
subscription share it by its lease: one gets the batches, the others wait.

| the process or the consumer dies | what follows |
|---|---|
| before a batch is sent | the checkpoint has not moved: the next lease holder sends the same events |
| after the batch was sent, before its acknowledgement arrived | the same: the events come again, with the same ids |
| after the acknowledgement arrived, before `advance` is committed | the same |
| after the commit | the next lease holder continues behind the batch |
| never, but it was paused for longer than its lease | `advance` moves nothing, and the consumer raises `LeaseLost` |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn
from uuid import UUID, uuid4

from fencepost.errors import UsageError
from fencepost.events.log import BEGINNING, Place
from fencepost.events.reader import EventFilter, EventReader
from fencepost.events.subscriptions import SubscriptionLease, SubscriptionStore
from fencepost.events.types import Event


class LeaseLost(Exception):
    """Another consumer has acquired the subscription, or it was paused or deleted."""


class BatchUnknown(UsageError):
    """Report an acknowledgement that does not name the batch in flight."""

    code = "batch_unknown"


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold events that were sent together. `end` is the checkpoint once they are acknowledged."""

    number: int
    events: Sequence[Event]
    end: Place


@dataclass(slots=True)
class BatchConsumer:
    """Deliver one subscription while its lease is held."""

    store: SubscriptionStore
    reader: EventReader
    subscription_id: UUID
    node: str
    lease_duration_s: float
    batch_size: int
    in_flight: Batch | None = None
    _holder: UUID = field(default_factory=uuid4)  # of this consumer: two of one process share as well
    _lease: SubscriptionLease | None = None
    _read_to: Place = BEGINNING
    _stored: Place = BEGINNING  # the checkpoint, as far as this consumer knows
    _last_number: int = 0
    _lost_number: int = 0  # batches up to here were sent under a lease that was lost

    @property
    def checkpoint(self) -> Place:
        """Return the checkpoint, as far as this consumer knows."""
        return self._stored

    async def acquire(self) -> bool:
        """Try to acquire the lease; return whether it is held. Reading starts at the checkpoint."""
        found = await self.store.acquire(
            holder=self._holder,
            node=self.node,
            duration_s=self.lease_duration_s,
            subscription_id=self.subscription_id,
        )
        if not found:
            return False
        self._lease = found[0]
        self._read_to = self._stored = found[0].checkpoint
        return True

    async def renew(self) -> bool:
        """Renew the lease, and return whether the subscription has changed. Raises `LeaseLost`."""
        lease = self._held()
        renewed = await self.store.renew([lease], duration_s=self.lease_duration_s)
        if not renewed:
            self._lose()
        self._lease = renewed[0]
        return renewed[0].version != lease.version

    async def release(self) -> None:
        """Release the lease, so that another consumer continues at once."""
        lease, self._lease, self.in_flight = self._lease, None, None
        if lease is not None:
            await self.store.release([lease])

    async def next_batch(self, wanted: EventFilter, *, wait_s: float) -> Batch | None:
        """Return the next events as soon as there are any; None if none came in time."""
        self._held()
        if self.in_flight is not None:
            raise RuntimeError("a batch is in flight: acknowledge it first")
        page = await self.reader.wait(self._read_to, wanted, limit=self.batch_size, timeout_s=wait_s)
        if not page.events:
            self._read_to = page.next
            return None
        self._last_number += 1
        self.in_flight = Batch(self._last_number, page.events, page.next)
        return self.in_flight

    async def acknowledge(self, number: int) -> None:
        """Move the checkpoint behind the batch in flight. Raises `LeaseLost`, and then nothing was moved."""
        batch = self._named(number)
        if batch is None:
            return
        await self._advance(batch.end)
        self._read_to, self.in_flight = batch.end, None

    def reject(self, number: int) -> None:
        """Read the batch in flight again: its events come in a new batch."""
        if self._named(number) is not None:
            self.in_flight = None

    async def store_progress(self) -> None:
        """Move the checkpoint over events that do not match, so that the retention does not overtake it."""
        if self.in_flight is None and self._read_to > self._stored:
            await self._advance(self._read_to)

    def _named(self, number: int) -> Batch | None:
        """Return the batch in flight if it has this number; None for a batch that was lost with its lease."""
        if self.in_flight is not None and self.in_flight.number == number:
            return self.in_flight
        if 0 < number <= self._lost_number:
            return None
        current = "no batch is in flight" if self.in_flight is None else f"batch {self.in_flight.number} is"
        raise BatchUnknown(f"batch {number} is not in flight: {current}")

    async def _advance(self, place: Place) -> None:
        if self.subscription_id not in await self.store.advance([(self._held(), place)]):
            self._lose()
        self._stored = place

    def _held(self) -> SubscriptionLease:
        if self._lease is None:
            raise LeaseLost
        return self._lease

    def _lose(self) -> NoReturn:
        self._lease = self.in_flight = None
        self._lost_number = self._last_number
        raise LeaseLost
