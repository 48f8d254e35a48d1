"""The balance is checked before a nonce is allocated; a missing amount is reported, and the rest continues automatically."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from fakes.bench import GWEI, QUICK, STRICT, Bench, transfer
from fencepost.application.funds import FUNDS_RETRY_S
from fencepost.application.lane import LaneSettings
from fencepost.domain.ids import Address
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction_state import missing_wei
from fencepost.errors import RpcError, RpcRefused, RpcUnavailable
from fencepost.testing import TRANSFER_GAS, InMemoryChain

ETHER = 10**18
FEE_WEI = 3 * GWEI  # what the fake chain quotes as the fee cap


def _gas_wei(gas_factor: float = QUICK.gas_factor) -> int:
    return int(TRANSFER_GAS * gas_factor) * FEE_WEI


async def _request(bench: Bench, value_wei: int) -> UUID:
    return await bench.request(transfer(value_wei=value_wei))


@pytest.mark.parametrize("policy", [QUICK, STRICT])
async def test_an_unfunded_request_gets_no_nonce_and_reports_the_missing_amount(policy: LaneSettings) -> None:
    bench = Bench()
    at = bench.node(policy)
    bench.chain.balances[bench.signer.address] = ETHER
    tx_id = await _request(bench, 3 * ETHER)
    behind = await _request(bench, 1)
    again_s = await at.turn()
    assert again_s is not None
    assert 0 < again_s <= FUNDS_RETRY_S
    tx = bench.tx(tx_id)
    assert (tx.state, tx.sub_state, tx.nonce) == (State.QUEUED, SubState.UNFUNDED, None)
    missing = missing_wei(tx)
    assert missing is not None
    assert missing >= 2 * ETHER
    assert "insufficient funds for gas * price + value" in (tx.error or "")
    (row,) = [row for row in bench.database.journal_of(tx_id) if row.event == "Unfunded"]
    assert int(row.detail["missingWei"]) == missing
    assert at.observer.counts["unfunded"] == 1
    for _ in range(3):  # reported once
        bench.clock.advance(FUNDS_RETRY_S)
        await at.turn()
    assert bench.events(tx_id).count("Unfunded") == 1
    assert not bench.chain.sent
    bench.chain.balances[bench.signer.address] = ETHER + missing
    bench.clock.advance(FUNDS_RETRY_S)
    await at.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).error) == (State.SUBMITTED, None)
    if policy is QUICK:
        assert bench.state(behind) is State.QUEUED  # transactions in flight may cost the whole balance


async def test_transactions_in_flight_count_against_the_balance() -> None:
    bench = Bench()
    at = bench.node()
    bench.chain.balances[bench.signer.address] = ETHER + 2 * _gas_wei()
    first, second = await _request(bench, ETHER // 2), await _request(bench, ETHER // 2 + 1)
    await at.turn()
    assert [bench.state(first), bench.state(second)] == [State.SUBMITTED, State.QUEUED]
    assert bench.tx(second).sub_state is None  # the first one may be mined soon
    bench.clock.advance(FUNDS_RETRY_S)
    await at.turn()
    assert bench.tx(second).sub_state is SubState.UNFUNDED
    assert missing_wei(bench.tx(second)) == 1
    bench.chain.mine(2)
    bench.chain.balances[bench.signer.address] = ETHER
    bench.clock.advance(FUNDS_RETRY_S)
    await at.turn(2)
    assert bench.state(second) is State.SUBMITTED


async def test_the_balance_of_a_rich_account_is_read_once() -> None:
    bench = Bench()
    asked: list[Address] = []
    honest = bench.chain.balance_wei

    async def balance_wei(address: Address) -> int:
        asked.append(address)
        return await honest(address)

    bench.chain.balance_wei = balance_wei  # type: ignore[method-assign]  # it is watched
    bench.chain.estimate_gas = _plain_gas  # type: ignore[method-assign,assignment]  # which asks for it, too
    at = bench.node()
    for _ in range(5):
        await bench.request()
        await at.turn()
        bench.chain.mine(2)
    assert len(asked) == 1


async def _plain_gas(*_: object) -> int:
    return TRANSFER_GAS


class _Silent(InMemoryChain):
    """A chain that answers everything but the balance."""

    error: RpcError

    async def balance_wei(self, address: Address) -> int:  # noqa: ARG002 - the port names it
        raise self.error

    estimate_gas = _plain_gas  # type: ignore[assignment]  # the fake's own asks for the balance


@pytest.mark.parametrize(
    "error", [RpcUnavailable("HTTP 403"), RpcRefused("method not found", rpc_code=-32601)]
)
async def test_an_endpoint_without_balances_stops_nothing(error: RpcError) -> None:
    bench = Bench()
    bench.chain.__class__ = _Silent
    bench.chain.error = error  # type: ignore[attr-defined]  # of the class that it is now
    at = bench.node()
    tx_id = await bench.request()
    await at.turn()
    assert bench.state(tx_id) is State.SUBMITTED


async def test_an_unfunded_request_can_be_cancelled_and_unblocks_the_queue() -> None:
    bench = Bench()
    at = bench.node()
    bench.chain.balances[bench.signer.address] = ETHER
    tx_id, behind = await _request(bench, 3 * ETHER), await _request(bench, 1)
    await at.turn()
    await bench.ask("cancel", tx_id)
    bench.clock.advance(FUNDS_RETRY_S)
    await at.turn()
    assert (bench.state(tx_id), bench.state(behind)) == (State.CANCELLED, State.SUBMITTED)


def _low_balance_entries(bench: Bench) -> list[dict[str, object]]:
    return [dict(row.detail) for row in bench.database.journal if row.event == "LowBalance"]


async def test_a_low_balance_is_recorded_once_until_it_has_recovered() -> None:
    bench = Bench()
    at = bench.node(replace(QUICK, low_balance_wei=2 * ETHER, state_timeout_s=1.0))
    for balance_wei, recorded in ((3 * ETHER, 0), (ETHER, 1), (ETHER - 1, 1), (3 * ETHER, 1), (ETHER, 2)):
        bench.chain.balances[bench.signer.address] = balance_wei
        tx_id = await _request(bench, 1)
        bench.clock.advance(5)
        await at.turn()
        assert bench.state(tx_id) is State.SUBMITTED  # a low balance stops nothing
        bench.chain.mine(1)
        await at.turn()
        assert len(_low_balance_entries(bench)) == recorded
    first = _low_balance_entries(bench)[0]
    assert (first["balanceWei"], first["thresholdWei"]) == (str(ETHER), str(2 * ETHER))


async def test_the_threshold_may_be_a_number_of_transactions() -> None:
    bench = Bench()
    at = bench.node(replace(QUICK, low_balance_transactions=10))
    bench.chain.balances[bench.signer.address] = 10 * _gas_wei() - 1
    await _request(bench, 0)
    await at.turn()
    assert [entry["thresholdWei"] for entry in _low_balance_entries(bench)] == [str(10 * _gas_wei())]


async def test_the_next_lease_holder_records_a_low_balance_again() -> None:
    bench = Bench()
    policy = replace(QUICK, low_balance_wei=2 * ETHER)
    bench.chain.balances[bench.signer.address] = ETHER
    for _ in range(2):
        node = bench.node(policy)
        await _request(bench, 1)
        await node.turn()
        await node.release()
    assert len(_low_balance_entries(bench)) == 2


async def test_without_a_threshold_no_balance_is_low() -> None:
    bench = Bench()
    at = bench.node()
    bench.chain.balances[bench.signer.address] = 2 * _gas_wei()
    await _request(bench, 1)
    await at.turn()
    assert _low_balance_entries(bench) == []
