"""Define subscriptions and the port that stores them.

A subscription is a filter over the event log and a checkpoint: every matching event up to the checkpoint was acknowledged by the
subscriber, or is stored as a delivery that will be retried. One process at a time delivers a subscription. It holds the
subscription's lease, and every write names the fencing token of that lease, so a process that lost it can move nothing.

| the lease holder dies | what follows |
|---|---|
| before it sends an event | the checkpoint has not moved: the next holder sends the event |
| after it sent, before the answer came | the same: the subscriber may see the event again, with the same id |
| after the answer came, before `settle` or `advance` is committed | the same |
| after the commit | the next holder continues behind it |
| never, but it was paused for longer than its lease | its writes raise `Fenced`; the subscriber may see events twice |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from fencepost.domain.ids import Address
from fencepost.errors import UsageError
from fencepost.events.log import Place
from fencepost.events.reader import EventFilter

MAX_ANSWER_BYTES = 1024  # kept per attempt
MAX_ATTEMPTS_KEPT = 1_000  # per subscription
MAX_LISTED = 1_000
MAX_PENDING = 1_000  # deliveries per subscription that wait for a retry; beyond it the log keeps the events


class SubscriptionType(StrEnum):
    """Name how events reach the subscriber."""

    WEBHOOK = "webhook"
    WEBSOCKET = "websocket"


class Ordered(StrEnum):
    """Name the promised order: none, or the order of the log for each signer."""

    NONE = "none"
    SIGNER = "signer"


class OnError(StrEnum):
    """Name what an event that can't be delivered does to the later events of its signer."""

    BLOCK = "block"
    SKIP = "skip"


class SubscriptionState(StrEnum):
    """Name whether events are delivered."""

    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"  # by Fencepost, because the endpoint failed or the key was revoked


class TooManySubscriptions(UsageError):
    """Report that a key has as many subscriptions as it may have."""

    code = "too_many_subscriptions"


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """Describe a subscription that is not stored yet. `owner` is the id of an API key; None is a caller without a key."""

    id: UUID
    owner: str | None
    type: SubscriptionType
    start: Place
    url: str | None = None
    wanted: EventFilter = field(default_factory=EventFilter)
    ordered: Ordered = Ordered.NONE
    on_error: OnError = OnError.BLOCK
    secret: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Describe a stored subscription. `secrets` are those that sign now, the newest first."""

    id: UUID
    owner: str | None
    type: SubscriptionType
    url: str | None
    wanted: EventFilter
    ordered: Ordered
    on_error: OnError
    state: SubscriptionState
    reason: str | None
    version: int
    created_at: datetime
    checkpoint: Place
    failing_since: datetime | None
    pending: int  # deliveries that wait for a retry
    secrets: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SubscriptionLease:
    """Hold the right to deliver a subscription: its writes are accepted until another process acquires the lease."""

    subscription_id: UUID
    token: int
    checkpoint: Place
    version: int


@dataclass(frozen=True, slots=True)
class Pending:
    """Describe a delivery that failed before, or was requested again. `due_in_s` is below 0 if it is due."""

    place: Place
    chain_id: int
    address: Address | None
    attempts: int
    due_in_s: float


@dataclass(frozen=True, slots=True)
class Retry:
    """Store a delivery that is to be tried again; `due_in_s` of None gives it up."""

    place: Place
    chain_id: int
    address: Address | None
    attempts: int
    due_in_s: float | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """Describe one attempt to deliver an event. `error` is None if the endpoint accepted it."""

    event_id: str
    attempt: int
    at: datetime
    duration_s: float
    status: int | None
    error: str | None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Record the outcome of deliveries, as one fenced write.

    `checkpoint` of None leaves the checkpoint where it is. `accepted` removes deliveries, `retries` stores or changes them.
    `succeeded` says whether the endpoint accepted anything; None leaves the record of its failures as it is.
    """

    lease: SubscriptionLease
    checkpoint: Place | None = None
    accepted: Sequence[Place] = ()
    retries: Sequence[Retry] = ()
    attempts: Sequence[Attempt] = ()
    succeeded: bool | None = None


