"""Store subscriptions in PostgreSQL: `sql/subscriptions.sql`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.rows import Row
from fencepost.adapters.postgres.slow_retry import RetryingReads
from fencepost.domain.ids import Address
from fencepost.errors import Fenced
from fencepost.events.log import BEGINNING, Place, parse_place
from fencepost.events.reader import EventFilter
from fencepost.events.subscriptions import (
    MAX_ATTEMPTS_KEPT,
    MAX_LISTED,
    MAX_PENDING,
    Attempt,
    NewSubscription,
    OnError,
    Ordered,
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
from fencepost.events.types import EventType

MAX_PRUNED_PER_STATEMENT = 1_000
MAX_PRUNE_STATEMENTS = 100  # per call; the next call continues
LOST = "the lease of the subscription is lost: another process delivers it"


class PostgresSubscriptions(SubscriptionStore):
    def __init__(self, pool: Pool, *, node: str) -> None:
        self._pool = pool
        self._reads = RetryingReads(pool)
        self._node = node

    async def create(self, new: NewSubscription, *, max_per_owner: int) -> Subscription:
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(sql("subscription_lock"), new.owner)
            if (
                await connection.fetchval(sql("subscription_count"), new.owner, max_per_owner)
                >= max_per_owner
            ):
                raise TooManySubscriptions(
                    f"this key has {max_per_owner} subscriptions, which is the limit: delete one,"
                    " or raise events.max_subscriptions_per_key"
                )
            wanted = new.wanted
            await connection.execute(
                sql("subscription_insert"),
                new.id,
                new.owner,
                new.type,
                new.url,
                None if wanted.types is None else sorted(wanted.types),
                None if wanted.addresses is None else sorted(wanted.addresses),
                list(wanted.tags),
                wanted.chain_id,
                new.ordered,
                new.on_error,
                new.secret,
                new.start.id,
                self._node,
            )
        made = await self.get(new.id)
        assert made is not None  # noqa: S101 - it was stored by the transaction above
        return made

    async def list(self, owner: str | None, *, everyone: bool = False) -> Sequence[Subscription]:
        rows = await self._reads.fetch(sql("subscription_ids"), owner, everyone, MAX_LISTED)
        found = [await self.get(row["id"]) for row in rows]
        return [subscription for subscription in found if subscription is not None]

    async def get(self, subscription_id: UUID) -> Subscription | None:
        row = await self._reads.fetchrow(sql("subscription_get"), subscription_id)
        return None if row is None else _subscription(row)

    async def pause(self, subscription_id: UUID) -> bool:
        return bool(await self._pool.fetchval(sql("subscription_pause"), subscription_id))

    async def resume(self, subscription_id: UUID, *, start: Place | None = None) -> bool:
        place = None if start is None else start.id
        return bool(await self._pool.fetchval(sql("subscription_resume"), subscription_id, place))

    async def delete(self, subscription_id: UUID) -> bool:
        return bool(await self._pool.fetchval(sql("subscription_delete"), subscription_id, self._node))

    async def rotate_secret(self, subscription_id: UUID, secret: bytes, *, overlap_s: float) -> bool:
        return bool(
            await self._pool.fetchval(
                sql("subscription_rotate"), subscription_id, secret, overlap_s, self._node
            )
        )

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
        if subscription_id is None:
            rows = await self._pool.fetch(sql("subscription_acquire"), holder, node, duration_s, limit)
        else:
            statement = sql("subscription_acquire_one")
            rows = await self._pool.fetch(statement, holder, node, duration_s, subscription_id)
        return [
            SubscriptionLease(
                row["subscription_id"], row["fencing_token"], _place(row["checkpoint"]), row["version"]
            )
            for row in rows
        ]

    async def renew(
        self, leases: Collection[SubscriptionLease], *, duration_s: float
    ) -> Sequence[SubscriptionLease]:
        rows = await self._pool.fetch(sql("subscription_renew"), *_ids_and_tokens(leases), duration_s)
        versions = {row["subscription_id"]: row["version"] for row in rows}
        return [
            SubscriptionLease(
                lease.subscription_id, lease.token, lease.checkpoint, versions[lease.subscription_id]
            )
            for lease in leases
            if lease.subscription_id in versions
        ]

    async def release(self, leases: Collection[SubscriptionLease]) -> None:
        await self._pool.execute(sql("subscription_release"), *_ids_and_tokens(leases))

    # ---- fenced writes

    async def advance(self, moved: Collection[tuple[SubscriptionLease, Place]]) -> Collection[UUID]:
        rows = await self._pool.fetch(
            sql("subscription_advance"),
            *_ids_and_tokens([lease for lease, _ in moved]),
            [place.id for _, place in moved],
        )
        return {row["subscription_id"] for row in rows}

    async def settle(self, settlement: Settlement) -> None:
        lease, retries, attempts = settlement.lease, settlement.retries, settlement.attempts
        held = await self._pool.fetchval(
            sql("subscription_settle"),
            lease.subscription_id,
            lease.token,
            None if settlement.checkpoint is None else settlement.checkpoint.id,
            settlement.succeeded,
            [place.id for place in settlement.accepted],
            [retry.place.id for retry in retries],
            [retry.chain_id for retry in retries],
            [retry.address for retry in retries],
            [retry.attempts for retry in retries],
            [retry.due_in_s for retry in retries],
            [attempt.event_id for attempt in attempts],
            [attempt.attempt for attempt in attempts],
            [attempt.at.timestamp() for attempt in attempts],
            [attempt.duration_s for attempt in attempts],
            [attempt.status for attempt in attempts],
            [attempt.error for attempt in attempts],
            [_storable(attempt.answer) for attempt in attempts],
        )
        if held is None:
            raise Fenced(LOST)
        if attempts:
            await self._pool.execute(
                sql("subscription_forget_attempts"), lease.subscription_id, MAX_ATTEMPTS_KEPT
            )

    async def disable(self, lease: SubscriptionLease, reason: str) -> None:
        held = await self._pool.fetchval(
            sql("subscription_disable"), lease.subscription_id, lease.token, reason[:500], self._node
        )
        if held is None:
            raise Fenced(LOST)

    # ---- deliveries

    async def pending(
        self, subscription_id: UUID, *, due_only: bool, limit: int = MAX_PENDING
    ) -> Sequence[Pending]:
        rows = await self._reads.fetch(sql("subscription_pending"), subscription_id, due_only, limit)
        return [
            Pending(
                place=_place(row["event_id"]),
                chain_id=row["chain_id"],
                address=None if row["signer"] is None else Address(row["signer"]),
                attempts=row["attempts"],
                due_in_s=row["due_in_s"],
            )
            for row in rows
        ]

    async def redeliver(self, subscription_id: UUID, events: Sequence[Retry]) -> int:
        return int(
            await self._pool.fetchval(
                sql("subscription_redeliver"),
                subscription_id,
                [event.place.id for event in events],
                [event.chain_id for event in events],
                [event.address for event in events],
            )
        )

    async def redeliver_failed(self, subscription_id: UUID, *, since: datetime, limit: int) -> int:
        return int(
            await self._pool.fetchval(sql("subscription_redeliver_failed"), subscription_id, since, limit)
        )

    async def record_attempt(self, subscription_id: UUID, attempt: Attempt) -> None:
        await self._pool.execute(
            sql("subscription_record_attempt"),
            subscription_id,
            attempt.event_id,
            attempt.attempt,
            attempt.at,
            attempt.duration_s,
            attempt.status,
            attempt.error,
            _storable(attempt.answer),
        )
        await self._pool.execute(sql("subscription_forget_attempts"), subscription_id, MAX_ATTEMPTS_KEPT)

    async def attempts(
        self, subscription_id: UUID, *, only_failed: bool = False, limit: int = 100
    ) -> Sequence[Attempt]:
        rows = await self._reads.fetch(sql("subscription_attempts"), subscription_id, only_failed, limit)
        return [
            Attempt(
                event_id=row["event_id"],
                attempt=row["attempt"],
                at=row["at"],
                duration_s=row["duration_s"],
                status=row["status"],
                error=row["error"],
                answer=row["answer"],
            )
            for row in rows
        ]

    async def prune(self, *, older_than_s: float) -> int:
        removed = 0
        for _ in range(MAX_PRUNE_STATEMENTS):
            count = await self._pool.fetchval(
                sql("subscription_prune"), older_than_s, MAX_PRUNED_PER_STATEMENT
            )
            removed += int(count)
            if count < MAX_PRUNED_PER_STATEMENT:
                break
        return removed


def _ids_and_tokens(leases: Collection[SubscriptionLease]) -> tuple[list[UUID], list[int]]:
    return [lease.subscription_id for lease in leases], [lease.token for lease in leases]


def _place(event_id: str) -> Place:
    """Return the place of a stored event id; the table accepts no other text."""
    return parse_place(event_id) or BEGINNING


def _storable(text: str) -> str:
    """Replace the character that PostgreSQL can't store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _subscription(row: Row) -> Subscription:
    return Subscription(
        id=row["id"],
        owner=row["key_id"],
        type=SubscriptionType(row["type"]),
        url=row["url"],
        wanted=EventFilter(
            types=None if row["types"] is None else frozenset(EventType(name) for name in row["types"]),
            addresses=None if row["signers"] is None else frozenset(Address(text) for text in row["signers"]),
            chain_id=row["chain_id"],
            tags=tuple(row["tags"]),
        ),
        ordered=Ordered(row["ordered"]),
        on_error=OnError(row["on_error"]),
        state=SubscriptionState(row["state"]),
        reason=row["reason"],
        version=row["version"],
        created_at=row["created_at"],
        checkpoint=_place(row["checkpoint"]),
        failing_since=row["failing_since"],
        pending=row["pending"],
        secrets=tuple(secret for secret in (row["secret"], row["old_secret"]) if secret is not None),
    )
