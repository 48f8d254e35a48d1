"""Chains without EIP-1559, chains with free gas, and gas limits that fit a block."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.bench import GWEI, QUICK, SINK, STRICT, Bench, BenchNode, decode, transfer
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, Fees, TxType
from fencepost.domain.transaction_state import Intent, Purpose


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.chain.is_before_london = True
    return bench


async def confirmed(bench: Bench, node: BenchNode) -> None:
    bench.chain.mine(2)
    await node.turn(2)
    assert {tx.state for tx in bench.database.txs.values()} == {State.CONFIRMED}


@pytest.mark.parametrize("policy", [QUICK, STRICT])
async def test_the_chain_determines_the_transaction_type(bench: Bench, policy: object) -> None:
    node = bench.node(policy)  # type: ignore[arg-type]  # the parameters are policies
    for _ in range(3):
        tx_id = await bench.request(transfer())
        await node.turn()
        bench.chain.mine(2)
        await node.turn(2)
        assert [attempt.type for attempt in bench.tx(tx_id).attempts] == [TxType.LEGACY]
        assert bench.state(tx_id) is State.CONFIRMED


async def test_a_maximum_fee_is_not_paid_in_full_as_a_legacy_gas_price(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request(Intent(Call(to=SINK), gas=21_000, fees=Fees(400 * GWEI, GWEI)))
    await node.turn()
    quoted = (await bench.chain.quote_fees()).normal
    assert bench.tx(tx_id).latest.fees == Fees(quoted.fee_cap_wei, quoted.fee_cap_wei)
    await confirmed(bench, node)


async def test_a_rejected_type_is_signed_again_as_type_0(bench: Bench) -> None:
    bench.chain.hides_that_it_is = True
    node = bench.node()
    first = await bench.request(Intent(Call(to=SINK), gas=21_000, fees=Fees(3 * GWEI, GWEI)))
    await node.turn()
    attempts = bench.tx(first).attempts
    assert [attempt.type for attempt in attempts] == [TxType.DYNAMIC_FEE, TxType.LEGACY]
    assert attempts[1].fees.fee_cap_wei <= 3 * GWEI
    assert "Retype" in bench.events(first)
    second = await bench.request()
    await node.turn()
    assert [attempt.type for attempt in bench.tx(second).attempts] == [TxType.LEGACY], (
        "the lane has learnt it"
    )
    await confirmed(bench, node)


@pytest.mark.parametrize("hides", [False, True])
async def test_cancel_and_bump_free_the_nonce_without_eip_1559(bench: Bench, *, hides: bool) -> None:
    bench.chain.hides_that_it_is = hides
    node = bench.node()
    cancelled, bumped = await bench.request(), await bench.request()
    await node.turn()
    await bench.ask("cancel", cancelled)
    await bench.ask("bump", bumped)
    await node.turn()
    assert {decode(sent.raw)[1].type for sent in bench.chain.sent if sent.hash in bench.chain.pool} == {
        TxType.LEGACY
    }
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(cancelled), bench.state(bumped)) == (State.CANCELLED, State.CONFIRMED)


async def test_a_transaction_rejected_as_type_0_too_fails(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(SendResult(SendCategory.TYPE_NOT_SUPPORTED, "unsupported transaction type"))
    await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.ending, tx.latest.purpose, tx.error) == (
        State.FAILED,
        Purpose.FILLER,
        "unsupported transaction type",
    )


# ---- free gas


async def test_zero_is_a_valid_price() -> None:
    bench = Bench()
    bench.chain.base_fee_wei = bench.chain.tip_wei = 0
    bench.chain.balances[bench.signer.address] = 0
    policy = replace(QUICK, bump_enabled=True, bump_after_resubmits=0)
    node = bench.node(policy)
    tx_id = await bench.request(transfer(value_wei=0))
    await node.turn()
    for _ in range(3):
        bench.clock.advance(policy.resubmit_interval_s)
        await node.turn()
    assert [attempt.fees for attempt in bench.tx(tx_id).attempts] == [Fees(0, 0)]
    await confirmed(bench, node)


# ---- gas limits

EIP_7825 = 2**24


@pytest.mark.parametrize(
    ("estimate", "block_limit", "tx_limit", "expected"),
    [
        (100_000, 30_000_000, EIP_7825, 120_000),
        (100_000, None, EIP_7825, 120_000),
        (15_000_000, 30_000_000, EIP_7825, EIP_7825),
        (9_000_000, 10_000_000, EIP_7825, 10_000_000),
        (EIP_7825, 30_000_000, EIP_7825, EIP_7825),
        (20_000_000, 30_000_000, EIP_7825, 20_000_000),  # what the chain estimates is what it needs
        (15_000_000, 30_000_000, None, 18_000_000),  # a chain without the limit: the margin is whole
        (20_000_000, None, 2**25, 24_000_000),
        (29_000_000, 30_000_000, None, 30_000_000),
    ],
)
async def test_the_gas_margin_fits_a_block_and_a_transaction(
    estimate: int,
    block_limit: int | None,
    tx_limit: int | None,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.chain.gas_limit = block_limit
    monkeypatch.setattr("fencepost.testing.chain.TRANSFER_GAS", estimate)
    node = bench.node(replace(QUICK, tx_gas_max=tx_limit))
    tx_id = await bench.request()
    await node.turn()
    assert bench.tx(tx_id).latest.gas == expected
    await bench.ask("cancel", tx_id)
    await node.turn()
    assert bench.tx(tx_id).latest.gas == expected  # its filler costs as much here
