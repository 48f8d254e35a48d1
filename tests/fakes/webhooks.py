"""A deliverer over the in-memory store and log, and an endpoint that answers as a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import msgspec

from fencepost.domain.ids import Address, Signer
from fencepost.events.log import BEGINNING, Place
from fencepost.events.signatures import verify
from fencepost.events.subscriptions import NewSubscription, Subscription, SubscriptionType
from fencepost.events.types import Event
from fencepost.events.webhooks import Access, Answer, Deliverer, WebhookPolicy
from fencepost.testing import InMemoryDatabase
from fencepost.testing.database import JournalRow
from fencepost.testing.event_log import InMemoryEventLog
from fencepost.testing.subscriptions import InMemorySubscriptions

SECRET = bytes(range(32))
URL = "https://example.com/hook"
ACCEPTED, FAILED = Answer(200, None, "ok"), Answer(500, "the endpoint answered 500", "no")
LEASE_S = 10.0


class ManualClock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s


@dataclass(slots=True)
class WebhookLab:
    """One database, any number of delivering processes, and the requests that the endpoint received."""

    answer: Callable[[str], Answer] = lambda _event_id: ACCEPTED
    delays_s: tuple[float, ...] = (0.0, 5.0, 300.0)
    skip_after: int = 2
    clock: ManualClock = field(default_factory=ManualClock)
    received: list[str] = field(default_factory=list)  # event ids, in order
    accepted: list[str] = field(default_factory=list)
    access: Access | None = Access(None, shows_nonce=False)  # noqa: RUF009 - an immutable value
    database: InMemoryDatabase = field(init=False)
    store: InMemorySubscriptions = field(init=False)
    log: InMemoryEventLog = field(init=False)

    def __post_init__(self) -> None:
        self.database = InMemoryDatabase(clock=self.clock)
        self.store = InMemorySubscriptions(self.database)
        self.log = InMemoryEventLog(self.database)

    async def subscribe(self, **changes: Any) -> Subscription:
        given: dict[str, Any] = {
            "id": uuid4(),
            "owner": None,
            "type": SubscriptionType.WEBHOOK,
            "start": BEGINNING,
            "url": URL,
            "secret": SECRET,
            **changes,
        }
        return await self.store.create(NewSubscription(**given), max_per_owner=20_000)

    def commit(self, address: str = "0x" + "a1" * 20, *, event: str = "Pause", count: int = 1) -> None:
        """Write journal entries, each of which is one event."""
        for _ in range(count):
            self.database.journal.append(
                JournalRow(Signer(1, Address(address)), None, event, None, {}, "n", None)
            )

    def ids(self, address: str | None = None) -> list[str]:
        """Return the ids of the events in the log, of one signer if it is given."""
        return [
            Place(row.timeline + 1, number, number, 0).id
            for number, row in enumerate(self.database.journal, start=1)
            if address in (None, row.signer.address)
        ]

    def deliverer(self, kind: type[Deliverer] = Deliverer) -> Deliverer:
        return kind(
            store=self.store,
            log=self.log,
            send=self._send,
            render=self._render,
            find_access=self._find_access,
            policy=WebhookPolicy(self.delays_s, self.skip_after, 5 * 86_400.0, 10, LEASE_S, 2.5),
            clock=self.clock,
            holder=uuid4(),
            node="n",
        )

    async def _find_access(self, _owner: str | None) -> Access | None:
        return self.access

    async def _render(self, events: Sequence[Event], _shows_nonce: bool) -> Sequence[bytes]:  # noqa: FBT001 - the port's form
        return [msgspec.json.encode({"id": event.id}) for event in events]

    async def _send(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        assert url == URL
        await asyncio.sleep(0)  # the request is on its way
        await asyncio.sleep(0)
        event_id = verify(body, headers, [SECRET], now_s=float(headers["webhook-timestamp"]))
        assert msgspec.json.decode(body) == {"id": event_id}
        self.received.append(event_id)
        answer = self.answer(event_id)
        if answer.error is None:
            self.accepted.append(event_id)
        await asyncio.sleep(0)  # the answer is on its way
        return answer

    async def pump(self, deliverer: Deliverer, turns: int = 3) -> None:
        """Let a process take turns, and finish what they start."""
        for _ in range(turns):
            await deliverer.turn()
            await deliverer.finish()

    async def stored(self, subscription_id: UUID) -> Subscription:
        found = await self.store.get(subscription_id)
        assert found is not None
        return found
