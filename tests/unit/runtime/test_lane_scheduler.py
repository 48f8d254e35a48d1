"""Terms of one signer on one node: the old term does not affect the new one, which begins with its pending forks."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

from fakes.bench import CHAIN_ID, Bench, BenchNode
from fakes.failing_call import FailingCall, FailureMode
from fencepost.application.membership import Member
from fencepost.domain.states import State
from fencepost.errors import RpcUnavailable
from fencepost.runtime.lane_slot import MAX_PAUSE_S
from fencepost.runtime.pending_forks import FORK_TTL_S


async def test_a_fenced_step_does_not_affect_the_newer_term() -> None:
    bench = Bench()
    cut = FailingCall(1, FailureMode.PAUSED_BEFORE)
    at = bench.node(keys=cut.wrap(bench.keys))
    lanes = at.node.lanes
    await bench.request()
    await at.node.heads_once(CHAIN_ID)
    at.node.hint(bench.signer)
    await at.node.acquire_once()
    old = at.lane
    working = asyncio.create_task(lanes.run())
    try:
        await asyncio.wait_for(cut.reached.wait(), 20)  # its step is in progress
        lanes.drop(bench.signer)
        at.node.hint(bench.signer)
        await at.node.acquire_once()
        newer = at.lane
        assert newer.term.token > old.term.token
        cut.resume.set()
        for _ in range(50):
            await asyncio.sleep(0)
        assert lanes.get(bench.signer) is newer
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_a_new_lane_begins_at_the_lowest_recent_fork() -> None:
    bench = Bench()
    at = bench.node()
    lanes = at.node.lanes
    now_s = 0.0
    lanes.forks.now_s = lambda: now_s
    lanes.forked(bench.signer, 10)
    now_s = FORK_TTL_S / 2
    lanes.forked(bench.signer, 70)
    lanes.forked(bench.signer, 50)
    lanes.forked(bench.signer, 90)
    assert await _forked_at(bench, at) == 10
    now_s = FORK_TTL_S
    assert await _forked_at(bench, at) == 50
    now_s = 2 * FORK_TTL_S
    lanes.forked(bench.signer, 100)
    assert await _forked_at(bench, at) == 100
    now_s = 3 * FORK_TTL_S
    assert await _forked_at(bench, at) is None


async def _forked_at(bench: Bench, at: BenchNode) -> int | None:
    at.node.hint(bench.signer)
    await at.node.acquire_once()
    forked_at = at.lane.blocks.forked_at
    await at.release()
    return forked_at


async def _until(bench: Bench, node: BenchNode, tx_id: UUID, state: State) -> None:
    for _ in range(1_000):  # loop turns: nothing here waits for an external event
        if bench.state(tx_id) is state and not node.node.lanes.is_busy(bench.signer):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{bench.state(tx_id)}, not {state}")


async def _at_rest() -> tuple[Bench, BenchNode]:
    """Return a node whose only lane has finished its work, stepped by a worker as in production."""
    bench = Bench()
    node = bench.node()
    tx_id = await bench.request()
    await node.node.heads_once(CHAIN_ID)
    await node.node.acquire_once()
    working = asyncio.create_task(node.node.lanes.run())
    try:
        await _until(bench, node, tx_id, State.SUBMITTED)
        assert node.node.lanes.lanes_awaiting_blocks() == [], (
            "it waits for a block with its hash, not for every block"
        )
        bench.chain.mine(2)
        await node.node.heads_once(CHAIN_ID)
        await _until(bench, node, tx_id, State.CONFIRMED)
    finally:
        working.cancel()
    return bench, node


async def test_a_block_wakes_only_the_lanes_whose_hashes_it_contains() -> None:
    bench = Bench()
    node = bench.node()
    tx_id = await bench.request()
    await node.node.heads_once(CHAIN_ID)
    await node.node.acquire_once()
    working = asyncio.create_task(node.node.lanes.run())
    try:
        await _until(bench, node, tx_id, State.SUBMITTED)
        bench.chain.mine(1, only=())
        await node.node.heads_once(CHAIN_ID)
        assert not node.node.lanes.is_busy(bench.signer)
        bench.chain.mine(1)
        await node.node.heads_once(CHAIN_ID)
        assert node.node.lanes.is_busy(bench.signer)
        await _until(bench, node, tx_id, State.TRACKING)
        assert node.node.lanes.lanes_awaiting_blocks() == [node.lane]
        bench.chain.mine(1)
        await node.node.heads_once(CHAIN_ID)
        assert node.node.lanes.is_busy(bench.signer), "it waits for depth"
        await _until(bench, node, tx_id, State.CONFIRMED)
    finally:
        working.cancel()


async def test_an_idle_lane_ignores_a_block_but_not_a_fork() -> None:
    bench, node = await _at_rest()
    assert node.node.lanes.lanes_awaiting_blocks() == []
    bench.chain.mine(1)
    await node.node.heads_once(CHAIN_ID)
    assert not node.node.lanes.is_busy(bench.signer)
    bench.chain.reorg(1)
    await node.node.heads_once(CHAIN_ID)
    assert node.node.lanes.is_busy(bench.signer)


async def test_a_hash_is_not_awaited_after_its_transaction_or_lane_is_gone() -> None:
    bench, node = await _at_rest()
    awaited = node.node.chain_views[CHAIN_ID].awaited
    assert not awaited, "it is mined"
    tx_id = await bench.request()
    node.node.hint(bench.signer)
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    assert awaited == {bench.tx(tx_id).hash: bench.signer}
    bench.chain.mine(1)
    await node.node.heads_once(CHAIN_ID)
    bench.chain.reorg(1)
    await node.turn()
    assert awaited == {bench.tx(tx_id).hash: bench.signer}, "a fork took its block"
    node.node.lanes.drop(bench.signer)
    assert not awaited


async def test_the_lease_of_an_idle_lane_is_renewed_every_other_time_and_of_a_busy_one_each_time() -> None:
    bench, node = await _at_rest()
    pace_s = node.node.intervals.renew_interval_s
    await node.node.renew_once()
    renewed = []
    for _ in range(4):
        bench.clock.advance(pace_s)
        renewed.append(await node.node.renew_once())
    assert sum(renewed) == 2
    assert node.lane.term.is_trusted(bench.clock.now_s())
    node.node.hint(bench.signer)
    for _ in range(3):
        bench.clock.advance(pace_s)
        assert await node.node.renew_once() == 1


async def _fail_until_given_up(bench: Bench, at: BenchNode, *, within_s: float) -> float | None:
    """Let every step of an unreconciled lane fail; return after how many seconds it is given up, or None."""
    lanes = at.node.lanes
    at.node.lease_acquirer._not_before_s.clear()
    await at.node.acquire_once()
    started_s = bench.clock.now_s()
    while bench.clock.now_s() - started_s < within_s:
        pause_s = lanes._after_failure(lanes._slots[bench.signer], RpcUnavailable("no endpoint answers"))
        if pause_s is None:
            await at.node.lease_releaser.once()
            return bench.clock.now_s() - started_s
        assert pause_s <= MAX_PAUSE_S
        bench.clock.advance(pause_s)
        await at.node.renew_once()
    return None


async def test_a_lane_that_can_not_start_stays_while_no_other_node_can_serve_it() -> None:
    bench = Bench()
    at = bench.node()
    await bench.request()
    assert await _fail_until_given_up(bench, at, within_s=600.0) is None
    assert bench.signer in at.node.lanes
    assert at.lane.term.token == 1, "one term, however long the endpoints are silent"


async def test_a_lane_that_can_not_start_is_given_up_later_each_time() -> None:
    bench = Bench()
    at = bench.node()
    await bench.request()
    at.node.router.update([Member("other", uuid4(), "basic", "")])
    after_s = [await _fail_until_given_up(bench, at, within_s=600.0) for _ in range(7)]
    held_s = [seconds for seconds in after_s if seconds is not None]
    assert len(held_s) == 7
    assert held_s[0] < 3.0, "a node with a better connection gets it soon"
    assert held_s == sorted(held_s)
    assert held_s[-1] >= 60.0
    at.node.router.update([Member("other", uuid4(), "basic", "", silent_chains=frozenset({CHAIN_ID}))])
    assert await _fail_until_given_up(bench, at, within_s=600.0) is None, (
        "the other node cannot read the chain"
    )
