"""Batches of a subscription: whatever is interleaved, a consumer sees every matching event, in order, without a gap."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.clock import FakeClock
from fencepost.domain.ids import Address, Signer
from fencepost.events.batches import Batch, BatchConsumer, BatchUnknown, LeaseLost
from fencepost.events.log import BEGINNING
from fencepost.events.reader import EventFilter, EventReader
from fencepost.events.subscriptions import NewSubscription, SubscriptionType
from fencepost.events.types import EventType
from fencepost.testing.database import InMemoryDatabase, JournalRow
from fencepost.testing.event_log import InMemoryEventLog
from fencepost.testing.subscriptions import InMemorySubscriptions

LEASE_S = 10.0
WANTED = EventFilter(types=frozenset({EventType.SIGNER_PAUSED}))
SIGNER = Signer(1, Address("0x" + "ab" * 20))


@dataclass(slots=True)
class Lab:
    """A log, a subscription, and consumers that process what they get. `processed` survives their crashes."""

    make: type[BatchConsumer] = BatchConsumer
    clock: FakeClock = field(default_factory=FakeClock)
    database: InMemoryDatabase = field(init=False)
    store: InMemorySubscriptions = field(init=False)
    reader: EventReader = field(init=False)
    subscription_id: UUID = field(default_factory=uuid4)
    consumers: list[BatchConsumer] = field(default_factory=list)
    processed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = InMemoryDatabase(clock=self.clock)
        self.store = InMemorySubscriptions(self.database)
        self.reader = EventReader(InMemoryEventLog(self.database))

    async def open(self) -> None:
        new = NewSubscription(self.subscription_id, None, SubscriptionType.WEBSOCKET, BEGINNING)
        await self.store.create(new, max_per_owner=1)
        self.consumers = [self.consumer(), self.consumer()]

    def consumer(self) -> BatchConsumer:
        return self.make(
            self.store, self.reader, self.subscription_id, node="n", lease_duration_s=LEASE_S, batch_size=2
        )

    def commit(self, event: str) -> None:
        self.database.journal.append(JournalRow(SIGNER, None, event, None, {}, "n", 1))

    async def matching(self) -> list[str]:
        return [event.id for event in (await self.reader.page(BEGINNING, WANTED, limit=10_000)).events]

    async def deliver(self, number: int) -> Batch | None:
        consumer = self.consumers[number]
        if consumer.in_flight is not None:
            return consumer.in_flight
        try:
            return await consumer.next_batch(WANTED, wait_s=0)
        except LeaseLost:
            if not await consumer.acquire():
                return None
            return await consumer.next_batch(WANTED, wait_s=0)

    async def acknowledge(self, number: int) -> None:
        """Process the batch in flight, and acknowledge it."""
        consumer = self.consumers[number]
        if (batch := consumer.in_flight) is None:
            return
        self.processed += [event.id for event in batch.events]
        try:
            await consumer.acknowledge(batch.number)
        except LeaseLost:
            assert consumer.in_flight is None

    async def drain(self) -> None:
        """Let a new consumer process the rest."""
        self.clock.advance(LEASE_S + 1)
        self.consumers = [self.consumer(), self.consumer()]
        assert await self.consumers[0].acquire()
        for _ in range(1_000):
            if await self.deliver(0) is None and await self.consumers[0].next_batch(WANTED, wait_s=0) is None:
                return
            await self.acknowledge(0)
        raise AssertionError("the rest never ended")


def in_first_order(ids: list[str]) -> list[str]:
    return list(dict.fromkeys(ids))


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "other", "deliver", "ack", "nack", "crash", "pause", "progress", "renew"]),
        st.integers(0, 1),
    ),
    max_size=60,
)


async def act(lab: Lab, action: str, number: int) -> None:
    consumer = lab.consumers[number]
    match action:
        case "commit" | "other":
            lab.commit("Pause" if action == "commit" else "Unpause")
        case "deliver":
            await lab.deliver(number)
        case "ack":
            await lab.acknowledge(number)
        case "nack":
            if consumer.in_flight is not None:
                consumer.reject(consumer.in_flight.number)
        case "crash":
            lab.consumers[number] = lab.consumer()
        case "pause":  # long enough that every lease expires
            lab.clock.advance(LEASE_S + 1)
        case "progress":
            await consumer.store_progress()
        case _:
            await consumer.renew()


async def run(steps: list[Step], make: type[BatchConsumer] = BatchConsumer) -> None:
    lab = Lab(make)
    await lab.open()
    for action, number in steps:
        consumer = lab.consumers[number]
        try:
            await act(lab, action, number)
        except LeaseLost:
            assert consumer.in_flight is None
        everything = await lab.matching()
        assert in_first_order(lab.processed) == everything[: len(set(lab.processed))], "a gap"
    await lab.drain()
    assert in_first_order(lab.processed) == await lab.matching()


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_every_matching_event_is_processed_in_order_without_a_gap(steps: list[Step]) -> None:
    asyncio.run(run(steps))


class EarlyCheckpoint(BatchConsumer):
    """A flaw: the checkpoint moves when the batch is sent."""

    async def next_batch(self, wanted: EventFilter, *, wait_s: float) -> Batch | None:
        batch = await BatchConsumer.next_batch(self, wanted, wait_s=wait_s)
        if batch is not None:
            await self._advance(batch.end)
        return batch


def test_a_checkpoint_that_moves_before_the_ack_is_caught() -> None:
    steps = [("commit", 0), ("deliver", 0), ("crash", 0), ("commit", 0)]
    asyncio.run(run(steps))
    with pytest.raises(AssertionError):
        asyncio.run(run(steps, EarlyCheckpoint))


async def opened(commits: int = 1) -> tuple[Lab, BatchConsumer]:
    lab = Lab()
    await lab.open()
    for _ in range(commits):
        lab.commit("Pause")
    assert await lab.consumers[0].acquire()
    return lab, lab.consumers[0]


async def test_an_ack_must_name_the_batch_in_flight() -> None:
    lab, consumer = await opened()
    batch = await lab.deliver(0)
    assert batch is not None
    for number in (0, batch.number + 1, -1):
        with pytest.raises(BatchUnknown):
            await consumer.acknowledge(number)
        with pytest.raises(BatchUnknown):
            consumer.reject(number)
    await consumer.acknowledge(batch.number)
    with pytest.raises(BatchUnknown):
        await consumer.acknowledge(batch.number)


async def test_a_rejected_batch_comes_again_with_a_new_number() -> None:
    lab, consumer = await opened()
    first = await lab.deliver(0)
    assert first is not None
    consumer.reject(first.number)
    second = await lab.deliver(0)
    assert second is not None
    assert (list(second.events), second.number) == (list(first.events), first.number + 1)


async def test_two_consumers_share_by_lease_and_a_release_hands_over() -> None:
    lab, consumer = await opened(commits=3)
    batch = await lab.deliver(0)
    assert batch is not None
    assert not await lab.consumers[1].acquire()
    await consumer.acknowledge(batch.number)
    await consumer.release()
    assert await lab.consumers[1].acquire()
    assert lab.consumers[1].checkpoint == batch.end


async def test_a_late_ack_of_a_lost_lease_moves_nothing_and_is_no_error_later() -> None:
    lab, consumer = await opened()
    batch = await lab.deliver(0)
    assert batch is not None
    lab.clock.advance(LEASE_S + 1)
    assert await lab.consumers[1].acquire()
    with pytest.raises(LeaseLost):
        await consumer.acknowledge(batch.number)
    await lab.consumers[1].release()
    assert await consumer.acquire()
    assert consumer.checkpoint == BEGINNING
    await consumer.acknowledge(batch.number)  # repeated by the client: the batch is gone with its lease
    assert consumer.checkpoint == BEGINNING


async def test_events_that_do_not_match_move_the_checkpoint_but_not_past_a_batch() -> None:
    lab, consumer = await opened(commits=0)
    lab.commit("Unpause")
    assert await lab.deliver(0) is None
    await consumer.store_progress()
    after_other = consumer.checkpoint
    assert after_other > BEGINNING
    lab.commit("Pause")
    lab.commit("Unpause")
    assert await lab.deliver(0) is not None
    await consumer.store_progress()
    assert consumer.checkpoint == after_other
    with pytest.raises(RuntimeError):
        await consumer.next_batch(WANTED, wait_s=0)
