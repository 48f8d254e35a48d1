"""The deliverer over the in-memory store: order, retries, failures, bounds, and what ends a subscription."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fakes.webhooks import ACCEPTED, FAILED, LEASE_S, URL, WebhookLab
from fencepost.domain.ids import Address
from fencepost.events import webhooks
from fencepost.events.log import BEGINNING
from fencepost.events.reader import EventFilter
from fencepost.events.subscriptions import OnError, Ordered, SubscriptionState
from fencepost.events.types import EventType
from fencepost.events.webhooks import Access, Answer, Deliverer

ALICE, BOB = "0x" + "a1" * 20, "0x" + "b0" * 20


async def test_every_matching_event_is_sent_once_if_nothing_fails() -> None:
    lab = WebhookLab()
    made = await lab.subscribe()
    lab.commit(count=250)
    await lab.pump(lab.deliverer())
    assert sorted(lab.received) == lab.ids()
    found = await lab.stored(made.id)
    assert (found.checkpoint.id[:-1], found.pending) == (lab.ids()[-1][:-1], 0)
    newest = await lab.store.attempts(made.id, limit=1)
    assert (newest[0].status, newest[0].error, newest[0].answer) == (200, None, "ok")


async def test_only_events_that_match_and_that_the_key_may_see_are_sent() -> None:
    lab = WebhookLab(access=Access(frozenset({Address(ALICE)}), shows_nonce=False))
    await lab.subscribe(wanted=EventFilter(types=frozenset({EventType.SIGNER_PAUSED})))
    lab.commit(ALICE)
    lab.commit(BOB)
    lab.commit(ALICE, event="Unpause")
    await lab.pump(lab.deliverer())
    assert lab.received == lab.ids(ALICE)[:1]


async def test_a_failed_event_is_retried_after_its_pause() -> None:
    lab = WebhookLab(answer=lambda _: FAILED)
    made = await lab.subscribe()
    lab.commit()
    process = lab.deliverer()
    await lab.pump(process)
    assert len(lab.received) == 1
    lab.clock.time_s += 4.9
    await lab.pump(process)
    assert len(lab.received) == 1
    lab.clock.time_s += 1.2  # 5 s and up to 20 %
    await lab.pump(process)
    assert len(lab.received) == 2
    lab.answer = lambda _: ACCEPTED
    lab.clock.time_s += 360.0
    await lab.pump(process)
    assert lab.accepted == lab.ids()
    assert (await lab.stored(made.id)).pending == 0


async def test_an_event_is_given_up_after_its_last_attempt() -> None:
    lab = WebhookLab(answer=lambda _: FAILED)
    made = await lab.subscribe()
    lab.commit()
    process = lab.deliverer()
    for _ in range(6):
        await lab.pump(process)
        lab.clock.time_s += 400.0
    assert len(lab.received) == len(lab.delays_s)
    lab.answer = lambda _: ACCEPTED
    assert (
        await lab.store.redeliver_failed(made.id, since=datetime.now(UTC) - timedelta(hours=1), limit=9) == 1
    )
    lab.clock.time_s += 3.0  # the next renewal brings the new version
    await lab.pump(process)
    assert lab.accepted == lab.ids()


async def test_one_event_that_fails_does_not_hold_back_the_others() -> None:
    lab = WebhookLab()
    await lab.subscribe()
    lab.commit(count=30)
    bad = lab.ids()[7]
    lab.answer = lambda event_id: FAILED if event_id == bad else ACCEPTED
    await lab.pump(lab.deliverer())
    assert set(lab.accepted) == set(lab.ids()) - {bad}


@pytest.mark.parametrize(("header_s", "expected_s"), [(120.0, 120.0), (1.0, 5.0)])
async def test_retry_after_is_honoured(header_s: float, expected_s: float) -> None:
    busy = Answer(503, "the endpoint answered 503", retry_after_s=header_s)
    lab = WebhookLab(answer=lambda _: busy)
    await lab.subscribe()
    lab.commit()
    process = lab.deliverer()
    await lab.pump(process)
    lab.clock.time_s += expected_s - 0.1
    await lab.pump(process)
    assert len(lab.received) == 1
    lab.clock.time_s += 1.2
    await lab.pump(process)
    assert len(lab.received) == 2


async def test_gone_disables_the_subscription() -> None:
    lab = WebhookLab(answer=lambda _: Answer(410, "the endpoint answered 410"))
    made = await lab.subscribe(wanted=EventFilter(types=frozenset({EventType.SIGNER_PAUSED})))
    lab.commit(count=50)
    await lab.pump(lab.deliverer())
    found = await lab.stored(made.id)
    assert (found.state, found.reason) == (SubscriptionState.DISABLED, "the endpoint answered 410 Gone")
    assert len(lab.received) <= 10
    assert lab.database.journal[-1].event == "WebhookDisabled"


async def test_days_of_failures_disable_the_subscription(caplog: pytest.LogCaptureFixture) -> None:
    lab = WebhookLab(answer=lambda _: FAILED)
    made = await lab.subscribe()
    lab.commit()
    process = lab.deliverer()
    process.policy = replace(process.policy, disable_after_s=0.0)
    await lab.pump(process)
    found = await lab.stored(made.id)
    assert found.state is SubscriptionState.DISABLED
    assert "every delivery failed" in (found.reason or "")
    assert f"disabled the webhook subscription {made.id}" in caplog.text


async def test_a_revoked_key_ends_its_subscriptions() -> None:
    lab = WebhookLab(access=None)
    made = await lab.subscribe()
    lab.commit()
    await lab.pump(lab.deliverer())
    assert not lab.received
    assert (await lab.stored(made.id)).state is SubscriptionState.DISABLED


async def test_removed_events_disable_a_subscription_that_had_not_read_them() -> None:
    lab = WebhookLab()
    lab.commit(count=3)
    first = (await lab.log.read(BEGINNING)).entries[0].place
    made = await lab.subscribe(start=first)
    await lab.log.prune(older_than_s=-1.0)
    lab.commit()
    await lab.pump(lab.deliverer())
    found = await lab.stored(made.id)
    assert (found.state, lab.received) == (SubscriptionState.DISABLED, [])
    assert "events.retention" in (found.reason or "")


# ---- order


async def test_a_blocked_signer_waits_and_others_go_on() -> None:
    lab = WebhookLab()
    await lab.subscribe(ordered=Ordered.SIGNER, on_error=OnError.BLOCK)
    for _ in range(5):
        lab.commit(ALICE)
        lab.commit(BOB)
    bad = lab.ids(ALICE)[1]
    lab.answer = lambda event_id: FAILED if event_id == bad else ACCEPTED
    process = lab.deliverer()
    await lab.pump(process)
    lab.commit(ALICE)
    for _ in range(8):
        lab.clock.time_s += 9.0
        await lab.pump(process)
    own = lab.ids(ALICE)
    assert [one for one in lab.accepted if one in own] == own[:1]
    assert [one for one in lab.accepted if one not in own] == lab.ids(BOB)
    lab.answer = lambda _: ACCEPTED
    for _ in range(60):
        lab.clock.time_s += 9.0
        await lab.pump(process)
    assert [one for one in lab.accepted if one in own] == own


async def test_a_skipped_event_is_given_up_and_its_signer_goes_on() -> None:
    lab = WebhookLab()
    made = await lab.subscribe(ordered=Ordered.SIGNER, on_error=OnError.SKIP)
    lab.commit(ALICE, count=4)
    bad = lab.ids()[1]
    lab.answer = lambda event_id: FAILED if event_id == bad else ACCEPTED
    process = lab.deliverer()
    for _ in range(5):
        await lab.pump(process)
        lab.clock.time_s += 9.0
    assert lab.accepted == [one for one in lab.ids() if one != bad]
    assert lab.received.count(bad) == lab.skip_after
    since = datetime.now(UTC) - timedelta(hours=1)
    assert await lab.store.redeliver_failed(made.id, since=since, limit=10) == 1


# ---- bounds


async def test_a_failing_endpoint_gets_one_event_at_a_time_and_stores_few() -> None:
    lab = WebhookLab(answer=lambda _: FAILED)
    made = await lab.subscribe()
    lab.commit(count=5_000)
    process = lab.deliverer()
    for _ in range(20):
        await lab.pump(process)
        lab.clock.time_s += 9.0
    assert len(lab.received) < 60
    assert (await lab.stored(made.id)).pending <= webhooks.PAGE_EVENTS + 20


async def test_a_dead_endpoint_does_not_slow_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints that never answer fill their own slots; a healthy subscription is delivered meanwhile."""
    monkeypatch.setattr(webhooks, "MAX_RUNS", 4)
    lab, never, is_hanging = WebhookLab(), asyncio.Event(), False
    for _ in range(8):
        await lab.subscribe(url="https://example.com/dead")
    process = lab.deliverer()
    answers = process.send

    async def send(url: str, headers: dict[str, str], body: bytes) -> Answer:
        if url != URL:
            if is_hanging:
                await never.wait()
            return FAILED
        return await answers(url, headers, body)

    process.send = send
    lab.commit()
    await lab.pump(process, turns=8)
    is_hanging = True
    lab.clock.time_s += 8.0
    process._renew_at_s = lab.clock.time_s - 1
    await process.turn()
    await asyncio.sleep(0)
    assert len(process._runs[True]) == 4  # all that slow and failing endpoints may have
    healthy = await lab.subscribe()
    lab.clock.time_s += 1.0
    for _ in range(3):
        await process.turn()
        if process._runs[False]:
            await asyncio.wait(process._runs[False])
    assert len(process._runs[True]) == 4
    assert lab.accepted == lab.ids()
    assert (await lab.stored(healthy.id)).checkpoint > BEGINNING
    never.set()
    await process.finish()


