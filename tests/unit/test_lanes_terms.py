"""Two terms of one signer on one node: what the old one still does must not touch the new one."""

from __future__ import annotations

import asyncio

from fakes.bench import CHAIN_ID, Bench
from fakes.cut import Cut, How


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
