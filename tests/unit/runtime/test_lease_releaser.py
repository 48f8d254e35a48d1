"""A request to hand a signer over ends with the lane that it concerned."""

from __future__ import annotations

import asyncio

from fakes.bench import Bench


async def test_a_hand_over_request_does_not_apply_to_the_next_lane_of_the_signer() -> None:
    bench = Bench()
    node = bench.node()
    await bench.request()
    await node.turn()
    node.node.lease_releaser.start_handover(node.lane.term)  # its step hangs, and the lane is lost meanwhile
    node.node.lanes.drop(bench.signer)
    bench.clock.advance(60.0)
    await node.turn()
    lane = node.lane
    node.node._force_overdue()
    assert node.node.lanes.get(bench.signer) is lane
    assert node.node.lease_releaser.overdue(0.0) == []


async def test_a_hanging_step_is_dropped_and_its_hand_over_is_timed() -> None:
    bench = Bench()
    node = bench.node()
    await bench.request()
    await node.turn()
    node.node.lease_releaser.start_handover(node.lane.term)
    bench.clock.advance(5.0)
    node.node._force_overdue()
    assert bench.signer not in node.node.lanes
    assert await node.node.lease_releaser.once() == 1
    await asyncio.sleep(0)
    (noted,) = node.observer.of("handed_over")
    assert noted["seconds"] == 5.0
