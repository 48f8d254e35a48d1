"""A request that the signing service rejects: it fails with the service's message, and no other request waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode, transfer
from fencepost.application.allocate import MAX_SIGNING_PAUSE_S, MAX_SIGNING_REFUSALS
from fencepost.application.lane import LaneSettings
from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import AccessEntry, Call, SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Intent
from fencepost.errors import SigningError, SigningRefused

POISON_WEI = 3


class _Service(KeyPort):
    """Signs all or nothing, like a service with one call per transaction."""

    def __init__(self, keys: KeyPort, refuses: Callable[[UnsignedTx], bool]) -> None:
        self._keys = keys
        self.refuses = refuses
        self.is_silent = False

    def addresses(self) -> Sequence[Address]:
        return self._keys.addresses()

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if self.is_silent:
            raise SigningError("no answer from the signing service")
        if any(map(self.refuses, txs)):
            raise SigningRefused("the signing service refused: not on the list (code -32000)")
        return await self._keys.sign(address, txs)


def _is_poison(tx: UnsignedTx) -> bool:
    return tx.call.value_wei == POISON_WEI


async def _requests(bench: Bench, *values_wei: int) -> list[UUID]:
    return [await bench.request(transfer(value_wei=value_wei)) for value_wei in values_wei]


async def _turns(bench: Bench, at: BenchNode, turns: int) -> None:
    for _ in range(turns):
        bench.clock.advance(MAX_SIGNING_PAUSE_S + 1)
        await at.turn()


@pytest.mark.parametrize("policy", [QUICK, STRICT])
async def test_a_rejected_transaction_fails_and_the_others_are_sent(policy: LaneSettings) -> None:
    bench = Bench()
    at = bench.node(policy, keys=_Service(bench.keys, _is_poison))
    tx_ids = await _requests(bench, 1, 2, POISON_WEI, 4, 5, 6)
    for _ in range(8):
        await _turns(bench, at, MAX_SIGNING_REFUSALS + 1)
        bench.chain.mine(2)
    assert [bench.state(tx_id) for tx_id in tx_ids] == [
        State.CONFIRMED,
        State.CONFIRMED,
        State.FAILED,
        *[State.CONFIRMED] * 3,
    ]
    assert "not on the list" in (bench.tx(tx_ids[2]).error or "")
    assert bench.tx(tx_ids[2]).nonce is None
    assert [bench.tx(tx_id).nonce for tx_id in tx_ids if tx_id != tx_ids[2]] == [0, 1, 2, 3, 4]


async def test_a_single_rejected_transaction_fails_if_the_service_signs_others() -> None:
    bench = Bench()
    at = bench.node(keys=_Service(bench.keys, _is_poison))
    (tx_id,) = await _requests(bench, POISON_WEI)
    await _turns(bench, at, MAX_SIGNING_REFUSALS)
    assert bench.state(tx_id) is State.FAILED
    assert not bench.chain.sent  # signatures of the probe are never sent


async def test_a_dropped_access_list_fails_only_its_request() -> None:
    bench = Bench()
    at = bench.node(keys=_Service(bench.keys, lambda tx: bool(tx.call.access_list)))
    listed = await bench.request(
        Intent(call=Call(to=bench.signer.address, access_list=(AccessEntry(bench.signer.address),)))
    )
    (plain,) = await _requests(bench, 1)
    await _turns(bench, at, MAX_SIGNING_REFUSALS + 1)
    assert (bench.state(listed), bench.state(plain)) == (State.FAILED, State.SUBMITTED)


async def test_a_service_that_signs_nothing_fails_nothing_and_the_request_reports_why() -> None:
    bench = Bench()
    keys = _Service(bench.keys, lambda _: True)
    at = bench.node(keys=keys)
    first, second = await _requests(bench, 1, 2)
    await _turns(bench, at, MAX_SIGNING_REFUSALS + 3)
    assert (bench.state(first), bench.state(second)) == (State.QUEUED, State.QUEUED)
    assert bench.tx(first).sub_state is SubState.STUCK
    assert "not on the list" in (bench.tx(first).error or "")
    assert bench.events(first).count("Stuck") == 1
    keys.refuses = _is_poison
    await _turns(bench, at, 1)
    assert (bench.state(first), bench.state(second)) == (State.SUBMITTED, State.SUBMITTED)


async def test_a_silent_service_is_no_rejection() -> None:
    bench = Bench()
    keys = _Service(bench.keys, _is_poison)
    keys.is_silent = True
    at = bench.node(keys=keys)
    (tx_id,) = await _requests(bench, 1)
    for _ in range(MAX_SIGNING_REFUSALS + 2):
        with pytest.raises(SigningError):
            await _turns(bench, at, 1)
    assert bench.state(tx_id) is State.QUEUED
    keys.is_silent = False
    await _turns(bench, at, 1)
    assert bench.state(tx_id) is State.SUBMITTED


async def test_a_rejected_replacement_delays_no_other() -> None:
    bench = Bench()
    keys = _Service(bench.keys, lambda _: False)
    at = bench.node(
        LaneSettings(
            strict=False, required=1, record_within_s=0.0, bump_enabled=True, bump_after_resubmits=0
        ),
        keys=keys,
    )
    (waiting,) = await _requests(bench, POISON_WEI)
    await at.turn()
    keys.refuses = _is_poison
    bench.clock.advance(at.lane.settings.resubmit_interval_s + 1)
    (later,) = await _requests(bench, 1)
    await at.turn(2)
    assert bench.tx(waiting).sub_state is SubState.STUCK
    assert "not on the list" in (bench.tx(waiting).error or "")
    assert bench.state(later) is State.SUBMITTED