class CountedRuns(Deliverer):
    runs = 0

    async def _run(self, held: Any) -> None:
        type(self).runs += 1
        await super()._run(held)


async def test_subscriptions_that_do_not_match_cost_no_run() -> None:
    lab = WebhookLab()
    made = [await lab.subscribe(wanted=EventFilter(addresses=frozenset({Address(BOB)}))) for _ in range(50)]
    process = lab.deliverer(CountedRuns)
    await lab.pump(process)
    CountedRuns.runs = 0
    lab.commit(ALICE, count=20)
    lab.clock.time_s += 1.0
    await process.turn()
    lab.clock.time_s += webhooks.SAVE_INTERVAL_S
    await process.turn()
    assert CountedRuns.runs == 0
    assert (await lab.stored(made[0].id)).checkpoint.id[:-1] == lab.ids()[-1][:-1]


async def test_a_process_without_renewal_stops_sending() -> None:
    lab = WebhookLab()
    made = await lab.subscribe()
    process = lab.deliverer()
    await process.turn()
    lab.commit()
    lab.clock.time_s += 0.7 * LEASE_S
    process._renew_at_s = float("inf")
    await lab.pump(process, turns=1)
    assert not lab.received
    assert (await lab.stored(made.id)).checkpoint == BEGINNING


async def test_a_stopped_process_releases_its_leases() -> None:
    lab = WebhookLab()
    await lab.subscribe()
    first, second = lab.deliverer(), lab.deliverer()
    await lab.pump(first)
    await first.stop()
    lab.commit()
    await lab.pump(second)
    assert lab.received == lab.ids()


async def test_a_paused_subscription_is_dropped_at_the_next_renewal() -> None:
    lab = WebhookLab()
    made = await lab.subscribe()
    process = lab.deliverer()
    await lab.pump(process)
    await lab.store.pause(made.id)
    lab.clock.time_s += 3.0
    await lab.pump(process)
    lab.commit()
    await lab.pump(process)
    assert not lab.received
    await lab.store.resume(made.id)
    lab.clock.time_s += LEASE_S
    await lab.pump(process)
    assert lab.received == lab.ids()
