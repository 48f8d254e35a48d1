"""A pool keeps, forgets or limits transactions: the lane notices, reports it and continues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.bench import GWEI, QUICK, Bench, BenchNode
from fencepost.application.pool_watch import (
    FIRST_POOL_CHECK_S,
    MAX_RESENDS,
    MIN_BLOCKS_PASSED,
    MIN_BLOCKS_WITH_ROOM,
    POOL_CHECK_INTERVAL_S,
)
from fencepost.domain.send_result import SendCategory
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import Call, Fees
from fencepost.domain.transaction_state import Intent

SLOW = replace(QUICK, resubmit_interval_s=3600.0, stale_receipt_timeout_s=3600.0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def blocks_pass(bench: Bench, node: BenchNode, count: int = MIN_BLOCKS_WITH_ROOM + 1) -> None:
    for _ in range(count):
        bench.chain.mine()
        await node.turn()
    bench.clock.advance(POOL_CHECK_INTERVAL_S)
    await node.turn()


async def test_the_lane_checks_the_pool_again(bench: Bench) -> None:
    node = bench.node(SLOW)
    await bench.request()
    assert await node.turn() == FIRST_POOL_CHECK_S


async def test_a_transaction_that_the_endpoint_dropped_is_sent_again_after_blocks_with_room(
    bench: Bench,
) -> None:
    node = bench.node(SLOW)
    tx_id = await bench.request()
    await node.turn()
    bench.chain.drop(bench.tx(tx_id).latest.signed.hash)
    for _ in range(MIN_BLOCKS_PASSED):
        bench.chain.mine()
        await node.turn()
    assert len(bench.chain.sent) == 1
    bench.clock.advance(FIRST_POOL_CHECK_S)
    await node.turn()
    assert len(bench.chain.sent) == 2


async def test_a_transaction_that_the_endpoint_still_has_is_not_sent_again_early(bench: Bench) -> None:
    node = bench.node(SLOW)
    tx_id = await bench.request()
    await node.turn()
    bench.chain.held_back.add(bench.tx(tx_id).latest.signed.hash)
    for _ in range(MIN_BLOCKS_WITH_ROOM + 1):
        bench.chain.mine()
        bench.clock.advance(1.0)
        await node.turn()
    assert len(bench.chain.sent) == 1
    assert bench.tx(tx_id).sub_state is None


async def test_a_forgotten_transaction_is_sent_again_long_before_the_interval(bench: Bench) -> None:
    node = bench.node(SLOW)
    tx_ids = await bench.requests(3)
    await node.turn()
    for signed in list(bench.chain.sent):
        bench.chain.drop(signed.hash)
    bench.clock.advance(POOL_CHECK_INTERVAL_S)
    await node.turn()
    assert bench.chain.pool == {bench.tx(each).latest.signed.hash for each in tx_ids}
    assert node.observer.counts["forgotten_by_pool"] == 1
    bench.chain.mine(2)
    await node.turn(2)
    assert {bench.state(each) for each in tx_ids} == {State.CONFIRMED}


async def test_an_endpoint_that_always_forgets_is_not_flooded(bench: Bench) -> None:
    node = bench.node(SLOW)
    tx_id = await bench.request()
    await node.turn()
    for _ in range(100):
        for signed in bench.chain.pool:
            bench.chain.drop(signed)
        bench.clock.advance(POOL_CHECK_INTERVAL_S)
        await node.turn()
    assert 2 <= bench.tx(tx_id).submit_count <= MAX_RESENDS + 3


async def test_a_transaction_withheld_by_the_pool_is_reported_and_sent_again(bench: Bench) -> None:
    node = bench.node(SLOW)
    tx_id = await bench.request()
    await node.turn()
    bench.chain.held_back.add(bench.tx(tx_id).latest.signed.hash)
    await blocks_pass(bench, node)
    tx = bench.tx(tx_id)
    assert tx.sub_state is SubState.PENDING_IN_POOL
    assert "pending in its pool" in (tx.error or "")
    assert len(tx.attempts) == 1
    assert tx.submit_count == 2
    assert node.observer.counts["pending_in_pool"] == 1
    for _ in range(3):
        await blocks_pass(bench, node)
    assert bench.events(tx_id).count("PendingInPool") == 1
    bench.chain.held_back.clear()
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(tx_id), bench.tx(tx_id).error) == (State.CONFIRMED, None)


async def test_full_blocks_are_no_evidence(bench: Bench) -> None:
    node = bench.node(SLOW)
    tx_id = await bench.request()
    await node.turn()
    bench.chain.held_back.add(bench.tx(tx_id).latest.signed.hash)
    bench.chain.blocks_are_full = True
    await blocks_pass(bench, node)
    assert bench.tx(tx_id).sub_state is None


async def test_a_withheld_transaction_is_replaced_where_bumps_are_allowed(bench: Bench) -> None:
    node = bench.node(replace(SLOW, bump_enabled=True))
    low, high = await bench.requests(2)
    await node.turn()
    bench.chain.held_back.add(bench.tx(low).latest.signed.hash)
    await blocks_pass(bench, node)
    assert [len(bench.tx(each).attempts) for each in (low, high)] == [2, 2]
    bench.chain.mine(2)
    await node.turn(2)
    assert [bench.state(each) for each in (low, high)] == [State.CONFIRMED] * 2


async def test_a_pooled_price_below_the_base_fee_is_reported_as_below_market(bench: Bench) -> None:
    node = bench.node(SLOW)
    fees = Fees(2 * GWEI, GWEI)
    tx_id = await bench.request(Intent(Call(to=bench.signer.address), gas=21_000, fees=fees))
    await node.turn()
    bench.chain.base_fee_wei = 3 * GWEI
    await blocks_pass(bench, node)
    assert bench.tx(tx_id).sub_state is SubState.BELOW_MARKET
    assert str(3 * GWEI) in (bench.tx(tx_id).error or "")
    bench.chain.base_fee_wei = GWEI
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_delegated_account_sends_the_next_transaction_after_the_previous_is_mined(
    bench: Bench,
) -> None:
    bench.chain.in_flight_max = 1
    node = bench.node(replace(SLOW, max_in_flight=16))
    tx_ids = await bench.requests(16)
    await node.turn()
    assert bench.tx(tx_ids[1]).latest.last_result is SendCategory.DELEGATED_LIMIT
    for _ in range(17):  # without time for a back-off to end
        bench.chain.mine()
        await node.turn(2)
    bench.chain.mine()
    await node.turn()
    assert {bench.state(each) for each in tx_ids} == {State.CONFIRMED}