class SubscriptionStore(Protocol):
    """Store subscriptions. Database errors are raised unchanged."""

    async def create(self, new: NewSubscription, *, max_per_owner: int) -> Subscription:
        """Store a subscription. Raises `TooManySubscriptions` if its owner has `max_per_owner` already."""
        ...

    async def list(self, owner: str | None, *, everyone: bool = False) -> Sequence[Subscription]:
        """Return the subscriptions of an owner, or of all owners, oldest first; at most `MAX_LISTED`."""
        ...

    async def get(self, subscription_id: UUID) -> Subscription | None:
        """Return a subscription; None if it does not exist."""
        ...

    async def pause(self, subscription_id: UUID) -> bool:
        """Stop deliveries; return False if the subscription does not exist. The lease holder notices at its next renewal."""
        ...

    async def resume(self, subscription_id: UUID, *, start: Place | None = None) -> bool:
        """Start deliveries of a paused or disabled subscription, from a new place if one is given.

        With a new place the lease is taken away from its holder, so that no late write moves the checkpoint back.
        """
        ...

    async def delete(self, subscription_id: UUID) -> bool:
        """Remove a subscription with its deliveries and attempts; return False if it does not exist."""
        ...

    async def rotate_secret(self, subscription_id: UUID, secret: bytes, *, overlap_s: float) -> bool:
        """Sign with a new secret, and for `overlap_s` with the current one too; return False if there is no secret."""
        ...

    # ---- leases

    async def acquire(
        self,
        *,
        holder: UUID,
        node: str,
        duration_s: float,
        limit: int = 1,
        subscription_id: UUID | None = None,
    ) -> Sequence[SubscriptionLease]:
        """Acquire leases of active subscriptions that are free or expired, each with a new, larger token.

        Without an id: of any webhooks. With an id: of this subscription, whatever its type; also if `holder` holds it.
        """
        ...

    async def renew(
        self, leases: Collection[SubscriptionLease], *, duration_s: float
    ) -> Sequence[SubscriptionLease]:
        """Renew leases, and return those that still hold, with their current `version`. The others are lost."""
        ...

    async def release(self, leases: Collection[SubscriptionLease]) -> None:
        """Release leases, so that another process need not wait for their expiry."""
        ...

    # ---- fenced writes

    async def advance(self, moved: Collection[tuple[SubscriptionLease, Place]]) -> Collection[UUID]:
        """Move checkpoints forward, and return the ids of the subscriptions whose lease still holds.

        A checkpoint never moves back: a place below it changes nothing.
        """
        ...

    async def settle(self, settlement: Settlement) -> None:
        """Record the outcome of deliveries. Raises `Fenced` if the lease is lost; then nothing is recorded."""
        ...

    async def disable(self, lease: SubscriptionLease, reason: str) -> None:
        """Disable a subscription and write the event `webhook.disabled`. Raises `Fenced` if the lease is lost."""
        ...

    # ---- deliveries

    async def pending(
        self, subscription_id: UUID, *, due_only: bool, limit: int = MAX_PENDING
    ) -> Sequence[Pending]:
        """Return deliveries that wait for a retry, in the order of the log."""
        ...

    async def redeliver(self, subscription_id: UUID, events: Sequence[Retry]) -> int:
        """Store deliveries to be made now, with a new schedule, and return how many; 0 if the subscription is gone."""
        ...

    async def redeliver_failed(self, subscription_id: UUID, *, since: datetime, limit: int) -> int:
        """Make deliveries due again that were given up since a time, and return how many."""
        ...

    async def record_attempt(self, subscription_id: UUID, attempt: Attempt) -> None:
        """Record an attempt that changes nothing else: that of a test event."""
        ...

    async def attempts(
        self, subscription_id: UUID, *, only_failed: bool = False, limit: int = 100
    ) -> Sequence[Attempt]:
        """Return the newest attempts, newest first."""
        ...

    async def prune(self, *, older_than_s: float) -> int:
        """Remove deliveries that were given up that long ago, in bounded batches, and return how many."""
        ...
