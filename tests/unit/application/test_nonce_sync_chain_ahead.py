"""A chain nonce above the cursor may be one wrong endpoint: several reads decide, and nothing new is sent meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode
from fencepost.application.lane import LaneSettings
from fencepost.application.nonce_sync import ADOPT_AFTER_S, CHECK_INTERVAL_S
from fencepost.domain.ids import Address
from fencepost.domain.states import State

# The chain is queried at every allocation.
WARY = replace(QUICK, state_timeout_s=0.0)
WARY_STRICT = replace(STRICT, state_timeout_s=0.0)
SHARED = replace(WARY, shared_key=True)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@contextmanager
def lying(bench: Bench, by: int = 2) -> Iterator[None]:
    """The only answering endpoint reports too high a nonce."""
    honest = bench.chain.nonce

    async def too_high(address: Address, tag: Literal["latest", "pending"]) -> int:
        return await honest(address, tag) + by

    bench.chain.nonce = too_high  # type: ignore[method-assign]  # a node that lies
    yield
    bench.chain.nonce = honest  # type: ignore[method-assign]  # it is out again


def use_key_outside(bench: Bench, times: int = 1) -> None:
    for _ in range(times):
        bench.chain.add_foreign_tx(bench.signer.address)
        bench.chain.mine()


async def begun(bench: Bench, policy: LaneSettings) -> BenchNode:
    """Finish nonce 0."""
    node = bench.node(policy)
    first = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn()
    assert bench.state(first) is State.CONFIRMED
    return node


def is_protected(node: BenchNode) -> bool:
    return node.lane.is_protected


@pytest.mark.parametrize("policy", [WARY, WARY_STRICT])
async def test_a_single_wrong_endpoint_costs_a_moment_and_no_nonce(
    bench: Bench, policy: LaneSettings
) -> None:
    node = await begun(bench, policy)
    tx_id = await bench.request()
    with lying(bench):
        again_s = await node.turn()
        assert bench.state(tx_id) is State.QUEUED
        assert again_s == CHECK_INTERVAL_S  # it recovers by itself
        await node.turn_for(ADOPT_AFTER_S - CHECK_INTERVAL_S)
        assert bench.state(tx_id) is State.QUEUED
    await node.turn_for(CHECK_INTERVAL_S)
    assert not is_protected(node)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)
    assert "AdoptChainNonce" not in bench.events()


async def test_a_signer_with_a_shared_key_continues_behind_the_chain(bench: Bench) -> None:
    node = await begun(bench, SHARED)
    use_key_outside(bench, 2)
    tx_id = await bench.request()
    await node.turn()
    assert bench.state(tx_id) is State.QUEUED
    await node.turn_for(ADOPT_AFTER_S)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 3)
    (shown,) = [row for row in bench.database.journal if row.event == "AdoptChainNonce"]
    assert [foreign["nonce"] for foreign in shown.detail["foreign"]] == [1, 2]
    assert len(node.observer.of("adopted")) == 2


async def test_continued_foreign_use_extends_the_wait(bench: Bench) -> None:
    node = await begun(bench, SHARED)
    use_key_outside(bench, 2)
    tx_id = await bench.request()
    await node.turn()
    use_key_outside(bench)
    await node.turn_for(ADOPT_AFTER_S)
    assert bench.state(tx_id) is State.QUEUED
    await node.turn_for(ADOPT_AFTER_S)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 4)
    assert bench.sent_nonces() == [0, 4]


async def test_a_late_wrong_endpoint_adds_nothing_to_the_evidence(bench: Bench) -> None:
    node = await begun(bench, SHARED)
    use_key_outside(bench)
    tx_id = await bench.request()
    await node.turn()
    await node.turn_for(ADOPT_AFTER_S - CHECK_INTERVAL_S)
    with lying(bench, by=3):
        await node.turn_for(CHECK_INTERVAL_S)
    await node.turn_for(CHECK_INTERVAL_S)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 2)


async def test_another_reason_to_hold_nonces_back_does_not_shorten_the_wait(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_outside(bench)
    tx_id = await bench.request()
    await node.turn()
    node.lane.sending.allocation_paused_until_s = bench.clock.now_s()
    again_s = await node.turn_for(ADOPT_AFTER_S - CHECK_INTERVAL_S)
    assert bench.state(tx_id) is State.QUEUED
    assert again_s == CHECK_INTERVAL_S


async def test_reads_without_time_between_them_count_as_one(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_outside(bench)
    tx_id = await bench.request()
    await node.turn(40)
    assert bench.state(tx_id) is State.QUEUED


@pytest.mark.parametrize("policy", [WARY, WARY_STRICT])
async def test_a_clock_jump_is_no_evidence(bench: Bench, policy: LaneSettings) -> None:
    node = await begun(bench, policy)
    tx_id = await bench.request()
    with lying(bench):
        await node.turn()
        bench.clock.advance(5.0)  # trusted as before, and much later
        await node.turn()
        await node.turn_for(ADOPT_AFTER_S / 2)
        assert bench.state(tx_id) is State.QUEUED
    await node.turn_for(CHECK_INTERVAL_S)
    assert not is_protected(node)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)


async def test_a_clock_set_back_delays_nothing(bench: Bench) -> None:
    node = await begun(bench, WARY)
    tx_id = await bench.request()
    with lying(bench):
        await node.turn()
    node.lane.suspicion.ahead.checked_at_s = bench.clock.now_s() + 60.0
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED


@pytest.mark.parametrize("policy", [WARY, WARY_STRICT])
async def test_a_signer_is_protected_when_the_difference_persists(bench: Bench, policy: LaneSettings) -> None:
    node = await begun(bench, policy)
    use_key_outside(bench)
    tx_id = await bench.request()
    await node.turn()
    assert not is_protected(node)
    await node.turn_for(ADOPT_AFTER_S)
    assert is_protected(node)
    assert (bench.state(tx_id), bench.sent_nonces()) == (State.QUEUED, [0])


@pytest.mark.parametrize("policy", [QUICK, STRICT])
async def test_a_take_over_protects_a_signer_without_requests(bench: Bench, policy: LaneSettings) -> None:
    old = await begun(bench, policy)
    await old.release()
    use_key_outside(bench)
    new = bench.node(policy, name="new")
    again_s = await new.turn()
    assert not is_protected(new)
    assert again_s == CHECK_INTERVAL_S
    await new.turn_for(ADOPT_AFTER_S)
    assert is_protected(new)


async def test_a_take_over_with_a_wrong_endpoint_continues(bench: Bench) -> None:
    old = await begun(bench, STRICT)
    await old.release()
    new = bench.node(STRICT, name="new")
    tx_id = await bench.request()
    with lying(bench):
        await new.turn()
    assert bench.state(tx_id) is State.QUEUED
    await new.turn_for(ADOPT_AFTER_S)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)


async def test_evidence_from_before_an_alarm_does_not_count_after_it(bench: Bench) -> None:
    """An operator let the signer continue: the next alarm needs as many reads again."""
    node = await begun(bench, WARY_STRICT)
    use_key_outside(bench)
    await bench.request()
    await node.turn()
    await node.turn_for(ADOPT_AFTER_S)
    assert is_protected(node)
    await bench.ask("unprotect", decision="keep")
    await node.turn()
    assert not is_protected(node)
    await node.turn_for(ADOPT_AFTER_S)
    assert is_protected(node)
    assert bench.sent_nonces() == [0]
