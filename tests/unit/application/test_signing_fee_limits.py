"""No signature pays more than the lowest of the caller's maximum and the chain's cap, on any path."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from fakes.bench import CHAIN_ID, GWEI, QUICK, SINK, Bench, BenchNode, decode, transfer
from fencepost.application.hooks import NonceContext
from fencepost.application.lane import LaneSettings
from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType, UnsignedTx
from fencepost.domain.transaction_state import Intent, ManagedTx, Purpose

MARKETS = 60
EVENTS = 40


@dataclass(slots=True)
class WatchedKeys(KeyPort):
    """Record everything that was signed, stored or not."""

    keys: KeyPort
    signed: list[UnsignedTx] = field(default_factory=list)

    def addresses(self) -> Sequence[Address]:
        return self.keys.addresses()

    def signs_locally(self, address: Address) -> bool:
        return self.keys.signs_locally(address)

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        self.signed.extend(txs)
        return await self.keys.sign(address, txs)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def paying(fee_cap_wei: int, tip_wei: int, tx_type: TxType = TxType.DYNAMIC_FEE) -> Intent:
    return Intent(Call(to=SINK, value_wei=1), gas=21_000, fees=Fees(fee_cap_wei, tip_wei), type=tx_type)


async def turns(bench: Bench, node: BenchNode, count: int = 8, seconds: float = 31) -> None:
    for _ in range(count):
        bench.clock.advance(seconds)
        await node.turn()


@pytest.mark.parametrize("bump", [False, True])
async def test_the_maximum_of_a_caller_is_never_exceeded(bench: Bench, *, bump: bool) -> None:
    node = bench.node(replace(QUICK, bump_enabled=bump))
    tx_id = await bench.request(paying(1000, 1000))
    await node.turn()
    await turns(bench, node)
    tx = bench.tx(tx_id)
    assert [attempt.fees for attempt in tx.attempts] == [Fees(1000, 1000)]
    assert (tx.state, tx.sub_state) == (State.ALLOCATED, SubState.BELOW_MARKET)
    assert "1000 wei" in (tx.error or "")
    assert str(2 * bench.chain.base_fee_wei + bench.chain.tip_wei) in (tx.error or "")
    assert bench.events(tx_id).count("BelowMarket") == 1
    assert node.observer.counts["below_market"] == 1
    assert len(bench.chain.sent) > 5  # the same bytes each time
    bench.chain.base_fee_wei = 500
    await turns(bench, node, 1)
    assert (bench.state(tx_id), bench.tx(tx_id).sub_state, bench.tx(tx_id).error) == (
        State.SUBMITTED,
        None,
        None,
    )
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_without_bump_nothing_is_signed_again(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    bench.chain.script_next_sends(*[SendResult(SendCategory.UNDERPRICED, "transaction underpriced")] * 4)
    await node.turn()
    await turns(bench, node, 3)
    tx = bench.tx(tx_id)
    assert len(tx.attempts) == 1
    assert tx.sub_state is SubState.BELOW_MARKET
    assert "fees.bump.enabled is off" in (tx.error or "")
    await turns(bench, node, 1)
    assert (bench.state(tx_id), bench.tx(tx_id).sub_state) == (State.SUBMITTED, None)


@pytest.mark.parametrize("bump", [False, True])
async def test_a_fixed_price_is_signed_exactly(bench: Bench, *, bump: bool) -> None:
    fixed = Fees(GWEI // 2, GWEI // 4)
    policy = replace(QUICK, fixed_fees=fixed, bump_enabled=bump, bump_after_resubmits=0)
    node = bench.node(policy)
    tx_id = await bench.request()
    await node.turn()
    await turns(bench, node)
    await bench.ask("bump", tx_id)
    await turns(bench, node)
    assert [attempt.fees for attempt in bench.tx(tx_id).attempts] == [fixed]
    assert "fees.source is fixed" in (bench.tx(tx_id).error or "")


async def test_the_filler_of_a_cancel_pays_the_market_price_where_prices_are_fixed(bench: Bench) -> None:
    """At a fixed price below the market it was rejected, raised by ten percent, rejected, raised, …"""
    bench.chain.base_fee_wei = 50 * GWEI
    node = bench.node(replace(QUICK, fixed_fees=Fees(GWEI, GWEI)))
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("cancel", tx_id)
    await turns(bench, node, 2)
    attempts = bench.tx(tx_id).attempts
    assert [attempt.purpose for attempt in attempts] == [Purpose.INTENT, Purpose.FILLER]
    assert attempts[0].fees == Fees(GWEI, GWEI)
    assert attempts[1].fees.fee_cap_wei == 2 * bench.chain.base_fee_wei + bench.chain.tip_wei
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CANCELLED


async def test_a_bump_command_signs_a_raised_fixed_price(bench: Bench) -> None:
    node = bench.node(replace(QUICK, fixed_fees=Fees(GWEI // 2, GWEI // 4)))
    tx_id = await bench.request()
    await node.turn()
    raised = Fees(3 * GWEI, GWEI)
    await node.release()
    node = bench.node(replace(QUICK, fixed_fees=raised), name="restarted")
    await turns(bench, node, 2)
    assert len(bench.tx(tx_id).attempts) == 1
    await bench.ask("bump", tx_id)
    await turns(bench, node, 2)
    assert [attempt.fees for attempt in bench.tx(tx_id).attempts][1:] == [raised]
    assert bench.tx(tx_id).latest.last_result is SendCategory.ACCEPTED


async def test_a_bump_command_stops_at_the_maximum_of_the_caller(bench: Bench) -> None:
    node = bench.node(replace(QUICK, bump_enabled=True))
    tx_id = await bench.request(paying(5 * GWEI, GWEI))
    await node.turn()
    number = await bench.ask("bump", tx_id)
    await node.turn()
    assert len(bench.tx(tx_id).attempts) == 1
    asked = bench.database.commands[number]
    assert "the caller's maximum fee" in (asked.outcome or "")
    assert asked.applied is False


async def test_a_transaction_at_the_maximum_of_its_caller_can_be_cancelled(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request(paying(1000, 1000))
    await node.turn()
    await bench.ask("cancel", tx_id)
    await turns(bench, node, 2)
    assert bench.tx(tx_id).latest.purpose is Purpose.FILLER
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CANCELLED


@pytest.mark.parametrize("signs_itself", [False, True])
async def test_the_cap_applies_to_the_price_of_a_handler(bench: Bench, *, signs_itself: bool) -> None:
    node = bench.node(replace(QUICK, fee_cap_wei=5 * GWEI))

    async def greedy(context: NonceContext) -> UnsignedTx | bytes:
        fees = Fees(900 * GWEI, 900 * GWEI)
        built = UnsignedTx(CHAIN_ID, context.nonce, Call(to=SINK, value_wei=5), 30_000, fees)
        if not signs_itself:
            return built
        return (await bench.keys.sign(bench.signer.address, [built]))[0].raw

    tx_id = await bench.with_nonce(node, greedy)
    await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.ending, tx.latest.purpose) == (State.FAILED, Purpose.FILLER)
    assert "fees.cap allows 5000000000 wei" in (tx.error or "")
    assert all(decode(sent.raw)[1].fees.fee_cap_wei <= 5 * GWEI for sent in bench.chain.sent)


async def test_a_raised_cap_is_applied(bench: Bench) -> None:
    policy = replace(QUICK, bump_enabled=True, bump_after_resubmits=1, fee_cap_wei=3 * GWEI)
    node = bench.node(policy)
    tx_id = await bench.request()
    await node.turn()
    await turns(bench, node, 4, policy.resubmit_interval_s)
    assert bench.tx(tx_id).sub_state is SubState.STUCK
    node.lane.settings = replace(policy, fee_cap_wei=30 * GWEI)
    await turns(bench, node, 2, policy.resubmit_interval_s)
    tx = bench.tx(tx_id)
    assert len(tx.attempts) > 1
    assert (tx.sub_state is SubState.STUCK, tx.error) == (False, None)


# ---- any market


def lowest_limit(policy: LaneSettings, tx: ManagedTx, wanted: UnsignedTx) -> Fees:
    is_filler = wanted.call == Call(to=tx.signer.address)
    if is_filler or tx.intent.fees is None:
        return Fees(policy.fee_cap_wei, policy.fee_cap_wei)
    fees = tx.intent.fees
    tip_wei = fees.tip_wei if wanted.type is TxType.DYNAMIC_FEE else fees.fee_cap_wei
    return Fees(min(fees.fee_cap_wei, policy.fee_cap_wei), min(tip_wei, policy.fee_cap_wei))


def random_policy(dice: random.Random) -> LaneSettings:
    fixed = Fees(dice.choice((1, GWEI, 9 * GWEI)), 1) if dice.random() < 0.2 else None
    return replace(
        QUICK,
        bump_enabled=dice.random() < 0.5,
        bump_after_resubmits=dice.randrange(3),
        bump_percent=dice.choice((10, 13, 50, 300)),
        fee_cap_wei=dice.choice((GWEI, 5 * GWEI, 500 * GWEI)),
        fixed_fees=fixed,
    )


def random_intent(dice: random.Random) -> Intent:
    if dice.random() < 0.4:
        return transfer()
    cap_wei = dice.choice((1, 1000, GWEI, 3 * GWEI, 40 * GWEI))
    if dice.random() < 0.3:
        return paying(cap_wei, cap_wei, dice.choice((TxType.LEGACY, TxType.ACCESS_LIST)))
    return paying(cap_wei, dice.randint(0, cap_wei))


async def random_event(dice: random.Random, bench: Bench, node: BenchNode) -> None:
    live = [tx for tx in bench.database.txs.values() if not tx.is_terminal]
    match dice.randrange(7):
        case 0 if len(live) < 6:
            await bench.request(random_intent(dice))
        case 1:
            bench.chain.base_fee_wei = dice.choice((0, 1, GWEI // 3, GWEI, 4 * GWEI, 30 * GWEI, 900 * GWEI))
            bench.chain.tip_wei = dice.choice((0, 1, GWEI, 20 * GWEI))
        case 2:
            bench.chain.mine()
        case 3 if live:
            await bench.ask(dice.choice(("bump", "bump", "cancel", "resubmit")), dice.choice(live).tx_id)
        case 4:
            category = dice.choice((SendCategory.UNDERPRICED, SendCategory.FATAL))
            bench.chain.script_next_sends(SendResult(category, "so it is"))
        case _:
            bench.clock.advance(dice.choice((1, 31, 61)))
    await node.turn()


@pytest.mark.parametrize("seed", range(MARKETS))
async def test_no_signature_exceeds_the_lowest_limit_in_any_market(bench: Bench, seed: int) -> None:
    dice = random.Random(seed)
    policy = random_policy(dice)
    watched = WatchedKeys(bench.keys)
    node = bench.node(policy, keys=watched)
    await bench.request(random_intent(dice))
    for _ in range(EVENTS):
        await random_event(dice, bench, node)
    by_nonce = {tx.nonce: tx for tx in bench.database.txs.values() if tx.nonce is not None}
    assert watched.signed
    for wanted in watched.signed:
        limit = lowest_limit(policy, by_nonce[wanted.nonce], wanted)
        assert wanted.fees.fee_cap_wei <= limit.fee_cap_wei
        assert wanted.type is not TxType.DYNAMIC_FEE or wanted.fees.tip_wei <= limit.tip_wei
    if policy.fixed_fees is None and policy.bump_enabled:
        return
    asked = [one.command.tx_id for one in bench.database.commands.values()]
    for tx in by_nonce.values():
        if tx.tx_id not in asked:
            assert [attempt.purpose for attempt in tx.attempts].count(Purpose.INTENT) == 1
