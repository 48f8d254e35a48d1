"""Which request gets which nonce, how many are in flight, and when a signer is protected instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from fakes.bench import CHAIN_ID, GWEI, QUICK, REVERTER, STRICT, Bench, BenchNode, decode, transfer
from fakes.rounds import run_alone
from fencepost.application.lane import LaneSettings
from fencepost.application.nonce_sync import ADOPT_AFTER_S
from fencepost.domain.ids import TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.transaction import Call, Fees, TxType
from fencepost.domain.transaction_state import Intent, Receipt
from fencepost.errors import RpcUnavailable, SignerProtected


@pytest.fixture
def bench() -> Bench:
    return Bench()


def use_before(bench: Bench, times: int) -> None:
    """Use the key outside Fencepost before the first request."""
    for _ in range(times):
        bench.chain.add_foreign_tx(bench.signer.address)
        bench.chain.mine()


# ---- transactions in flight


async def test_strict_mode_has_one_transaction_in_flight_until_its_depth(bench: Bench) -> None:
    node = bench.node(STRICT)
    first, second = await bench.requests(2)
    await node.turn(2)
    assert (bench.state(first), bench.state(second)) == (State.SUBMITTED, State.QUEUED)
    bench.chain.mine()
    await node.turn(2)
    assert (bench.state(first), bench.state(second)) == (State.TRACKING, State.QUEUED)
    bench.chain.mine()
    await node.turn()
    assert (bench.state(first), bench.state(second)) == (State.CONFIRMED, State.SUBMITTED)
    assert bench.sent_nonces() == [0, 1]


async def test_pipelined_mode_fills_its_window_and_refills_mined_slots(bench: Bench) -> None:
    node = bench.node(replace(QUICK, max_in_flight=4))
    txs = await bench.requests(10)
    await node.turn()
    assert bench.sent_nonces() == [0, 1, 2, 3]
    bench.chain.mine()
    await node.turn()
    assert bench.sent_nonces() == list(range(8))
    assert [bench.tx(tx_id).nonce for tx_id in txs] == [*range(8), None, None]


async def test_nonces_follow_the_order_of_arrival(bench: Bench) -> None:
    node = bench.node()
    txs = await bench.requests(40)
    for _ in range(5):
        await node.turn()
        bench.chain.mine()
    assert [bench.tx(tx_id).nonce for tx_id in txs] == list(range(40))
    assert bench.database.cursors[bench.signer].next_nonce == 40


async def test_the_signed_transaction_matches_the_request(bench: Bench) -> None:
    node = bench.node()
    asked = Intent(
        call=Call(to=REVERTER, value_wei=7, data=b"\x01\x02"),
        gas=50_000,
        fees=Fees(fee_cap_wei=5 * GWEI, tip_wei=GWEI),
        type=TxType.LEGACY,
    )
    await bench.request(asked)
    await node.turn()
    sender, said, _ = decode(bench.chain.sent[0].raw)
    assert sender == bench.signer.address
    assert (said.call, said.gas, said.type) == (asked.call, 50_000, TxType.LEGACY)
    assert said.fees == Fees(fee_cap_wei=5 * GWEI, tip_wei=5 * GWEI)


async def test_gas_is_estimated_with_a_margin(bench: Bench) -> None:
    node = bench.node(replace(QUICK, gas_factor=1.5))
    await bench.request()
    await node.turn()
    assert decode(bench.chain.sent[0].raw)[1].gas == 31_500


# ---- before a nonce is allocated


async def test_a_reverting_request_is_rejected_and_the_next_continues(bench: Bench) -> None:
    bench.chain.reverting_calls[REVERTER] = "not today"
    node = bench.node(STRICT)
    bad, good = await bench.request(transfer(to=REVERTER)), await bench.request()
    await node.turn()
    assert (bench.state(bad), bench.tx(bad).error) == (State.FAILED, "would revert: not today")
    assert bench.tx(bad).nonce is None
    assert (bench.state(good), bench.tx(good).nonce) == (State.SUBMITTED, 0)


async def test_a_reverting_request_is_sent_if_the_policy_allows_it(bench: Bench) -> None:
    bench.chain.reverting_calls[REVERTER] = "not today"
    node = bench.node(replace(QUICK, refuse_reverting=False))
    tx_id = await bench.request(Intent(call=Call(to=REVERTER), gas=60_000))
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED


async def test_a_request_above_the_fee_cap_is_rejected(bench: Bench) -> None:
    node = bench.node(replace(QUICK, fee_cap_wei=10 * GWEI))
    tx_id = await bench.request(Intent(call=Call(to=REVERTER), fees=Fees(11 * GWEI, GWEI)))
    await node.turn()
    assert bench.state(tx_id) is State.FAILED
    assert "above the cap" in (bench.tx(tx_id).error or "")
    assert bench.database.cursors[bench.signer].next_nonce == 0


async def test_the_queue_waits_in_order_while_its_first_request_cannot_be_paid(bench: Bench) -> None:
    bench.chain.balances[bench.signer.address] = 5
    node = bench.node()
    dear, cheap = await bench.request(transfer(value_wei=10)), await bench.request(transfer(value_wei=1))
    again_s = await node.turn()
    assert (bench.state(dear), bench.state(cheap)) == (State.QUEUED, State.QUEUED)
    assert again_s is not None
    assert 0 < again_s <= 5
    bench.chain.balances[bench.signer.address] = 10**21
    bench.clock.advance(again_s)
    await node.turn()
    assert (bench.tx(dear).nonce, bench.tx(cheap).nonce) == (0, 1)


async def test_an_expired_request_is_rejected(bench: Bench) -> None:
    node = bench.node(STRICT)
    await bench.request()
    late = await bench.request(valid_for_s=5)
    await node.turn()
    bench.clock.advance(6)
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(late) is State.FAILED
    assert "validUntil" in (bench.tx(late).error or "")
    assert bench.tx(late).nonce is None


async def test_a_request_allocated_in_time_does_not_expire_later(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request(valid_for_s=5)
    await node.turn()
    bench.clock.advance(60)
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_silent_endpoint_during_an_estimate_is_one_failure_and_loses_nothing(bench: Bench) -> None:
    node = bench.node(replace(QUICK, fixed_fees=Fees(3 * GWEI, GWEI), chain_query="off"))
    await bench.requests(3)
    await node.node.heads_once(CHAIN_ID)
    bench.chain.offline = True
    with pytest.raises(RpcUnavailable):
        await step_in_the_dark(bench, node)
    bench.chain.offline = False
    await node.turn()
    assert bench.sent_nonces() == [0, 1, 2]


async def step_in_the_dark(bench: Bench, node: BenchNode) -> None:
    """Step while the endpoint does not answer; the view of the chain is from before."""
    node.node.hint(bench.signer)
    await node.node.acquire_once()
    await run_alone(node.lane)


# ---- where the sequence begins


@pytest.mark.parametrize("used", [0, 3])
async def test_a_strict_signer_adopts_the_chain_nonce_on_an_operator_decision(
    bench: Bench, used: int
) -> None:
    use_before(bench, used)
    node = bench.node(replace(STRICT, start_from="chain"))
    tx_id = await bench.request()
    await node.turn()
    assert bench.tx(tx_id).nonce == used
    assert bench.database.cursors[bench.signer].start_nonce == used


@pytest.mark.parametrize(("used", "start_from"), [(3, 0), (0, 3), (2, 1)])
async def test_a_used_address_is_protected_at_first_use(bench: Bench, used: int, start_from: int) -> None:
    use_before(bench, used)
    node = bench.node(replace(STRICT, start_from=start_from))
    tx_id = await bench.request()
    await node.turn(2)
    cursor = bench.database.cursors[bench.signer]
    assert cursor.state is CursorState.PROTECT
    assert str(used) in (cursor.reason or "")
    assert (bench.state(tx_id), bench.chain.sent) == (State.QUEUED, [])
    with pytest.raises(SignerProtected):
        await bench.request()


@pytest.mark.parametrize("start_from", [0, "chain"])
async def test_foreign_pending_transactions_protect_at_first_use(bench: Bench, start_from: int | str) -> None:
    bench.chain.add_foreign_tx(bench.signer.address)
    policy = replace(STRICT, start_from="chain") if start_from == "chain" else STRICT
    node = bench.node(policy)
    await bench.request()
    await node.turn()
    assert node.lane.is_protected
    assert bench.chain.sent == []


async def test_a_pipelined_signer_with_a_shared_key_begins_behind_pending_transactions(bench: Bench) -> None:
    bench.chain.add_foreign_tx(bench.signer.address)
    node = bench.node(replace(QUICK, shared_key=True))
    tx_id = await bench.request()
    await node.turn()
    assert bench.tx(tx_id).nonce == 1


async def test_a_pipelined_signer_waits_for_pending_transactions_and_names_them(
    bench: Bench,
) -> None:
    theirs = bench.chain.add_foreign_tx(bench.signer.address)
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await node.turn_for(2 * ADOPT_AFTER_S)
    assert (bench.state(tx_id), bench.chain.sent, node.lane.is_protected) == (State.QUEUED, [], False)
    bench.chain.mine()
    await node.turn_for(2 * ADOPT_AFTER_S)
    assert theirs in (bench.database.cursors[bench.signer].reason or "")
    assert (bench.state(tx_id), bench.chain.sent) == (State.QUEUED, [])


@pytest.mark.parametrize("command", ["pause", "protect"])
async def test_a_command_before_the_first_use_does_not_start_a_sequence(bench: Bench, command: str) -> None:
    use_before(bench, 4)
    node = bench.node(replace(STRICT, start_from="chain"))
    await bench.ask(command, reason="wait")
    await node.turn()
    tx_id = None if command == "protect" else await bench.request()
    await bench.ask("unpause" if command == "pause" else "unprotect", decision="keep")
    await node.turn(2)
    tx_id = tx_id or await bench.request()
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 4)


# ---- foreign use of the key


async def test_a_chain_nonce_above_the_cursor_protects_a_strict_signer(bench: Bench) -> None:
    node = bench.node(STRICT)
    first = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn()
    assert bench.state(first) is State.CONFIRMED
    use_before(bench, 1)
    bench.clock.advance(STRICT.state_timeout_s)
    await bench.request()
    await node.turn()
    await node.turn_for(ADOPT_AFTER_S)
    assert node.lane.is_protected
    assert len(bench.chain.sent) == 1


async def test_a_take_over_protects_when_the_chain_is_ahead(bench: Bench) -> None:
    node = bench.node(STRICT)
    await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn()
    await node.release()
    use_before(bench, 1)
    other = bench.node(STRICT, name="other")
    await bench.request()
    await other.turn()
    await other.turn_for(ADOPT_AFTER_S)
    assert other.lane.is_protected


@pytest.mark.parametrize("policy", [QUICK, STRICT])
async def test_a_foreign_transaction_at_our_nonce_protects_after_three_reads(
    bench: Bench, policy: LaneSettings
) -> None:
    node = bench.node(policy)
    tx_id = await bench.request()
    await node.turn()
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine()
    looks = 0
    while not node.lane.is_protected and looks < 10:
        bench.clock.advance(61)
        await node.turn()
        looks += 1
    assert node.lane.is_protected
    assert looks >= 2
    assert bench.state(tx_id) is State.SUBMITTED
    sent = len(bench.chain.sent)
    bench.clock.advance(600)
    await node.turn(3)
    assert len(bench.chain.sent) == sent  # a protected signer sends nothing


@contextmanager
def receipts_lagging(bench: Bench) -> Iterator[None]:
    """Make the endpoint know the new nonce before its receipt."""
    hidden = bench.chain.receipts

    async def none_yet(hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        return [None for _ in hashes]

    bench.chain.receipts = none_yet  # type: ignore[method-assign]  # a node whose receipts lag
    yield
    bench.chain.receipts = hidden  # type: ignore[method-assign]  # they are there now


async def test_receipts_that_lag_after_a_take_over_are_no_foreign_transaction(bench: Bench) -> None:
    old = bench.node(name="old")
    tx_id = await bench.request()
    await old.turn()
    await old.release()
    bench.chain.mine()
    new = bench.node(name="new")
    with receipts_lagging(bench):
        for _ in range(7):
            again_s = await new.turn()
            assert again_s == 0.5
            bench.clock.advance(again_s)
    bench.chain.mine()
    await new.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_protected_signer_reads_receipts_rarely(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn()
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine()
    for _ in range(4):
        bench.clock.advance(61)
        await node.turn()
    assert node.lane.is_protected
    again_s = await node.turn()
    assert again_s is not None
    assert again_s > 5


async def test_a_late_receipt_is_no_foreign_transaction(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    lane = node.lane
    bench.chain.mine()
    with receipts_lagging(bench):
        bench.clock.advance(1)
        await node.turn()
        assert lane.suspicion.consumed_counts == {0: 1}
    bench.chain.mine()
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert lane.suspicion.consumed_counts == {}


async def test_a_protected_signer_still_tracks_sent_transactions(bench: Bench) -> None:
    node = bench.node()
    first, second = await bench.requests(2)
    bench.chain.script_next_sends(
        None, SendResult(SendCategory.REPLACEMENT_UNDERPRICED, "a foreign one pays more")
    )
    await node.turn()
    assert node.lane.is_protected
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(first) is State.CONFIRMED
    assert bench.state(second) is State.ALLOCATED
    assert bench.tx(second).sub_state is not SubState.STUCK
