"""What a lane does about each answer of an endpoint to a send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from fakes.bench import CHAIN_ID, GWEI, QUICK, Bench, BenchNode, decode
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import SignedTx
from fencepost.domain.transaction_state import Purpose
from fencepost.testing import LostResponse


@pytest.fixture
def bench() -> Bench:
    return Bench()


def said(category: SendCategory, message: str = "the node said so") -> SendResult:
    return SendResult(category, message)


async def until_ended(bench: Bench, node: BenchNode, *, turns: int = 12) -> None:
    for _ in range(turns):
        bench.chain.mine()
        bench.clock.advance(31)
        await node.turn()


async def test_an_accepted_transaction_is_submitted(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.state, tx.sub_state, tx.submit_count) == (State.SUBMITTED, None, 1)
    assert (tx.latest.sent_count, tx.latest.last_result) == (1, SendCategory.ACCEPTED)
    assert tx.resubmit_due_s == bench.clock.now_s() + QUICK.resubmit_interval_s
    assert bench.events(tx_id) == ["Receive", "AssignNonce", "SendResult"]


async def test_bytes_are_stored_before_they_are_sent(bench: Bench) -> None:
    node = bench.node()
    await bench.requests(3)
    stored_at_send: list[bool] = []
    taken = bench.chain.send

    async def looking(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        stored = {a.signed.hash for tx in bench.database.txs.values() for a in tx.attempts}
        stored_at_send.extend(tx.hash in stored for tx in txs)
        return await taken(txs)

    bench.chain.send = looking  # type: ignore[method-assign]  # a look over the shoulder
    await node.turn()
    assert stored_at_send == [True] * 3


async def test_an_already_known_transaction_is_submitted(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(LostResponse.AFTER)
    await node.turn()
    assert bench.tx(tx_id).latest.last_result is SendCategory.UNKNOWN
    assert bench.state(tx_id) is State.SUBMITTED  # it may have been sent
    bench.clock.advance(1)
    await node.turn()
    assert bench.tx(tx_id).latest.last_result is SendCategory.ALREADY_KNOWN
    await until_ended(bench, node, turns=3)
    assert bench.state(tx_id) is State.CONFIRMED
    assert len({signed.hash for signed in bench.chain.sent}) == 1


async def test_a_lost_and_unsent_transaction_is_sent_again(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(LostResponse.BEFORE, LostResponse.BEFORE)
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    await until_ended(bench, node, turns=6)
    assert bench.state(tx_id) is State.CONFIRMED
    assert bench.sent_nonces() == [0, 0, 0]
    assert len({signed.hash for signed in bench.chain.sent}) == 1


@pytest.mark.parametrize("category", [SendCategory.ALREADY_MINED, SendCategory.NONCE_TOO_LOW])
async def test_nonce_too_low_for_a_mined_transaction_reads_its_receipt(
    bench: Bench, category: SendCategory
) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(LostResponse.AFTER, said(category))
    await node.turn()
    bench.chain.mine(2, only=bench.chain.pool)
    bench.clock.advance(1)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert bench.tx(tx_id).nonce == 0
    assert len(bench.tx(tx_id).attempts) == 1


async def test_nonce_too_low_by_a_foreign_transaction_protects_and_takes_no_other_nonce(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    bench.chain.drop(bench.chain.sent[0].hash)
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine()
    for _ in range(4):
        bench.clock.advance(61)
        await node.turn()
    assert node.lane.is_protected
    assert set(bench.sent_nonces()) == {0}


async def test_nonce_too_high_sends_the_lower_nonces(bench: Bench) -> None:
    node = bench.node(replace(QUICK, max_in_flight=2))
    low, high = await bench.requests(2)
    bench.chain.script_next_sends(None, *[said(SendCategory.NONCE_TOO_HIGH)] * 2)
    await node.turn()
    bench.chain.drop(bench.tx(low).latest.signed.hash)  # evicted, so the next one has a gap below
    for _ in range(3):
        again_s = await node.turn()
        assert again_s is not None
        assert again_s < 2
        bench.clock.advance(again_s)
    await node.turn()
    assert bench.sent_nonces()[:3] == [0, 1, 1]
    assert bench.sent_nonces().count(0) == 2
    assert bench.chain.pool == {bench.tx(each).latest.signed.hash for each in (low, high)}
    assert (bench.state(low), bench.state(high)) == (State.SUBMITTED, State.SUBMITTED)


async def test_a_rejected_replacement_with_one_attempt_is_foreign_and_protects(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(said(SendCategory.REPLACEMENT_UNDERPRICED))
    await node.turn()
    assert node.lane.is_protected
    assert bench.state(tx_id) is State.ALLOCATED
    assert len(bench.chain.sent) == 1


async def test_a_rejected_replacement_with_two_attempts_outbids_our_own(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    bench.chain.script_next_sends(said(SendCategory.REPLACEMENT_UNDERPRICED))
    await bench.ask("bump", tx_id)
    await node.turn()
    assert not node.lane.is_protected
    attempts = bench.tx(tx_id).attempts
    assert len(attempts) == 3
    for older, newer in pairwise(attempts):
        assert newer.fees.fee_cap_wei * 10 >= older.fees.fee_cap_wei * 11
        assert newer.fees.tip_wei * 10 >= older.fees.tip_wei * 11
    assert bench.chain.pool == {attempts[2].signed.hash}


async def test_an_underpriced_transaction_gets_a_new_quote_at_the_same_nonce(bench: Bench) -> None:
    node = bench.node(replace(QUICK, bump_enabled=True))
    tx_id = await bench.request()
    await node.node.heads_once(CHAIN_ID)
    bench.chain.script_next_sends(said(SendCategory.UNDERPRICED))
    await node.turn()
    tx = bench.tx(tx_id)
    assert [attempt.purpose for attempt in tx.attempts] == [Purpose.INTENT] * 2
    assert bench.sent_nonces() == [0, 0]
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_underpriced_at_the_cap_is_reported_once_as_below_market(bench: Bench) -> None:
    node = bench.node(replace(QUICK, fee_cap_wei=GWEI // 2, bump_enabled=True))
    tx_id = await bench.request()
    await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.state, tx.sub_state) == (State.ALLOCATED, SubState.BELOW_MARKET)
    assert "fees.cap" in (tx.error or "")
    for _ in range(10):
        bench.clock.advance(31)
        await node.turn()
    assert bench.events(tx_id).count("BelowMarket") == 1
    assert all(attempt.fees.fee_cap_wei <= GWEI // 2 for attempt in bench.tx(tx_id).attempts)
    bench.chain.base_fee_wei = 1
    bench.clock.advance(31)
    await node.turn()
    await until_ended(bench, node, turns=3)
    assert bench.state(tx_id) is State.CONFIRMED


@pytest.mark.parametrize(
    "category", [SendCategory.POOL_FULL, SendCategory.TYPE_CONFLICT, SendCategory.NODE_NOT_READY]
)
async def test_temporary_rejections_repeat_the_same_bytes_with_back_off(
    bench: Bench, category: SendCategory
) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(*[said(category)] * 4)
    pauses: list[float] = []
    for _ in range(4):
        again_s = await node.turn()
        assert again_s is not None
        pauses.append(again_s)
        bench.clock.advance(again_s)
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] <= 30
    await until_ended(bench, node, turns=4)
    assert bench.state(tx_id) is State.CONFIRMED
    assert len({signed.hash for signed in bench.chain.sent}) == 1


async def test_a_delegated_account_has_one_transaction_in_flight(bench: Bench) -> None:
    node = bench.node()
    await bench.requests(4)
    bench.chain.script_next_sends(None, *[said(SendCategory.DELEGATED_LIMIT)] * 3)
    await node.turn()
    await bench.requests(4)
    await node.turn()
    assert max(bench.sent_nonces()) == 3
    await until_ended(bench, node, turns=20)
    assert {tx.state for tx in bench.database.txs.values()} == {State.CONFIRMED}


async def test_a_nonce_is_held_until_the_account_can_pay(bench: Bench) -> None:
    node = bench.node()
    tx_id, second = await bench.requests(2)
    bench.chain.script_next_sends(*[said(SendCategory.INSUFFICIENT_FUNDS)] * 2)
    await node.turn()
    bench.chain.balances[bench.signer.address] = GWEI
    tx = bench.tx(tx_id)
    assert (tx.state, tx.sub_state, tx.nonce) == (State.ALLOCATED, SubState.UNFUNDED, 0)
    assert tx.error
    third = await bench.request()
    await node.turn()
    assert bench.state(third) is State.QUEUED  # no new nonce is allocated meanwhile
    bench.chain.balances[bench.signer.address] = 10**21
    bench.clock.advance(5)
    await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.state, tx.sub_state) == (State.SUBMITTED, None)
    await until_ended(bench, node, turns=3)
    assert [bench.state(each) for each in (tx_id, second, third)] == [State.CONFIRMED] * 3


async def test_a_fee_cap_of_the_endpoint_counts_as_maybe_sent(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(said(SendCategory.FEE_CAP_EXCEEDED))
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    await until_ended(bench, node, turns=4)
    assert bench.state(tx_id) is State.CONFIRMED


@pytest.mark.parametrize("category", [SendCategory.FATAL, SendCategory.TERMINALLY_STUCK])
async def test_a_permanent_rejection_is_filled_and_fails_at_depth(
    bench: Bench, category: SendCategory
) -> None:
    node = bench.node()
    tx_id = await bench.request()
    after = await bench.request()
    bench.chain.script_next_sends(said(category, "gas limit reached"))
    await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.state, tx.sub_state, tx.ending) == (State.SUBMITTED, SubState.REFUSED, State.FAILED)
    filler = decode(tx.latest.signed.raw)[1]
    assert tx.latest.purpose is Purpose.FILLER
    assert (filler.nonce, filler.call.to, filler.call.value_wei) == (0, bench.signer.address, 0)
    bench.chain.mine()
    await node.turn()
    assert bench.state(tx_id) is State.TRACKING  # not failed before its nonce is consumed at depth
    bench.chain.mine()
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).error) == (State.FAILED, "gas limit reached")
    assert (bench.state(after), bench.tx(after).nonce) == (State.CONFIRMED, 1)


async def test_a_rejected_filler_is_sent_again_and_gets_no_filler(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(said(SendCategory.FATAL), said(SendCategory.FATAL))
    await node.turn()
    assert [a.purpose for a in bench.tx(tx_id).attempts] == [Purpose.INTENT, Purpose.FILLER]
    await until_ended(bench, node, turns=4)
    assert bench.state(tx_id) is State.FAILED


async def test_a_filler_above_the_cap_leaves_the_transaction_stuck_until_the_cap_allows_it(
    bench: Bench,
) -> None:
    node = bench.node(replace(QUICK, fee_cap_wei=3 * GWEI))
    tx_id = await bench.request()
    bench.chain.script_next_sends(*[said(SendCategory.FATAL)] * 20)
    for _ in range(12):
        await node.turn()
        bench.clock.advance(31)
    tx = bench.tx(tx_id)
    assert (tx.sub_state, tx.ending) == (SubState.STUCK, State.FAILED)
    assert bench.events(tx_id).count("Stuck") == 1
    assert bench.events(tx_id).count("GiveUp") == 1


async def test_an_answer_with_another_hash_counts_as_maybe_sent(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(said(SendCategory.UNKNOWN, "the node answered 0x77…"))
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    await until_ended(bench, node, turns=4)
    assert bench.state(tx_id) is State.CONFIRMED
    assert bench.tx(tx_id).hash == bench.tx(tx_id).attempts[0].signed.hash


async def test_a_long_price_auction_resumes_soon(bench: Bench) -> None:
    """More rejections than one step answers: the remaining bytes must not wait for the stale time-out."""
    node = bench.node(replace(QUICK, bump_enabled=True))
    tx_id = await bench.request()
    bench.chain.script_next_sends(*[said(SendCategory.UNDERPRICED)] * 9)
    again_s = await node.turn()
    assert again_s is not None
    assert again_s <= 1
    bench.clock.advance(again_s)
    await node.turn()
    assert bench.tx(tx_id).latest.last_result is SendCategory.ACCEPTED
