"""Committed changes are published in order; an error of a subscriber stops neither the lane nor other subscribers."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from fakes.bench import QUICK, Bench
from fakes.rounds import run_alone
from fencepost.application.tx_events import MAX_SUBSCRIBERS, TxEvents, TxsChanged
from fencepost.domain.ids import Signer, parse_address
from fencepost.domain.states import State
from fencepost.errors import Fenced

EVENT = TxsChanged(Signer(1, parse_address("0x" + "a1" * 20)), 1, ())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def states(event: TxsChanged) -> list[tuple[State, State]]:
    return [(change.before.state, change.after.state) for change in event.changes]


async def test_a_lane_publishes_every_commit_in_order_with_what_it_changed(bench: Bench) -> None:
    node, published = bench.node(replace(QUICK, required=0)), list[TxsChanged]()
    await node.turn()
    node.lane.ports.events.subscribe(published.append)
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine()
    await node.turn()
    assert [pair for event in published for pair in states(event)] == [
        (State.QUEUED, State.ALLOCATED),
        (State.ALLOCATED, State.SUBMITTED),
        (State.SUBMITTED, State.CONFIRMED),
    ]
    assert {(event.signer, event.token) for event in published} == {(bench.signer, node.lane.term.token)}
    assert {change.before.tx_id for event in published for change in event.changes} == {tx_id}
    kinds = [entry.event for event in published for change in event.changes for entry in change.entries]
    assert kinds == bench.events(tx_id)[1:]  # the request itself was stored before


async def test_a_deferred_write_is_published_when_it_is_written(bench: Bench) -> None:
    node, published = bench.node(replace(QUICK, record_within_s=0.5)), list[TxsChanged]()
    await node.turn()
    node.lane.ports.events.subscribe(published.append)
    await bench.request()
    await node.turn()
    assert node.lane.in_flight[0].state is State.SUBMITTED
    assert states(published[-1]) == [(State.QUEUED, State.ALLOCATED)]
    bench.clock.advance(0.5)
    await node.turn()
    assert states(published[-1]) == [(State.ALLOCATED, State.SUBMITTED)]


async def test_a_fenced_write_is_not_published(bench: Bench) -> None:
    old, published = bench.node(name="old"), list[TxsChanged]()
    await bench.request()
    await old.turn()
    lane = old.lane
    bench.clock.advance(20)
    await bench.node(name="new").turn()
    lane.term = lane.term.renewed(bench.clock.now_s())  # by its own clock it still trusts its lease
    lane.ports.events.subscribe(published.append)
    await bench.request()
    lane.queue.may_be_longer = True
    with pytest.raises(Fenced):
        await run_alone(lane)
    assert published == []


async def test_an_error_of_a_subscriber_is_logged_and_stops_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    node, published = bench.node(), list[TxsChanged]()

    def fail(_event: TxsChanged) -> None:
        raise ZeroDivisionError

    await node.turn()
    node.lane.ports.events.subscribe(fail)
    node.lane.ports.events.subscribe(published.append)
    tx_id = await bench.request()
    await node.turn()
    assert published
    assert bench.state(tx_id) is State.SUBMITTED
    (first, *_) = [record for record in caplog.records if record.name == "fencepost.application.tx_events"]
    assert first.levelno == logging.ERROR
    assert "subscriber" in first.message
    assert first.exc_info is not None
    assert first.exc_info[0] is ZeroDivisionError


def test_an_ended_subscription_gets_nothing_more_and_ends_once() -> None:
    events, first, second = TxEvents(), list[TxsChanged](), list[TxsChanged]()
    unsubscribe = events.subscribe(first.append)
    events.subscribe(second.append)
    events.subscribe(second.append)
    events.publish(EVENT)
    unsubscribe()
    unsubscribe()
    events.publish(EVENT)
    assert (len(first), len(second)) == (1, 4)


def test_a_subscription_that_ends_during_an_event_disturbs_no_other() -> None:
    events, published = TxEvents(), list[TxsChanged]()
    unsubscribe = events.subscribe(lambda _: unsubscribe())
    events.subscribe(published.append)
    events.publish(EVENT)
    events.publish(EVENT)
    assert len(published) == 2


def test_the_number_of_subscribers_is_bounded() -> None:
    events = TxEvents()
    ends = [events.subscribe(lambda _: None) for _ in range(MAX_SUBSCRIBERS)]
    with pytest.raises(RuntimeError, match="subscribers"):
        events.subscribe(lambda _: None)
    ends[0]()
    events.subscribe(lambda _: None)
