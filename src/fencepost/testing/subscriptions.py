"""Subscriptions over the rows of the in-memory database."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from fencepost.domain.ids import Address, Signer
from fencepost.errors import Fenced
from fencepost.events.log import Place
from fencepost.events.subscriptions import (
    MAX_ATTEMPTS_KEPT,
    MAX_LISTED,
    MAX_PENDING,
    Attempt,
    NewSubscription,
    Pending,
    Retry,
    Settlement,
    Subscription,
    SubscriptionLease,
    SubscriptionState,
    SubscriptionStore,
    SubscriptionType,
    TooManySubscriptions,
)
from fencepost.testing.database import InMemoryDatabase, JournalRow


@dataclass(slots=True)
class _Delivery:
    retry: Retry
    due_at_s: float | None
    failed_at: datetime | None


@dataclass(slots=True)
class _Row:
    subscription: Subscription
    token: int = 0
    holder: UUID | None = None
    expires_at_s: float = float("-inf")
    old_secret_until_s: float = float("-inf")
    deliveries: dict[Place, _Delivery] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def is_active(self) -> bool:
        return self.subscription.state is SubscriptionState.ACTIVE


class InMemorySubscriptions(SubscriptionStore):
    """Keep subscriptions in memory, for tests; their events are in the journal of the database."""

    def __init__(self, database: InMemoryDatabase, *, node: str = "n") -> None:
        """Use the clock and the journal of this database."""
        self._database = database
        self._node = node
        self._rows: dict[UUID, _Row] = {}

    def _now_s(self) -> float:
        return self._database.clock.now_s()

    async def create(self, new: NewSubscription, *, max_per_owner: int) -> Subscription:
        """Store a subscription."""
        await asyncio.sleep(0)
        if sum(row.subscription.owner == new.owner for row in self._rows.values()) >= max_per_owner:
            raise TooManySubscriptions(f"this key has {max_per_owner} subscriptions, which is the limit")
        self._rows[new.id] = _Row(
            Subscription(
                id=new.id,
                owner=new.owner,
                type=new.type,
                url=new.url,
                wanted=new.wanted,
                ordered=new.ordered,
                on_error=new.on_error,
                state=SubscriptionState.ACTIVE,
                reason=None,
                version=1,
                created_at=datetime.now(UTC),
                checkpoint=new.start,
                failing_since=None,
                pending=0,
                secrets=() if new.secret is None else (new.secret,),
            )
        )
        return self._shown(self._rows[new.id])

    async def list(self, owner: str | None, *, everyone: bool = False) -> Sequence[Subscription]:
        """Return subscriptions in the order of their creation."""
        await asyncio.sleep(0)
        rows = [row for row in self._rows.values() if everyone or row.subscription.owner == owner]
        return [self._shown(row) for row in rows[:MAX_LISTED]]

    async def get(self, subscription_id: UUID) -> Subscription | None:
        """Return a subscription."""
        await asyncio.sleep(0)
        row = self._rows.get(subscription_id)
        return None if row is None else self._shown(row)

    def _shown(self, row: _Row) -> Subscription:
        is_old_valid = self._now_s() < row.old_secret_until_s
        return replace(
            row.subscription,
            pending=sum(delivery.due_at_s is not None for delivery in row.deliveries.values()),
            secrets=row.subscription.secrets[: 2 if is_old_valid else 1],
        )

    def _change(self, row: _Row, **changes: object) -> None:
        row.subscription = replace(row.subscription, version=row.subscription.version + 1, **changes)  # type: ignore[arg-type]  # the callers name fields

    async def pause(self, subscription_id: UUID) -> bool:
        """Pause a subscription."""
        await asyncio.sleep(0)
        row = self._rows.get(subscription_id)
        if row is not None:
            self._change(row, state=SubscriptionState.PAUSED, reason=None)
        return row is not None

    async def resume(self, subscription_id: UUID, *, start: Place | None = None) -> bool:
        """Resume a subscription; a new place takes the lease away."""
        await asyncio.sleep(0)
        row = self._rows.get(subscription_id)
        if row is not None:
            place = row.subscription.checkpoint if start is None else start
            self._change(
                row, state=SubscriptionState.ACTIVE, reason=None, failing_since=None, checkpoint=place
            )
            if start is not None:
                row.token, row.expires_at_s = row.token + 1, float("-inf")
        return row is not None

    async def delete(self, subscription_id: UUID) -> bool:
        """Remove a subscription."""
        await asyncio.sleep(0)
        return self._rows.pop(subscription_id, None) is not None

    async def rotate_secret(self, subscription_id: UUID, secret: bytes, *, overlap_s: float) -> bool:
        """Sign with a new secret, and with the current one for a while."""
        await asyncio.sleep(0)
        row = self._rows.get(subscription_id)
        if row is None or not row.subscription.secrets:
            return False
        self._change(row, secrets=(secret, row.subscription.secrets[0]))
        row.old_secret_until_s = self._now_s() + overlap_s
        return True

    # ---- leases

    async def acquire(
        self,
        *,
        holder: UUID,
        node: str,  # noqa: ARG002 - a process has no other name here
        duration_s: float,
        limit: int = 1,
        subscription_id: UUID | None = None,
    ) -> Sequence[SubscriptionLease]:
        """Acquire free leases."""
        await asyncio.sleep(0)
        now_s = self._now_s()
        acquired: list[SubscriptionLease] = []
        for key, row in self._rows.items():
            is_free = row.expires_at_s < now_s or (subscription_id is not None and row.holder == holder)
            is_asked = (
                row.subscription.type is SubscriptionType.WEBHOOK
                if subscription_id is None
                else key == subscription_id
            )
            if is_free and is_asked and row.is_active and len(acquired) < limit:
                row.token = max(row.token, self._database.timeline << 32) + 1
                row.holder, row.expires_at_s = holder, now_s + duration_s
                acquired.append(
                    SubscriptionLease(key, row.token, row.subscription.checkpoint, row.subscription.version)
                )
        return acquired

    async def renew(
        self, leases: Collection[SubscriptionLease], *, duration_s: float
    ) -> Sequence[SubscriptionLease]:
        """Renew leases that still hold."""
        await asyncio.sleep(0)
        kept = [(lease, row) for lease in leases if (row := self._held(lease)) is not None and row.is_active]
        for _, row in kept:
            row.expires_at_s = self._now_s() + duration_s
        return [replace(lease, version=row.subscription.version) for lease, row in kept]

    async def release(self, leases: Collection[SubscriptionLease]) -> None:
        """Release leases."""
        await asyncio.sleep(0)
        for lease in leases:
            if (row := self._held(lease)) is not None:
                row.expires_at_s = float("-inf")

    def _held(self, lease: SubscriptionLease) -> _Row | None:
        row = self._rows.get(lease.subscription_id)
        return row if row is not None and row.token == lease.token else None

    # ---- fenced writes

    async def advance(self, moved: Collection[tuple[SubscriptionLease, Place]]) -> Collection[UUID]:
        """Move checkpoints forward."""
        await asyncio.sleep(0)
        held = set()
        for lease, place in moved:
            if (row := self._held(lease)) is not None:
                held.add(lease.subscription_id)
                self._move(row, place)
        return held

    def _move(self, row: _Row, place: Place) -> None:
        row.subscription = replace(row.subscription, checkpoint=max(row.subscription.checkpoint, place))

    async def settle(self, settlement: Settlement) -> None:
        """Record the outcome of deliveries."""
        await asyncio.sleep(0)
        row = self._held(settlement.lease)
        if row is None:
            raise Fenced("the lease of the subscription is lost")
        if settlement.checkpoint is not None:
            self._move(row, settlement.checkpoint)
        if settlement.succeeded is not None:
            since = None if settlement.succeeded else row.subscription.failing_since or datetime.now(UTC)
            row.subscription = replace(row.subscription, failing_since=since)
        for place in settlement.accepted:
            row.deliveries.pop(place, None)
        for retry in settlement.retries:
            self._store(row, retry)
        row.attempts = [*row.attempts, *settlement.attempts][-MAX_ATTEMPTS_KEPT:]

    def _store(self, row: _Row, retry: Retry) -> None:
        due_at_s = None if retry.due_in_s is None else self._now_s() + retry.due_in_s
        failed_at = datetime.now(UTC) if retry.attempts else None
        row.deliveries[retry.place] = _Delivery(retry, due_at_s, failed_at)

    async def disable(self, lease: SubscriptionLease, reason: str) -> None:
        """Disable a subscription, and write the event."""
        await asyncio.sleep(0)
        row = self._held(lease)
        if row is None or not row.is_active:
            raise Fenced("the lease of the subscription is lost")
        self._change(row, state=SubscriptionState.DISABLED, reason=reason)
        row.expires_at_s = float("-inf")
        self._database.journal.append(
            JournalRow(
                signer=Signer(0, Address("")),
                tx_id=None,
                event="WebhookDisabled",
                state=None,
                detail={"subscription": str(lease.subscription_id), "reason": reason},
                node=self._node,
                token=None,
                timeline=self._database.timeline,
            )
        )

    # ---- deliveries

    async def pending(
        self, subscription_id: UUID, *, due_only: bool, limit: int = MAX_PENDING
    ) -> Sequence[Pending]:
        """Return deliveries that wait for a retry."""
        await asyncio.sleep(0)
        row, now_s = self._rows.get(subscription_id), self._now_s()
        found = [] if row is None else [row.deliveries[place] for place in sorted(row.deliveries)]
        return [
            Pending(
                delivery.retry.place,
                delivery.retry.chain_id,
                delivery.retry.address,
                delivery.retry.attempts,
                delivery.due_at_s - now_s,
            )
            for delivery in found
            if delivery.due_at_s is not None and (not due_only or delivery.due_at_s <= now_s)
        ][:limit]

    async def redeliver(self, subscription_id: UUID, events: Sequence[Retry]) -> int:
        """Store deliveries to be made now."""
        await asyncio.sleep(0)
        row = self._rows.get(subscription_id)
        if row is None:
            return 0
        for event in events:
            self._store(row, replace(event, attempts=0, due_in_s=0.0))
        self._change(row)
        return len(events)

    async def redeliver_failed(self, subscription_id: UUID, *, since: datetime, limit: int) -> int:
        """Make given-up deliveries due again."""
        await asyncio.sleep(0)
        row = self._rows.get(subscription_id)
        chosen = [
            delivery.retry
            for delivery in ([] if row is None else row.deliveries.values())
            if delivery.due_at_s is None and delivery.failed_at is not None and delivery.failed_at >= since
        ][:limit]
        return await self.redeliver(subscription_id, chosen) if chosen else 0

    async def record_attempt(self, subscription_id: UUID, attempt: Attempt) -> None:
        """Record an attempt."""
        await asyncio.sleep(0)
        if (row := self._rows.get(subscription_id)) is not None:
            row.attempts = [*row.attempts, attempt][-MAX_ATTEMPTS_KEPT:]

    async def attempts(
        self, subscription_id: UUID, *, only_failed: bool = False, limit: int = 100
    ) -> Sequence[Attempt]:
        """Return the newest attempts."""
        await asyncio.sleep(0)
        row = self._rows.get(subscription_id)
        found = [] if row is None else row.attempts[::-1]
        return [attempt for attempt in found if not only_failed or attempt.error is not None][:limit]

    async def prune(self, *, older_than_s: float) -> int:
        """Remove deliveries that were given up long ago."""
        await asyncio.sleep(0)
        oldest, removed = datetime.now(UTC) - timedelta(seconds=older_than_s), 0
        for row in self._rows.values():
            old = [
                place
                for place, delivery in row.deliveries.items()
                if delivery.due_at_s is None
                and delivery.failed_at is not None
                and delivery.failed_at < oldest
            ]
            for place in old:
                del row.deliveries[place]
            removed += len(old)
        return removed
