"""Too long without a receipt: when the bytes are sent again, when the price rises, and what the stuck hook decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.bench import GWEI, QUICK, STRICT, Bench, transfer
from fakes.rounds import run_alone
from fencepost.application.lane import LeaseUntrusted
from fencepost.application.pool_watch import FIRST_POOL_CHECK_S
from fencepost.domain.send_result import SendCategory
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import Fees
from fencepost.domain.transaction_state import Intent, Purpose


@pytest.fixture
def bench() -> Bench:
    return Bench()


INTERVAL_S = QUICK.resubmit_interval_s
LEASE_OVER_S = 60.0


async def test_the_same_bytes_are_sent_again_after_the_interval_and_not_before(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    again_s = await node.turn()
    assert again_s == FIRST_POOL_CHECK_S < INTERVAL_S  # to check whether its endpoint still has it
    bench.clock.advance(INTERVAL_S - 1)
    await node.turn()
    assert len(bench.chain.sent) == 1
    bench.clock.advance(1)
    await node.turn()
    assert [signed.hash for signed in bench.chain.sent] == [bench.tx(tx_id).latest.signed.hash] * 2
    assert bench.tx(tx_id).submit_count == 2
    await node.turn(3)
    assert len(bench.chain.sent) == 2


async def test_a_send_is_recorded_before_it_happens(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    bench.clock.advance(INTERVAL_S)
    await node.turn()
    assert bench.events(tx_id)[-2:] == ["Resubmit", "SendResult"]
    assert bench.tx(tx_id).resubmit_due_s == bench.clock.now_s() + INTERVAL_S


async def test_nothing_is_sent_again_when_resubmission_is_off(bench: Bench) -> None:
    node = bench.node(replace(QUICK, resubmit_enabled=False))
    await bench.request()
    await node.turn()
    for _ in range(5):
        bench.clock.advance(INTERVAL_S * 10)
        await node.turn()
    assert len(bench.chain.sent) == 1


async def test_no_new_work_starts_on_a_lease_that_was_not_renewed(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    bench.clock.advance(INTERVAL_S)
    with pytest.raises(LeaseUntrusted):
        await run_alone(node.lane)
    assert len(bench.chain.sent) == 1


async def test_a_transaction_without_a_receipt_is_stale_until_it_is_mined(bench: Bench) -> None:
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


async def test_a_transaction_at_the_limit_is_marked_once_and_not_sent_again(bench: Bench) -> None:
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
async def test_the_hook_may_decide_to_wait_or_to_send(bench: Bench, decision: str, sends: int) -> None:
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


async def test_the_hook_may_decide_to_fill_the_nonce(bench: Bench) -> None:
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


async def test_a_rejecting_endpoint_does_not_use_up_the_limit(bench: Bench) -> None:
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


async def test_the_lowest_nonce_is_bumped_and_higher_ones_get_the_same_price(bench: Bench) -> None:
    policy = replace(QUICK, bump_enabled=True, bump_after_resubmits=2, bump_percent=25)
    node = bench.node(policy)
    low, *behind = await bench.requests(4)
    await node.turn()
    for _ in range(2):
        bench.clock.advance(INTERVAL_S)
        await node.turn()
    assert [len(bench.tx(each).attempts) for each in (low, *behind)] == [1] * 4
    bench.clock.advance(INTERVAL_S)
    await node.turn()
    first, second = bench.tx(low).attempts
    assert second.fees.fee_cap_wei >= first.fees.fee_cap_wei * 5 // 4
    assert second.fees.tip_wei >= first.fees.tip_wei * 5 // 4
    assert (second.sent_count, second.last_result) == (1, SendCategory.ACCEPTED)
    for each in behind:
        assert [attempt.fees for attempt in bench.tx(each).attempts] == [first.fees, second.fees]
    assert bench.chain.pool == {bench.tx(each).latest.signed.hash for each in (low, *behind)}
    bench.chain.mine(2)
    await node.turn(2)
    assert {bench.state(each) for each in (low, *behind)} == {State.CONFIRMED}


async def test_a_transaction_behind_keeps_to_the_maximum_of_its_caller(bench: Bench) -> None:
    node = bench.node(replace(QUICK, bump_enabled=True, bump_after_resubmits=0))
    low = await bench.request()
    limited = await bench.request(Intent(transfer().call, gas=21_000, fees=Fees(3 * GWEI, GWEI)))
    free = await bench.request()
    await node.turn()
    bench.chain.base_fee_wei = 5 * GWEI
    bench.clock.advance(INTERVAL_S)
    await node.turn()
    market = (await bench.chain.quote_fees()).normal
    assert bench.tx(limited).latest.fees == Fees(3 * GWEI, GWEI)
    for each in (low, free):
        assert bench.tx(each).latest.fees.fee_cap_wei >= market.fee_cap_wei


async def test_the_old_attempt_may_be_mined_after_a_bump(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    old = bench.tx(tx_id).latest
    bench.chain.mine(only=[old.signed.hash])
    await bench.ask("bump", tx_id)
    node.lane.blocks.receipt_ready_hashes.clear()
    await node.turn()
    bench.chain.mine()
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert bench.tx(tx_id).hash == old.signed.hash


async def test_the_price_never_exceeds_the_cap(bench: Bench) -> None:
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
    assert len(bench.chain.sent) > len(prices)  # at the cap the same bytes are sent again
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
    tx = bench.tx(tx_id)
    assert (tx.submit_count, tx.latest.sent_count) == (61, 61)
    assert len(bench.events(tx_id)) <= 22
    assert (
        tx.journal_count == 3 + 61 + 60
    )  # request, nonce, stale, answers, resubmits: including those not written
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.events(tx_id)[-1] == "Finish"


async def test_every_send_counts_including_new_bytes(bench: Bench) -> None:
    policy = replace(STRICT, bump_enabled=True, bump_after_resubmits=1)
    node = bench.node(policy)
    tx_id = await bench.request()
    await node.turn()
    for _ in range(5):
        bench.clock.advance(INTERVAL_S)
        await node.turn()
    tx = bench.tx(tx_id)
    assert len(tx.attempts) > 1
    assert tx.submit_count == len(bench.chain.sent) == sum(attempt.sent_count for attempt in tx.attempts)


async def test_after_many_resubmissions_it_is_stuck_and_still_sent(bench: Bench) -> None:
    node = bench.node(replace(QUICK, stuck_after_resubmits=2))
    tx_id = await bench.request()
    await node.turn()
    for sends in (2, 3):
        bench.clock.advance(INTERVAL_S)
        await node.turn()
        assert bench.tx(tx_id).submit_count == sends
    before = bench.tx(tx_id).sub_state
    bench.clock.advance(INTERVAL_S)
    await node.turn()
    assert before is not SubState.STUCK
    assert bench.tx(tx_id).sub_state is SubState.STUCK
    assert "no receipt after 3 sends" in (bench.tx(tx_id).error or "")
    sent = len(bench.chain.sent)
    bench.clock.advance(INTERVAL_S)
    await node.turn()
    assert len(bench.chain.sent) == sent + 1
    assert bench.events(tx_id).count("Stuck") == 1
    bench.chain.mine()
    await node.turn()
    assert bench.tx(tx_id).sub_state is None


@pytest.mark.parametrize("commits", [0, 1])
async def test_a_crash_around_the_mark_neither_loses_nor_doubles_it(bench: Bench, commits: int) -> None:
    node = bench.node(replace(QUICK, stuck_after_resubmits=1))
    tx_id = await bench.request()
    await node.turn()
    for _ in range(1 + commits):
        bench.clock.advance(INTERVAL_S)
        await node.turn()
    bench.clock.advance(LEASE_OVER_S)
    successor = bench.node(replace(QUICK, stuck_after_resubmits=1))
    for _ in range(2):
        bench.clock.advance(INTERVAL_S)
        await successor.turn()
    assert bench.tx(tx_id).sub_state is SubState.STUCK
    assert bench.events(tx_id).count("Stuck") == 1
