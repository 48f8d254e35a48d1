"""Terms of one signer on one node: what the old one does must not touch the new one, which begins with what it owed."""

from __future__ import annotations

import asyncio

from fakes.bench import CHAIN_ID, Bench, BenchNode
from fakes.cut import Cut, How
from fencepost.runtime.forks import FORK_KEPT_S


async def test_a_step_that_ends_fenced_leaves_the_newer_term_alone() -> None:
    bench = Bench()
    cut = Cut(1, How.PAUSED_BEFORE)
    at = bench.node(keys=cut.wrap(bench.keys))
    lanes = at.node.lanes
    await bench.request()
    await at.node.heads_once(CHAIN_ID)
    at.node.hint(bench.signer)
    await at.node.seek_once()
    old = at.lane
    working = asyncio.create_task(lanes.run())
    try:
        await asyncio.wait_for(cut.reached.wait(), 20)  # its step is under way
        lanes.drop(bench.signer)
        at.node.hint(bench.signer)
        await at.node.seek_once()
        newer = at.lane
        assert newer.term.token > old.term.token
        cut.go_on.set()
        for _ in range(50):
            await asyncio.sleep(0)
        assert lanes.get(bench.signer) is newer
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_a_new_lane_begins_at_the_lowest_fork_that_is_not_too_old() -> None:
    bench = Bench()
    at = bench.node()
    lanes = at.node.lanes
    now_s = 0.0
    lanes.forks.now_s = lambda: now_s
    lanes.forked(bench.signer, 10)
    now_s = FORK_KEPT_S / 2
    lanes.forked(bench.signer, 70)
    lanes.forked(bench.signer, 50)
    lanes.forked(bench.signer, 90)
    assert await _forked_at(bench, at) == 10
    now_s = FORK_KEPT_S
    assert await _forked_at(bench, at) == 50
    now_s = 2 * FORK_KEPT_S
    lanes.forked(bench.signer, 100)
    assert await _forked_at(bench, at) == 100
    now_s = 3 * FORK_KEPT_S
    assert await _forked_at(bench, at) is None


async def _forked_at(bench: Bench, at: BenchNode) -> int | None:
    at.node.hint(bench.signer)
    await at.node.seek_once()
    forked_at = at.lane.forked_at
    await at.release()
    return forked_at
