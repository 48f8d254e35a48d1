"""A signer's spending policy is checked for every signature, and every attempt counts against the daily budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, GWEI, QUICK, SINK, Bench, transfer
from fencepost.application.hooks import NonceContext
from fencepost.application.ports import Actor
from fencepost.application.spending_policy import Limits, SpendingGuard, SpendingPolicies
from fencepost.domain.ids import Signer
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import Call, Fees, UnsignedTx
from fencepost.domain.transaction_state import Intent, Purpose
from fencepost.testing import InMemoryLedger

GAS = 21_000


@dataclass(slots=True)
class FakePolicies(SpendingPolicies):
    """The same limits for every signer, and budgets in memory."""

    limits: Limits
    held: dict[UUID, int] = field(default_factory=dict)

    async def all(self) -> Mapping[Signer, Limits]:
        return {Bench().signer: self.limits}

    async def put(self, signer: Signer, limits: Limits, actor: Actor) -> None:
        raise NotImplementedError

    async def remove(self, signer: Signer, actor: Actor) -> bool:
        raise NotImplementedError

    async def reserve(
        self, _signer: Signer, tx_id: UUID, *, value_wei: int, wei: int, force: bool = False
    ) -> bool:
        del value_wei
        others = sum(held for other, held in self.held.items() if other != tx_id)
        most = self.limits.daily_wei_max
        wanted = max(wei, self.held.get(tx_id, 0))
        if most is not None and others + wanted > most and not force:
            return False
        self.held[tx_id] = wanted
        return True

    async def release(self, _signer: Signer, tx_id: UUID) -> None:
        self.held.pop(tx_id, None)

    async def settle(self, _signer: Signer) -> int:
        return 0

    async def spent_today_wei(self, _signer: Signer) -> int:
        return sum(self.held.values())


def with_limits(limits: Limits) -> tuple[Bench, FakePolicies]:
    bench = Bench()
    policies = FakePolicies(limits)
    bench.spending = SpendingGuard(policies, InMemoryLedger(bench.database, node="policy"))
    return bench, policies


def priced(fee_cap_wei: int, *, gas: int = GAS) -> Intent:
    return Intent(Call(to=SINK, value_wei=1), gas=gas, fees=Fees(fee_cap_wei, fee_cap_wei // 3))


async def test_a_request_above_the_daily_budget_fails_without_a_nonce() -> None:
    bench, policies = with_limits(Limits(daily_wei_max=GAS * 3 * GWEI + 1))
    node = bench.node()
    first, second = await bench.request(priced(3 * GWEI)), await bench.request(priced(3 * GWEI))
    await node.turn()
    assert bench.state(first) is State.SUBMITTED
    assert (bench.state(second), bench.tx(second).nonce) == (State.FAILED, None)
    assert "it may spend per day" in (bench.tx(second).error or "")
    assert policies.held == {first: GAS * 3 * GWEI + 1}


async def test_a_replacement_reserves_more_budget_or_is_not_signed() -> None:
    bench, policies = with_limits(Limits(daily_wei_max=GAS * 4 * GWEI))
    node = bench.node(replace(QUICK, bump_enabled=True, gas_factor=1.0))
    tx_id = await bench.request(transfer(value_wei=0))
    await node.turn()
    assert policies.held[tx_id] == GAS * 3 * GWEI
    await bench.ask("bump", tx_id)
    await node.turn()
    assert policies.held[tx_id] == GAS * bench.tx(tx_id).latest.fees.fee_cap_wei > GAS * 3 * GWEI
    for _ in range(4):
        number = await bench.ask("bump", tx_id)
        await node.turn()
    assert "it may spend per day" in (bench.database.commands[number].outcome or "")
    assert policies.held[tx_id] <= GAS * 4 * GWEI
    assert all(attempt.fees.fee_cap_wei <= 4 * GWEI for attempt in bench.tx(tx_id).attempts)


async def test_a_filler_counts_against_the_budget_and_is_never_stopped_by_it() -> None:
    bench, policies = with_limits(Limits(daily_wei_max=GAS * 3 * GWEI))
    node = bench.node(replace(QUICK, gas_factor=1.0))
    tx_id = await bench.request(transfer(value_wei=0))
    await node.turn()
    await bench.ask("cancel", tx_id)
    await node.turn()
    assert bench.tx(tx_id).latest.purpose is Purpose.FILLER
    assert policies.held[tx_id] > GAS * 3 * GWEI


@pytest.mark.parametrize("bump", [False, True])
async def test_the_price_limit_of_the_policy_applies_to_every_signature(*, bump: bool) -> None:
    bench, _ = with_limits(Limits(fee_cap_max_wei=2 * GWEI))
    node = bench.node(replace(QUICK, bump_enabled=bump, bump_after_resubmits=0))
    tx_id = await bench.request()
    bench.chain.base_fee_wei = 5 * GWEI
    await node.turn()
    for _ in range(5):
        bench.clock.advance(61)
        await node.turn()
    assert [attempt.fees.fee_cap_wei for attempt in bench.tx(tx_id).attempts] == [2 * GWEI]
    assert bench.tx(tx_id).sub_state is SubState.BELOW_MARKET


async def test_a_request_above_the_gas_or_price_limit_fails_without_a_nonce() -> None:
    bench, _ = with_limits(Limits(gas_max=25_000, fee_cap_max_wei=2 * GWEI))
    node = bench.node()
    greedy, dear = await bench.request(priced(GWEI, gas=25_001)), await bench.request(priced(3 * GWEI))
    fine = await bench.request(priced(2 * GWEI, gas=25_000))
    await node.turn()
    assert [bench.state(each) for each in (greedy, dear, fine)] == [
        State.FAILED,
        State.FAILED,
        State.SUBMITTED,
    ]
    assert "gasMax" in (bench.tx(greedy).error or "")
    assert "feeCapMax" in (bench.tx(dear).error or "")
    assert bench.tx(fine).nonce == 0


@pytest.mark.parametrize("signs_itself", [False, True])
async def test_the_policy_applies_to_a_handler(*, signs_itself: bool) -> None:
    bench, policies = with_limits(Limits(daily_wei_max=GAS * 3 * GWEI))
    node = bench.node()

    async def greedy(context: NonceContext) -> UnsignedTx | bytes:
        built = UnsignedTx(CHAIN_ID, context.nonce, Call(to=SINK, value_wei=10**18), GAS, context.fees)
        return (await bench.keys.sign(bench.signer.address, [built]))[0].raw if signs_itself else built

    tx_id = await bench.with_nonce(node, greedy)
    await node.turn()
    assert bench.tx(tx_id).latest.purpose is Purpose.FILLER
    assert "it may spend per day" in (bench.tx(tx_id).error or "")
    assert policies.held[tx_id] < 10**18
