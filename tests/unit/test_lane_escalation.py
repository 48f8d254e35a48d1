"""Too long without a receipt: when the bytes go out again, when the price rises, and what the stuck hook decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.bench import GWEI, QUICK, STRICT, Bench
from fencepost.application.lane import Untrusted
from fencepost.application.step import step
from fencepost.domain.managed import Purpose
from fencepost.domain.send import SendCategory
from fencepost.domain.states import State, SubState


@pytest.fixture
def bench() -> Bench:
    return Bench()


INTERVAL_S = QUICK.resubmit_interval_s


async def test_the_same_bytes_go_out_again_after_the_interval_and_not_before(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    again_s = await node.turn()
    assert again_s == INTERVAL_S
    bench.clock.advance(INTERVAL_S - 1)
    await node.turn()
    assert len(bench.chain.sent) == 1
    bench.clock.advance(1)
    await node.turn()
    assert [signed.hash for signed in bench.chain.sent] == [bench.tx(tx_id).latest.signed.hash] * 2
    assert bench.tx(tx_id).submit_count == 2
    await node.turn(3)
    assert len(bench.chain.sent) == 2


async def test_a_send_is_claimed_before_it_happens(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    bench.clock.advance(INTERVAL_S)
    await node.turn()
    assert bench.events(tx_id)[-2:] == ["Resubmit", "SendResult"]
    assert bench.tx(tx_id).resubmit_due_s == bench.clock.now_s() + INTERVAL_S


async def test_nothing_goes_out_again_when_that_is_switched_off(bench: Bench) -> None:
    node = bench.node(replace(QUICK, resubmit_enabled=False))
    await bench.request()
    await node.turn()
    for _ in range(5):
        bench.clock.advance(INTERVAL_S * 10)
        await node.turn()
    assert len(bench.chain.sent) == 1


async def test_no_new_work_begins_on_a_lease_that_was_not_renewed(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    bench.clock.advance(INTERVAL_S)
    with pytest.raises(Untrusted):
        await step(node.lane)
    assert len(bench.chain.sent) == 1


async def test_without_a_receipt_for_long_it_is_stale_until_it_is_mined(bench: Bench) -> None:
    node = bench.node(replace(QUICK, resubmit_enabled=False))
    tx_id = await bench.request()
    await node.turn()
    bench.clock.advance(QUICK.stale_receipt_timeout_s)
    await node.turn(2)
    assert bench.tx(tx_id).sub_state is SubState.STALE
    assert bench.events(tx_id).count("Stale") == 1
    bench.chain.mine()
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).sub_state) == (State.TRACKING, None)


# ---- the limit


async def test_at_the_limit_it_is_marked_once_and_nothing_more_is_sent(bench: Bench) -> None:
    node = bench.node(replace(QUICK, resubmit_max_attempts=2))
    tx_id = await bench.request()
    await node.turn()
    for _ in range(6):
        bench.clock.advance(INTERVAL_S)
        await node.turn()
    assert len(bench.chain.sent) == 3
    assert bench.tx(tx_id).sub_state is SubState.STUCK
    assert bench.events(tx_id).count("Stuck") == 1
    bench.chain.mine(2)
    await node.turn(2)
    tx = bench.tx(tx_id)
    assert (tx.state, tx.error) == (State.CONFIRMED, None)


@pytest.mark.parametrize(("decision", "sends"), [("wait", 3), ("resubmit", 6)])
async def test_the_hook_may_wait_or_send_on(bench: Bench, decision: str, sends: int) -> None:
    bench.stuck = "wait" if decision == "wait" else "resubmit"
    node = bench.node(replace(QUICK, resubmit_max_attempts=2))
    tx_id = await bench.request()
    await node.turn()
    for _ in range(5):
        bench.clock.advance(INTERVAL_S)
        again_s = await node.turn()
        assert again_s is not None
        assert again_s > 0
    assert len(bench.chain.sent) == sends
    assert bench.tx(tx_id).sub_state is not SubState.STUCK


async def test_the_hook_may_give_up_and_a_filler_takes_the_nonce(bench: Bench) -> None:
    bench.stuck = "filler"
    node = bench.node(replace(QUICK, resubmit_max_attempts=1))
    tx_id = await bench.request()
    await node.turn()
    for _ in range(2):
        bench.clock.advance(INTERVAL_S)
        await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.ending, tx.latest.purpose) == (State.FAILED, Purpose.FILLER)
    assert bench.chain.pool == {tx.latest.signed.hash}
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.FAILED
    assert "no receipt after" in (bench.tx(tx_id).error or "")


async def test_a_node_that_refuses_does_not_use_up_the_limit(bench: Bench) -> None:
    node = bench.node(replace(QUICK, resubmit_max_attempts=1))
    tx_id = await bench.request()
    bench.chain.balances[bench.signer.address] = GWEI
    for _ in range(5):
        await node.turn()
        bench.clock.advance(6)
    assert bench.tx(tx_id).sub_state is SubState.UNFUNDED
    bench.chain.balances[bench.signer.address] = 10**21
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED


# ---- the price


async def test_the_lowest_nonce_alone_gets_a_better_price_after_its_resubmits(bench: Bench) -> None:
    policy = replace(QUICK, bump_enabled=True, bump_after_resubmits=2, bump_percent=25)
    node = bench.node(policy)
    low, high = await bench.requests(2)
    await node.turn()
    for _ in range(2):
        bench.clock.advance(INTERVAL_S)
        await node.turn()
    assert [len(bench.tx(each).attempts) for each in (low, high)] == [1, 1]
    bench.clock.advance(INTERVAL_S)
    await node.turn()
    first, second = bench.tx(low).attempts
    assert second.fees.fee_cap_wei >= first.fees.fee_cap_wei * 5 // 4
    assert second.fees.tip_wei >= first.fees.tip_wei * 5 // 4
    assert (second.sent_count, second.last_result) == (1, SendCategory.ACCEPTED)
    assert len(bench.tx(high).attempts) == 1
    bench.chain.mine(2)
    await node.turn(2)
    assert [bench.state(each) for each in (low, high)] == [State.CONFIRMED] * 2
    assert bench.tx(low).hash == second.signed.hash


async def test_the_old_attempt_may_win_after_a_bump(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    old = bench.tx(tx_id).latest
    bench.chain.mine(only=[old.signed.hash])
    await bench.ask("bump", tx_id)
    node.lane.seen.clear()
    await node.turn()
    bench.chain.mine()
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert bench.tx(tx_id).hash == old.signed.hash


async def test_the_price_never_passes_the_cap(bench: Bench) -> None:
    cap_wei = 4 * GWEI
    policy = replace(QUICK, bump_enabled=True, bump_after_resubmits=0, bump_percent=50, fee_cap_wei=cap_wei)
    node = bench.node(policy)
    tx_id = await bench.request()
    await node.turn()
    for _ in range(12):
        bench.clock.advance(INTERVAL_S)
        again_s = await node.turn()
        assert again_s is not None
    tx = bench.tx(tx_id)
    prices = [attempt.fees.fee_cap_wei for attempt in tx.attempts]
    assert prices == sorted(set(prices))
    assert prices[-1] <= cap_wei
    assert tx.sub_state is SubState.STUCK
    assert bench.events(tx_id).count("Stuck") == 1
    assert len(bench.chain.sent) > len(prices)  # at the cap the same bytes go on
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_the_journal_of_a_stuck_transaction_is_bounded(bench: Bench) -> None:
    node = bench.node(replace(STRICT, history_max_entries=20))
    tx_id = await bench.request()
    await node.turn()
    for _ in range(60):
        bench.clock.advance(INTERVAL_S)
        await node.turn()
    assert bench.tx(tx_id).submit_count == 61
    assert len(bench.events(tx_id)) <= 22
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.events(tx_id)[-1] == "Finish"
