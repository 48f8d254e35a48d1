"""For any interleaving of commits, deliveries, crashes and answers, no subscriber misses an event or a promised order."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.webhooks import ACCEPTED, FAILED, LEASE_S, WebhookLab
from fencepost.events.subscriptions import Ordered, Subscription
from fencepost.events.webhooks import Answer, Deliverer

SIGNERS = ["0x" + "a1" * 20, "0x" + "b0" * 20, "0x" + "c2" * 20]

_STEPS = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 2)),
    st.tuples(st.just("turn"), st.integers(0, 1)),
    st.tuples(st.just("crash"), st.integers(0, 1)),  # between turns, or while requests are under way
    st.tuples(st.just("crash_while_sending"), st.tuples(st.integers(0, 1), st.integers(0, 8))),
    st.tuples(st.just("endpoint"), st.sampled_from(["up", "down", "every_third"])),
    st.tuples(st.just("time"), st.sampled_from([0.3, 3.0, LEASE_S + 0.1, 400.0])),
)
STEPS = st.lists(_STEPS, min_size=5, max_size=40)


class Story:
    """Run steps against one in-memory database, with two processes that may die and be started again."""

    def __init__(self, kind: type[Deliverer]) -> None:
        self.lab = WebhookLab()
        self.lab.answer = self.answer
        self.kind = kind
        self.processes = [self.lab.deliverer(kind) for _ in range(2)]
        self.endpoint = "up"
        self.requests = 0

    def answer(self, _event_id: str) -> Answer:
        self.requests += 1
        is_up = self.endpoint == "up" or (self.endpoint == "every_third" and self.requests % 3 == 0)
        return ACCEPTED if is_up else FAILED

    async def crash(self, which: int) -> None:
        """Forget a process: its runs end without a further write, its leases stay until they expire."""
        runs = self.processes[which]._runs
        under_way = runs[False] | runs[True]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        self.processes[which] = self.lab.deliverer(self.kind)

    async def step(self, name: str, value: Any) -> None:
        lab = self.lab
        match name:
            case "commit":
                lab.commit(SIGNERS[value])
            case "turn":
                await lab.pump(self.processes[value], turns=1)
            case "crash":
                await self.crash(value)
            case "crash_while_sending":
                which, switches = value
                await self.processes[which].turn()
                for _ in range(switches):
                    await asyncio.sleep(0)
                await self.crash(which)
            case "endpoint":
                self.endpoint = value
            case "time":
                lab.clock.time_s += value

    async def end(self, subscription: Subscription) -> None:
        """Let one process deliver everything that is left, however long its retries wait; ask again for what was given up."""
        self.endpoint = "up"
        await self.crash(0)
        for _ in range(6):
            self.lab.clock.time_s += LEASE_S + 400.0
            await self.lab.store.redeliver_failed(subscription.id, since=subscription.created_at, limit=1_000)
            await self.lab.pump(self.processes[1], turns=4)


async def violations(steps: Sequence[tuple[str, Any]], ordered: Ordered, kind: type[Deliverer]) -> list[str]:
    story = Story(kind)
    subscription = await story.lab.subscribe(ordered=ordered)
    for name, value in steps:
        await story.step(name, value)
    await story.end(subscription)
    found = []
    accepted = story.lab.accepted
    if missing := set(story.lab.ids()) - set(accepted):
        found.append(f"missed {sorted(missing)}")
    if ordered is Ordered.SIGNER:
        first_seen = list(dict.fromkeys(accepted))
        for signer in SIGNERS:
            own = [one for one in first_seen if one in set(story.lab.ids(signer))]
            if own != sorted(own):
                found.append(f"{signer} out of order: {own}")
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, ordered=st.sampled_from(Ordered))
def test_no_interleaving_loses_an_event_or_its_order(steps: list[tuple[str, Any]], ordered: Ordered) -> None:
    assert not asyncio.run(violations(steps, ordered, Deliverer))


class EarlyCheckpoint(Deliverer):
    """A planted flaw: the checkpoint moves before the endpoint has answered."""

    async def _send_all(self, held: Any, subscription: Any, items: Any, blocked: set[Hashable]) -> Any:
        if items and not items[0].is_stored:
            await self.store.advance([(held.lease, items[-1].place)])
        return await super()._send_all(held, subscription, items, blocked)


class Unordered(Deliverer):
    """A planted flaw: later events do not wait for the retry of an earlier one."""

    async def _send_all(self, held: Any, subscription: Any, items: Any, blocked: set[Hashable]) -> Any:
        blocked.clear()
        return await super()._send_all(held, subscription, items, blocked)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (
            EarlyCheckpoint,
            [("commit", 0), ("commit", 1), ("turn", 0), ("commit", 2), ("crash_while_sending", (0, 5))],
        ),
        (
            Unordered,
            [
                *[
                    ("commit", 0),
                    ("endpoint", "down"),
                    ("turn", 0),
                    ("time", 3.0),
                    ("turn", 0),
                    ("time", 3.0),
                ],
                *[("turn", 0), ("turn", 0), ("endpoint", "up"), ("commit", 0)],
                *[("time", 3.0), ("turn", 0)] * 4,
            ],
        ),
    ],
)
def test_the_check_finds_a_planted_flaw(kind: type[Deliverer], steps: list[tuple[str, Any]]) -> None:
    """Some point of time within the schedule shows the flaw, and the product passes all of them."""
    schedules = [
        [*steps[:-1], ("crash_while_sending", (0, switches))] if kind is EarlyCheckpoint else steps
        for switches in range(40)
    ]
    caught = [asyncio.run(violations(schedule, Ordered.SIGNER, kind)) for schedule in schedules]
    assert any(caught)
    assert not any(asyncio.run(violations(schedule, Ordered.SIGNER, Deliverer)) for schedule in schedules)
