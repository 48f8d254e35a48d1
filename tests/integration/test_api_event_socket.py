"""A subscription over a WebSocket: batches, acknowledgements, shared leases, and what a key may consume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fencepost.api import event_socket
from fencepost.application.api_keys import Scope, split_token
from fencepost.events.log import BEGINNING
from fencepost.events.reader import EventFilter
from fencepost.events.subscriptions import NewSubscription, Subscription, SubscriptionType
from fencepost.events.types import EventType
from fixtures.anvil import TestChain
from fixtures.api import ApiServer, open_api
from fixtures.core import eventually
from integration.test_api_events import finished, read

PATIENCE_S = 60.0
ENDS = EventFilter(types=frozenset({EventType.TX_QUEUED, EventType.TX_CONFIRMED}))


@dataclass(frozen=True, slots=True)
class Socket:
    wire: ClientConnection

    async def send(self, **message: Any) -> None:
        await self.wire.send(msgspec.json.encode(message).decode())

    async def receive(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            message: dict[str, Any] = msgspec.json.decode(await self.wire.recv())
        assert message["type"] == kind, message
        return message

    async def start(self, subscription: Subscription, **more: Any) -> None:
        await self.send(type="start", subscription=str(subscription.id), **more)

    async def batch(self) -> tuple[int, list[str]]:
        message = await self.receive("batch")
        return message["batchNumber"], [event["id"] for event in message["events"]]

    async def ack(self, number: int) -> None:
        await self.send(type="ack", batchNumber=number)

    async def closes(self, code: str) -> None:
        """Wait for the error with this code, and for the end of the connection."""
        assert (await self.receive("error"))["code"] == code
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(PATIENCE_S):
                await self.wire.recv()


@asynccontextmanager
async def opened(api: ApiServer, path: str = "/api/v1/events/ws") -> AsyncIterator[Socket]:
    headers = {} if api.token is None else {"Authorization": f"Bearer {api.token}"}
    url = api.url.replace("http://", "ws://") + path
    async with connect(url, additional_headers=headers, close_timeout=1) as wire:
        yield Socket(wire)


async def subscribe(
    api: ApiServer,
    wanted: EventFilter = ENDS,
    kind: SubscriptionType = SubscriptionType.WEBSOCKET,
    **more: Any,
) -> Subscription:
    owner = None if api.token is None else (split_token(api.token) or ("",))[0]
    new = NewSubscription(uuid4(), owner, kind, BEGINNING, wanted=wanted, **more)
    return await api.services.subscriptions.create(new, max_per_owner=100)


async def checkpoint_of(api: ApiServer, subscription_id: UUID) -> str:
    found = await api.services.subscriptions.get(subscription_id)
    assert found is not None
    return found.checkpoint.id


async def ends(api: ApiServer, count: int) -> list[str]:
    """Finish transactions, and return the ids of their first and last events."""
    for number in range(count):
        await finished(api, f"tx-{number}")
    seen: list[str] = []

    async def all_came() -> bool:
        events = await read(api, types="tx.queued,tx.confirmed")
        seen[:] = [event["id"] for event in events]
        return len(seen) == 2 * count

    await eventually(all_came)
    return seen


async def test_batches_follow_acknowledgements(api: ApiServer) -> None:
    expected = await ends(api, 2)
    subscription = await subscribe(api)
    async with opened(api) as socket:
        await socket.start(subscription, batchSize=3)
        assert (await socket.receive("started"))["checkpoint"] == BEGINNING.id
        number, first = await socket.batch()
        assert (number, first) == (1, expected[:3])
        assert await checkpoint_of(api, subscription.id) == BEGINNING.id  # moves with the ack only
        await socket.ack(1)
        number, second = await socket.batch()
        assert (number, second) == (2, expected[3:])
        assert await checkpoint_of(api, subscription.id) == first[-1]
        await socket.ack(2)

        async def is_stored() -> bool:
            return await checkpoint_of(api, subscription.id) >= second[-1]

        await eventually(is_stored)
        await finished(api, "later")
        _, third = await socket.batch()
        assert third[0] > second[-1]


async def test_a_nack_redelivers_the_same_events(api: ApiServer) -> None:
    expected = await ends(api, 1)
    subscription = await subscribe(api)
    async with opened(api) as socket:
        await socket.start(subscription)
        await socket.receive("started")
        assert await socket.batch() == (1, expected)
        await socket.send(type="nack", batchNumber=1, pause=0.01)
        assert await socket.batch() == (2, expected)
        await socket.ack(1)
        await socket.closes("batch_unknown")


async def test_the_next_connection_gets_what_was_not_acknowledged(api: ApiServer) -> None:
    expected = await ends(api, 1)
    subscription = await subscribe(api)
    for _ in range(2):
        async with opened(api) as socket:
            await socket.start(subscription, batchSize=1)
            await socket.receive("started")
            assert await socket.batch() == (1, expected[:1])


async def test_two_connections_share_a_subscription(api: ApiServer) -> None:
    expected = await ends(api, 1)
    subscription = await subscribe(api)
    async with opened(api) as second:
        async with opened(api) as first:
            await first.start(subscription, batchSize=1)
            await first.receive("started")
            await first.batch()
            await second.start(subscription, batchSize=1)
            await second.receive("waiting")
            await first.ack(1)
            assert await first.batch() == (2, expected[1:])
        started = await second.receive("started")  # the first connection has closed
        assert started["checkpoint"] == expected[0]
        assert await second.batch() == (1, expected[1:])


async def test_a_connection_whose_lease_was_taken_waits_and_continues(api: ApiServer) -> None:
    expected = await ends(api, 1)
    subscription = await subscribe(api)
    async with opened(api) as socket:
        await socket.start(subscription)
        await socket.receive("started")
        await socket.batch()
        (stolen,) = await _steal(api, subscription.id)
        await socket.ack(1)
        await socket.receive("waiting")
        assert await checkpoint_of(api, subscription.id) == BEGINNING.id
        await socket.ack(1)  # of a batch that was lost with the lease: ignored
        await api.services.subscriptions.release([stolen])
        await socket.receive("started")
        assert await socket.batch() == (2, expected)


async def _steal(api: ApiServer, subscription_id: UUID) -> Any:
    await api.running.pool.execute(
        "UPDATE subscription_lease SET expires_at = '-infinity' WHERE subscription_id = $1", subscription_id
    )
    return await api.services.subscriptions.acquire(
        holder=uuid4(), node="other", duration_s=600, subscription_id=subscription_id
    )


async def test_a_consumer_that_does_not_acknowledge_loses_the_connection(api: ApiServer) -> None:
    await ends(api, 1)
    subscription = await subscribe(api)
    async with opened(api) as socket:
        await socket.start(subscription, ackTimeout=1)
        await socket.receive("started")
        await socket.batch()
        await socket.closes("ack_timeout")
    async with opened(api) as socket:
        await socket.start(subscription)
        await socket.receive("started")  # its lease was released


async def test_a_key_consumes_its_own_subscriptions_and_signers_only(api: ApiServer) -> None:
    admin = api.with_token(await api.key(Scope.TX_WRITE, name="both"))
    own = api.with_token(await api.key(Scope.TX_READ, signers=frozenset({api.signers[1]}), name="own"))
    await finished(admin, "first")
    await finished(admin, "second", signer=api.signers[1])
    mine, foreign = await subscribe(own), await subscribe(admin)
    async with opened(own) as socket:
        await socket.start(mine)
        await socket.receive("started")
        message = await socket.receive("batch")
        assert {event["signer"] for event in message["events"]} == {api.signers[1]}
        assert "nonce" not in str(message)
    for subscription_id in (foreign.id, uuid4()):
        async with opened(own) as socket:
            await socket.send(type="start", subscription=str(subscription_id))
            await socket.closes("subscription_not_found")
    with pytest.raises(InvalidStatus) as rejected:
        async with opened(api.with_token(None)):
            pass
    assert rejected.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as absent:
        async with opened(own, "/api/v1/tx"):
            pass
    assert absent.value.response.status_code == 404


async def test_a_revoked_key_and_a_paused_subscription_end_the_connection(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        await api.key(Scope.ADMIN, name="keeper")
        keyed = api.with_token(await api.key(Scope.TX_READ, name="leaving"))
        paused, kept = await subscribe(keyed), await subscribe(keyed)
        async with opened(keyed) as first, opened(keyed) as second:
            for socket, subscription in ((first, paused), (second, kept)):
                await socket.start(subscription)
                await socket.receive("started")
            await api.services.subscriptions.pause(paused.id)
            await first.closes("subscription_inactive")
            await api.services.keys.revoke((split_token(keyed.token or "") or ("",))[0], actor="a test")
            await second.closes("key_invalid")


async def test_bad_messages_close_the_connection(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = await subscribe(api)
    hook = await subscribe(
        api, kind=SubscriptionType.WEBHOOK, url="https://example.org/", secret=bytes(range(32))
    )
    known = str(subscription.id)
    for message, code in (
        ({"type": "ack", "batchNumber": 1}, "start_missing"),
        ({"type": "start"}, "message_invalid"),
        ({"type": "start", "subscription": known, "batchSize": 0}, "message_invalid"),
        ({"type": "start", "subscription": known, "more": 1}, "message_invalid"),
        ({"type": "start", "subscription": str(hook.id)}, "subscription_type"),
    ):
        async with opened(api) as socket:
            await socket.send(**message)
            await socket.closes(code)
    async with opened(api) as socket:
        await socket.start(subscription)
        await socket.receive("started")
        await socket.start(subscription)
        await socket.closes("start_repeated")
    monkeypatch.setattr(event_socket, "START_TIMEOUT_S", 0.05)
    async with opened(api) as socket:
        await socket.closes("start_missing")


async def test_connections_count_as_streams_of_the_key(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil, api__max_streams_per_key="1") as api:
        async with opened(api):
            with pytest.raises(InvalidStatus) as rejected:
                async with opened(api):
                    pass
            assert rejected.value.response.status_code == 429

        async def may_again() -> bool:
            try:
                async with opened(api):
                    return True
            except InvalidStatus:
                return False

        await eventually(may_again)


async def test_a_stopping_node_closes_its_connections(dsn: str, anvil: TestChain) -> None:
    async with open_api(dsn, anvil) as api:
        subscription = await subscribe(api)
        async with opened(api) as socket:
            await socket.start(subscription)
            await socket.receive("started")
            api.running.tx_waiter.stop()
            api.running.events.hint()
            await socket.closes("stopping")
        (lease,) = await api.services.subscriptions.acquire(
            holder=uuid4(), node="next", duration_s=5, subscription_id=subscription.id
        )
        assert lease.checkpoint == BEGINNING
