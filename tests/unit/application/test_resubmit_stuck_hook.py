"""A stuck hook is a caller's code: whatever it does, its lane continues, and sends stay bounded."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import pytest

from fakes.bench import GWEI, QUICK, Bench, BenchNode
from fencepost.application import resubmit
from fencepost.application.hooks import StuckDecision
from fencepost.application.pool_watch import POOL_CHECK_INTERVAL_S
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction_state import ManagedTx, Purpose

LIMITED = replace(QUICK, resubmit_max_attempts=1)
INTERVAL_S = QUICK.resubmit_interval_s
COMES_BACK_S = min(INTERVAL_S, POOL_CHECK_INTERVAL_S)  # the pool is checked before a resend


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def wait_intervals(bench: Bench, node: BenchNode, count: int) -> float | None:
    again_s: float | None = None
    for _ in range(count):
        bench.clock.advance(INTERVAL_S)
        again_s = await node.turn()
    return again_s


async def test_a_hook_that_always_returns_filler_gets_one_filler(bench: Bench) -> None:
    bench.stuck = "filler"
    node = bench.node(LIMITED)
    tx_id = await bench.request()
    await node.turn()
    again_s = await wait_intervals(bench, node, 12)
    tx = bench.tx(tx_id)
    assert [attempt.purpose for attempt in tx.attempts] == [Purpose.INTENT, Purpose.FILLER]
    assert tx.latest.sent_count > 5  # the filler itself is sent again
    assert again_s == COMES_BACK_S
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.FAILED


async def test_a_filler_above_the_cap_is_tried_once_per_interval_until_the_cap_is_raised(
    bench: Bench,
) -> None:
    bench.stuck = "filler"
    low = replace(LIMITED, fee_cap_wei=3 * GWEI)
    node = bench.node(low)
    tx_id = await bench.request()
    await node.turn()
    again_s = await wait_intervals(bench, node, 6)
    tx = bench.tx(tx_id)
    assert (len(tx.attempts), tx.sub_state, tx.ending) == (1, SubState.STUCK, State.FAILED)
    assert again_s == COMES_BACK_S
    assert bench.events(tx_id).count("Stuck") == 1
    await node.release()
    raised = bench.node(replace(low, fee_cap_wei=500 * GWEI), name="raised")
    await raised.turn()
    await wait_intervals(bench, raised, 2)
    assert bench.tx(tx_id).latest.purpose is Purpose.FILLER


async def test_a_raising_hook_marks_the_transaction_and_keeps_the_lane(bench: Bench) -> None:
    async def raises(_tx: ManagedTx) -> StuckDecision:
        raise ValueError("no idea")

    bench.stuck_hook = raises
    node = bench.node(LIMITED)
    tx_id = await bench.request()
    await node.turn()
    again_s = await wait_intervals(bench, node, 4)
    tx = bench.tx(tx_id)
    assert (tx.sub_state, again_s) == (SubState.STUCK, COMES_BACK_S)
    assert "the stuck hook failed: ValueError: no idea" in (tx.error or "")
    assert node.observer.counts["stuck_hook_failed"] >= 2


@pytest.mark.parametrize("answer", [None, "fill", 7])
async def test_an_invalid_decision_counts_as_a_failure(bench: Bench, answer: Any) -> None:
    async def odd(_tx: ManagedTx) -> StuckDecision:
        return cast("StuckDecision", answer)

    bench.stuck_hook = odd
    node = bench.node(LIMITED)
    tx_id = await bench.request()
    await node.turn()
    again_s = await wait_intervals(bench, node, 4)
    assert (bench.tx(tx_id).sub_state, again_s) == (SubState.STUCK, COMES_BACK_S)
    assert repr(answer) in (bench.tx(tx_id).error or "")


async def test_a_hanging_hook_costs_one_timeout_for_all_transactions(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(_tx: ManagedTx) -> StuckDecision:
        await asyncio.Event().wait()
        return "wait"

    monkeypatch.setattr(resubmit, "STUCK_HOOK_TIMEOUT_S", 0.05)
    bench.stuck_hook = hangs
    node = bench.node(LIMITED)
    tx_ids = await bench.requests(10)
    await node.turn()
    async with asyncio.timeout(60):
        again_s = await wait_intervals(bench, node, 4)
    assert again_s == COMES_BACK_S
    assert {bench.tx(tx_id).sub_state for tx_id in tx_ids} == {SubState.STUCK}
    bench.chain.mine(2)
    await node.turn(2)
    assert {bench.state(tx_id) for tx_id in tx_ids} == {State.CONFIRMED}


async def test_a_hook_that_cancels_itself_does_not_cancel_its_lane(bench: Bench) -> None:
    async def cancels(_tx: ManagedTx) -> StuckDecision:
        raise asyncio.CancelledError

    bench.stuck_hook = cancels
    node = bench.node(LIMITED)
    tx_id = await bench.request()
    await node.turn()
    await wait_intervals(bench, node, 4)
    assert bench.tx(tx_id).sub_state is SubState.STUCK


async def test_a_hook_that_ignores_its_cancellation_holds_no_lane_and_is_called_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, calls = asyncio.Event(), 0

    async def hangs(_tx: ManagedTx) -> StuckDecision:
        nonlocal calls
        calls += 1
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return "wait"

    monkeypatch.setattr(resubmit, "STUCK_HOOK_TIMEOUT_S", 0.05)
    bench.stuck_hook = hangs
    node = bench.node(LIMITED)
    tx_id = await bench.request()
    await node.turn()
    try:
        async with asyncio.timeout(60):
            await wait_intervals(bench, node, 4)
        assert (bench.tx(tx_id).sub_state, calls) == (SubState.STUCK, 1)
        assert node.observer.counts["stuck_hook_failed"] >= 2
        bench.chain.mine(2)
        await node.turn(2)
        assert bench.state(tx_id) is State.CONFIRMED
    finally:
        released.set()


async def test_a_hook_that_exits_ends_neither_its_lane_nor_its_node(bench: Bench) -> None:
    async def exits(_tx: ManagedTx) -> StuckDecision:
        raise SystemExit(3)

    bench.stuck_hook = exits
    node = bench.node(LIMITED)
    tx_id = await bench.request()
    await node.turn()
    await wait_intervals(bench, node, 4)
    assert "the stuck hook failed: SystemExit: 3" in (bench.tx(tx_id).error or "")
