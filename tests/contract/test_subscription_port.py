"""One contract for subscriptions in PostgreSQL and in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from fakes.ledger_lab import LEASE_S
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.event_log import PostgresEventLog
from fencepost.adapters.postgres.subscriptions import PostgresSubscriptions
from fencepost.domain.ids import Address
from fencepost.errors import Fenced
from fencepost.events.log import BEGINNING, EventLog, Place
from fencepost.events.reader import EventFilter
from fencepost.events.subscriptions import (
    MAX_ATTEMPTS_KEPT,
    Attempt,
    NewSubscription,
    OnError,
    Ordered,
    Retry,
    Settlement,
    SubscriptionLease,
    SubscriptionState,
    SubscriptionStore,
    SubscriptionType,
    TooManySubscriptions,
)
from fencepost.events.types import EventType
from fencepost.testing import InMemoryDatabase
from fencepost.testing.event_log import InMemoryEventLog
from fencepost.testing.subscriptions import InMemorySubscriptions
from integration.stage import open_stage, until

SECRET = bytes(range(32))
ALICE = Address("0x" + "a1" * 20)
A, B = uuid4(), uuid4()  # two processes
LONG_S, SHORT_S = 60.0, 0.01


@dataclass(frozen=True, slots=True)
class Lab:
    store: SubscriptionStore
    log: EventLog
    owner: str


@pytest_asyncio.fixture
async def memory_store() -> Lab:
    database = InMemoryDatabase()
    return Lab(InMemorySubscriptions(database), InMemoryEventLog(database), "0123456789abcdef")


@pytest_asyncio.fixture
async def postgres_store(dsn: str) -> AsyncIterator[Lab]:
    owner = "0123456789abcdef"
    async with (
        open_stage(dsn) as stage,
        open_pool(dsn, size=2, connect_timeout_s=10, lease_duration_s=LEASE_S, application="test") as pool,
    ):
        await stage.admin.execute(
            "INSERT INTO api_key (id, name, secret_hash, scopes) VALUES ($1, 'k', $2, '{tx:read}')",
            owner,
            bytes(32),
        )
        yield Lab(PostgresSubscriptions(pool, node="n"), PostgresEventLog(pool), owner)


@pytest.fixture(params=["memory_store", "postgres_store"])
def lab(request: pytest.FixtureRequest) -> Lab:
    made: Lab = request.getfixturevalue(request.param)
    return made


def place(number: int) -> Place:
    return Place(1, 1, number)


def webhook(lab: Lab, **changes: object) -> NewSubscription:
    given = {
        "id": uuid4(),
        "owner": lab.owner,
        "type": SubscriptionType.WEBHOOK,
        "start": BEGINNING,
        "url": "https://example.com/hook",
        "secret": SECRET,
        **changes,
    }
    return NewSubscription(**given)  # type: ignore[arg-type]  # the tests name fields


async def make(lab: Lab, **changes: object) -> UUID:
    return (await lab.store.create(webhook(lab, **changes), max_per_owner=100)).id


async def acquire(lab: Lab, holder: UUID = A, *, duration_s: float = LONG_S) -> SubscriptionLease:
    """Acquire the only free lease, once it is free."""
    found: list[SubscriptionLease] = []

    async def acquired() -> bool:
        found.extend(await lab.store.acquire(holder=holder, node="n", duration_s=duration_s, limit=10))
        return bool(found)

    await until(acquired)
    (lease,) = found
    return lease


def retry(number: int, *, attempts: int = 1, due_in_s: float | None = 0.0) -> Retry:
    return Retry(place(number), 1, ALICE, attempts, due_in_s)


def attempt(number: int, *, error: str | None = None) -> Attempt:
    return Attempt(place(number).id, 1, datetime.now(UTC), 0.1, 200, error, "ok\0")


# ---- what the owner decides


async def test_a_subscription_is_stored_as_given(lab: Lab) -> None:
    wanted = EventFilter(frozenset({EventType.TX_CONFIRMED}), frozenset({ALICE}), 7, ("gold", "eu"))
    new = webhook(lab, wanted=wanted, ordered=Ordered.SIGNER, on_error=OnError.SKIP, start=place(5))
    made = await lab.store.create(new, max_per_owner=1)
    found = await lab.store.get(new.id)
    assert found == made
    assert found is not None
    assert (found.wanted, found.ordered, found.on_error) == (wanted, Ordered.SIGNER, OnError.SKIP)
    assert (found.owner, found.url, found.checkpoint) == (lab.owner, "https://example.com/hook", place(5))
    assert (found.state, found.secrets, found.pending) == (SubscriptionState.ACTIVE, (SECRET,), 0)
    assert SECRET.hex() not in repr(found)
    assert repr(SECRET) not in repr(found) + repr(new)


async def test_an_owner_has_a_bounded_number(lab: Lab) -> None:
    await lab.store.create(webhook(lab), max_per_owner=2)
    await lab.store.create(webhook(lab, owner=None), max_per_owner=2)
    both = await asyncio.gather(
        *(lab.store.create(webhook(lab), max_per_owner=2) for _ in range(2)), return_exceptions=True
    )
    assert sorted(type(made).__name__ for made in both) == ["Subscription", "TooManySubscriptions"]
    with pytest.raises(TooManySubscriptions):
        await lab.store.create(webhook(lab), max_per_owner=2)


async def test_owners_are_listed_apart(lab: Lab) -> None:
    mine, other = await make(lab), await make(lab, owner=None)
    assert [found.id for found in await lab.store.list(lab.owner)] == [mine]
    assert [found.id for found in await lab.store.list(None)] == [other]
    assert [found.id for found in await lab.store.list(None, everyone=True)] == [mine, other]


async def test_what_does_not_exist_is_not_changed(lab: Lab) -> None:
    store, nothing = lab.store, uuid4()
    assert await store.get(nothing) is None
    changed = [
        await store.pause(nothing),
        await store.resume(nothing),
        await store.delete(nothing),
        await store.rotate_secret(nothing, SECRET, overlap_s=1),
    ]
    assert not any(changed)
    assert await store.redeliver(nothing, [retry(1)]) == 0
    await store.record_attempt(nothing, attempt(1))


async def test_a_rotation_keeps_the_old_secret_for_a_while(lab: Lab) -> None:
    made, second, third = await make(lab), b"2" * 24, b"3" * 64
    assert await lab.store.rotate_secret(made, second, overlap_s=LONG_S)
    found = await lab.store.get(made)
    assert found is not None
    assert (found.secrets, found.version) == ((second, SECRET), 2)
    assert await lab.store.rotate_secret(made, third, overlap_s=0.0)
    found = await lab.store.get(made)
    assert found is not None
    assert found.secrets == (third,)


async def test_a_websocket_has_no_secret_to_rotate(lab: Lab) -> None:
    made = await make(lab, type=SubscriptionType.WEBSOCKET, url=None, secret=None)
    assert not await lab.store.rotate_secret(made, SECRET, overlap_s=1)


async def test_a_deleted_subscription_is_gone_with_all_rows(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    await lab.store.settle(Settlement(lease, place(1), retries=[retry(1)], attempts=[attempt(1)]))
    assert await lab.store.delete(made)
    assert await lab.store.get(made) is None
    assert not await lab.store.pending(made, due_only=False)
    assert not await lab.store.attempts(made)
    assert not await lab.store.renew([lease], duration_s=LONG_S)
    with pytest.raises(Fenced):
        await lab.store.settle(Settlement(lease, place(2)))


# ---- leases


async def test_one_process_at_a_time_holds_a_lease(lab: Lab) -> None:
    made = await make(lab, start=place(3))
    first = await acquire(lab)
    assert (first.subscription_id, first.checkpoint, first.version) == (made, place(3), 1)
    assert not await lab.store.acquire(holder=B, node="n", duration_s=LONG_S, limit=10)
    await lab.store.release([first])
    second = await acquire(lab, B)
    assert second.token > first.token
    await lab.store.release([first])  # an old token releases nothing
    assert not await lab.store.acquire(holder=A, node="n", duration_s=LONG_S, limit=10)


async def test_the_lease_of_a_dead_process_expires(lab: Lab) -> None:
    await make(lab)
    first = await acquire(lab, duration_s=SHORT_S)
    second = await acquire(lab, B)
    assert second.token > first.token
    assert not await lab.store.renew([first], duration_s=LONG_S)
    assert await lab.store.renew([second], duration_s=LONG_S) == [second]


async def test_the_limit_bounds_what_is_acquired(lab: Lab) -> None:
    for _ in range(3):
        await make(lab)
    assert len(await lab.store.acquire(holder=A, node="n", duration_s=LONG_S, limit=2)) == 2
    assert len(await lab.store.acquire(holder=B, node="n", duration_s=LONG_S, limit=2)) == 1


async def test_a_websocket_lease_is_acquired_by_id_only(lab: Lab) -> None:
    made = await make(lab, type=SubscriptionType.WEBSOCKET, url=None, secret=None)
    assert not await lab.store.acquire(holder=A, node="n", duration_s=LONG_S, limit=10)

    async def by_id(holder: UUID) -> list[SubscriptionLease]:
        return list(await lab.store.acquire(holder=holder, node="n", duration_s=LONG_S, subscription_id=made))

    (first,) = await by_id(A)
    assert not await by_id(B)
    (again,) = await by_id(A)
    assert again.token > first.token


async def test_a_paused_subscription_is_not_delivered(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    assert await lab.store.pause(made)
    assert not await lab.store.renew([lease], duration_s=LONG_S)
    await lab.store.release([lease])
    assert not await lab.store.acquire(holder=A, node="n", duration_s=LONG_S)
    assert not await lab.store.acquire(holder=A, node="n", duration_s=LONG_S, subscription_id=made)
    assert await lab.store.resume(made)
    assert (await acquire(lab)).version == 3


async def test_a_renewal_returns_the_new_version(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    await lab.store.rotate_secret(made, SECRET, overlap_s=1)
    (renewed,) = await lab.store.renew([lease], duration_s=LONG_S)
    assert (renewed.version, renewed.token) == (2, lease.token)


# ---- fenced writes


async def checkpoint(lab: Lab, subscription_id: UUID) -> Place:
    found = await lab.store.get(subscription_id)
    assert found is not None
    return found.checkpoint


async def test_only_the_lease_holder_moves_the_checkpoint(lab: Lab) -> None:
    made = await make(lab)
    old = await acquire(lab, duration_s=SHORT_S)
    new = await acquire(lab, B)
    assert not await lab.store.advance([(old, place(9))])
    with pytest.raises(Fenced):
        await lab.store.settle(Settlement(old, place(9), retries=[retry(9)], attempts=[attempt(9)]))
    with pytest.raises(Fenced):
        await lab.store.disable(old, "it failed")
    assert await checkpoint(lab, made) == BEGINNING
    assert not await lab.store.pending(made, due_only=False)
    assert not await lab.store.attempts(made)
    assert set(await lab.store.advance([(new, place(2))])) == {made}
    assert await checkpoint(lab, made) == place(2)


async def test_a_checkpoint_never_moves_back(lab: Lab) -> None:
    made = await make(lab, start=place(5))
    lease = await acquire(lab)
    await lab.store.advance([(lease, place(4))])
    await lab.store.settle(Settlement(lease, place(3)))
    assert await checkpoint(lab, made) == place(5)
    await lab.store.settle(Settlement(lease, place(6)))
    assert await checkpoint(lab, made) == place(6)


async def test_a_new_start_fences_the_holder(lab: Lab) -> None:
    made = await make(lab, start=place(5))
    lease = await acquire(lab)
    assert await lab.store.resume(made, start=place(2))
    with pytest.raises(Fenced):
        await lab.store.settle(Settlement(lease, place(9)))
    assert (await acquire(lab, B)).checkpoint == place(2)


async def test_a_settlement_is_recorded_as_a_whole(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    await lab.store.settle(
        Settlement(
            lease,
            place(3),
            retries=[retry(1), retry(2, due_in_s=LONG_S), retry(3, due_in_s=None)],
            attempts=[attempt(1, error="status 500"), attempt(2)],
            succeeded=False,
        )
    )
    found = await lab.store.get(made)
    assert found is not None
    assert (found.checkpoint, found.pending) == (place(3), 2)
    assert found.failing_since is not None
    due = await lab.store.pending(made, due_only=True)
    assert [(one.place, one.attempts, one.address) for one in due] == [(place(1), 1, ALICE)]
    assert [one.place for one in await lab.store.pending(made, due_only=False)] == [place(1), place(2)]
    newest = await lab.store.attempts(made)
    assert [one.event_id for one in newest] == [place(2).id, place(1).id]
    (failed,) = await lab.store.attempts(made, only_failed=True)
    assert (failed.event_id, failed.error, failed.status) == (place(1).id, "status 500", 200)

    await lab.store.settle(Settlement(lease, accepted=[place(1)], succeeded=True))
    found = await lab.store.get(made)
    assert found is not None
    assert (found.failing_since, found.pending, found.checkpoint) == (None, 1, place(3))


async def test_the_first_failure_after_a_success_is_remembered(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    since = []
    for succeeded in (False, False, None):
        await lab.store.settle(Settlement(lease, succeeded=succeeded))
        found = await lab.store.get(made)
        assert found is not None
        since.append(found.failing_since)
    assert since[0] is not None
    assert len(set(since)) == 1


async def test_the_newest_attempts_are_kept(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    many = [attempt(number) for number in range(MAX_ATTEMPTS_KEPT)]
    await lab.store.settle(Settlement(lease, attempts=many))
    await lab.store.record_attempt(made, attempt(5_000))
    found = await lab.store.attempts(made, limit=2 * MAX_ATTEMPTS_KEPT)
    assert len(found) == MAX_ATTEMPTS_KEPT
    assert found[0].event_id == place(5_000).id
    assert found[-1].event_id == place(1).id


async def test_disabling_writes_an_event(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    await lab.store.disable(lease, "the endpoint answered 410")
    found = await lab.store.get(made)
    assert found is not None
    assert (found.state, found.reason) == (SubscriptionState.DISABLED, "the endpoint answered 410")
    assert not await lab.store.acquire(holder=B, node="n", duration_s=LONG_S)

    async def came() -> bool:
        return bool((await lab.log.read(BEGINNING)).entries)

    await until(came)
    (entry,) = (await lab.log.read(BEGINNING)).entries
    assert (entry.event, entry.address, entry.tx_id) == ("WebhookDisabled", None, None)
    assert entry.detail == {"subscription": str(made), "reason": "the endpoint answered 410"}
    assert await lab.store.resume(made)
    assert (await acquire(lab, B)).token > lease.token


# ---- replay


async def test_replays_are_due_at_once(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    await lab.store.settle(Settlement(lease, place(2), retries=[retry(2, attempts=4, due_in_s=LONG_S)]))
    assert await lab.store.redeliver(made, [retry(1), retry(2)]) == 2
    due = await lab.store.pending(made, due_only=True)
    assert [(one.place, one.attempts) for one in due] == [(place(1), 0), (place(2), 0)]
    assert (await lab.store.renew([lease], duration_s=LONG_S))[0].version == 2


async def test_what_was_given_up_can_be_sent_again(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    given_up = [retry(number, due_in_s=None) for number in (1, 2, 3)]
    await lab.store.settle(Settlement(lease, place(3), retries=given_up))
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await lab.store.redeliver_failed(made, since=later, limit=10) == 0
    assert await lab.store.redeliver_failed(made, since=later - timedelta(hours=2), limit=2) == 2
    assert len(await lab.store.pending(made, due_only=True)) == 2


async def test_old_deliveries_that_were_given_up_are_removed(lab: Lab) -> None:
    made = await make(lab)
    lease = await acquire(lab)
    await lab.store.settle(Settlement(lease, place(2), retries=[retry(1, due_in_s=None), retry(2)]))
    assert await lab.store.prune(older_than_s=LONG_S) == 0
    assert await lab.store.prune(older_than_s=-1.0) == 1
    assert len(await lab.store.pending(made, due_only=False)) == 1


async def test_a_take_over_waits_for_a_write_of_the_old_holder(dsn: str, postgres_store: Lab) -> None:
    """A settlement that began before the take-over is part of what the next holder reads, or it is fenced."""
    made = await make(postgres_store)
    lease = await acquire(postgres_store, duration_s=SHORT_S)
    late = await asyncpg.connect(dsn)
    try:
        async with late.transaction():
            await late.execute(
                "UPDATE subscription_lease SET checkpoint = $2 WHERE subscription_id = $1 AND fencing_token = $3",
                made,
                place(7).id,
                lease.token,
            )
            store = postgres_store.store
            assert not await store.acquire(
                holder=B, node="n", duration_s=LONG_S
            )  # the row is locked: skipped
    finally:
        await late.close()
    assert (await acquire(postgres_store, B)).checkpoint == place(7)
