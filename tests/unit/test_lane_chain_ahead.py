"""A chain nonce above ours: it may be one endpoint that lies, so it takes several looks, and nothing new goes out between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode
from fencepost.application.lane import Policy
from fencepost.application.sequence import ADOPT_AFTER_S, LOOK_EVERY_S
from fencepost.domain.ids import Address
from fencepost.domain.states import State

# The chain is asked at every allocation.
WARY = replace(QUICK, state_timeout_s=0.0)
WARY_STRICT = replace(STRICT, state_timeout_s=0.0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@contextmanager
def lying(bench: Bench, by: int = 2) -> Iterator[None]:
    """The one endpoint that answers says too much."""
    honest = bench.chain.nonce

    async def too_high(address: Address, tag: Literal["latest", "pending"]) -> int:
        return await honest(address, tag) + by

    bench.chain.nonce = too_high  # type: ignore[method-assign]  # a node that lies
    yield
    bench.chain.nonce = honest  # type: ignore[method-assign]  # it is out again


def use_key_elsewhere(bench: Bench, times: int = 1) -> None:
    for _ in range(times):
        bench.chain.stranger(bench.signer.address)
        bench.chain.mine()


async def begun(bench: Bench, policy: Policy) -> BenchNode:
    """Nonce 0 has ended."""
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
async def test_a_lone_liar_costs_a_moment_and_no_nonce(bench: Bench, policy: Policy) -> None:
    node = await begun(bench, policy)
    tx_id = await bench.request()
    with lying(bench):
        again_s = await node.turn()
        assert bench.state(tx_id) is State.QUEUED
        assert again_s == LOOK_EVERY_S  # it comes back by itself
        await node.turn_for(ADOPT_AFTER_S - LOOK_EVERY_S)
        assert bench.state(tx_id) is State.QUEUED
    await node.turn_for(LOOK_EVERY_S)
    assert not is_protected(node)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)
    assert "AdoptChainNonce" not in bench.events()


async def test_a_pipelined_signer_goes_on_behind_the_chain(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_elsewhere(bench, 2)
    tx_id = await bench.request()
    await node.turn()
    assert bench.state(tx_id) is State.QUEUED
    await node.turn_for(ADOPT_AFTER_S)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 3)


async def test_a_stranger_who_goes_on_meanwhile_is_waited_for(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_elsewhere(bench, 2)
    tx_id = await bench.request()
    await node.turn()
    use_key_elsewhere(bench)
    await node.turn_for(ADOPT_AFTER_S)
    assert bench.state(tx_id) is State.QUEUED
    await node.turn_for(ADOPT_AFTER_S)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 4)
    assert bench.sent_nonces() == [0, 4]


async def test_a_liar_who_comes_last_adds_nothing_to_what_the_others_showed(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_elsewhere(bench)
    tx_id = await bench.request()
    await node.turn()
    await node.turn_for(ADOPT_AFTER_S - LOOK_EVERY_S)
    with lying(bench, by=3):
        await node.turn_for(LOOK_EVERY_S)
    await node.turn_for(LOOK_EVERY_S)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 2)


async def test_another_reason_to_hold_nonces_back_does_not_shorten_the_wait(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_elsewhere(bench)
    tx_id = await bench.request()
    await node.turn()
    node.lane.hold_allocation_until_s = bench.clock.now_s()
    again_s = await node.turn_for(ADOPT_AFTER_S - LOOK_EVERY_S)
    assert bench.state(tx_id) is State.QUEUED
    assert again_s == LOOK_EVERY_S


async def test_looks_that_follow_one_another_at_once_are_one(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_elsewhere(bench)
    tx_id = await bench.request()
    await node.turn(40)
    assert bench.state(tx_id) is State.QUEUED


@pytest.mark.parametrize("policy", [WARY, WARY_STRICT])
async def test_a_clock_that_jumps_is_no_evidence(bench: Bench, policy: Policy) -> None:
    node = await begun(bench, policy)
    tx_id = await bench.request()
    with lying(bench):
        await node.turn()
        bench.clock.advance(5.0)  # trusted as before, and much later
        await node.turn()
        await node.turn_for(ADOPT_AFTER_S / 2)
        assert bench.state(tx_id) is State.QUEUED
    await node.turn_for(LOOK_EVERY_S)
    assert not is_protected(node)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)


async def test_a_clock_that_is_set_back_holds_nothing_up(bench: Bench) -> None:
    node = await begun(bench, WARY)
    tx_id = await bench.request()
    with lying(bench):
        await node.turn()
    node.lane.ahead_looked_s = bench.clock.now_s() + 60.0
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED


async def test_a_strict_signer_is_protected_when_it_stays_so(bench: Bench) -> None:
    node = await begun(bench, WARY_STRICT)
    use_key_elsewhere(bench)
    tx_id = await bench.request()
    await node.turn()
    assert not is_protected(node)
    await node.turn_for(ADOPT_AFTER_S)
    assert is_protected(node)
    assert (bench.state(tx_id), bench.sent_nonces()) == (State.QUEUED, [0])


async def test_a_take_over_protects_a_strict_signer_though_nobody_asks_for_a_nonce(bench: Bench) -> None:
    old = await begun(bench, STRICT)
    await old.release()
    use_key_elsewhere(bench)
    new = bench.node(STRICT, name="new")
    again_s = await new.turn()
    assert not is_protected(new)
    assert again_s == LOOK_EVERY_S
    await new.turn_for(ADOPT_AFTER_S)
    assert is_protected(new)


async def test_a_take_over_that_meets_a_liar_goes_on(bench: Bench) -> None:
    old = await begun(bench, STRICT)
    await old.release()
    new = bench.node(STRICT, name="new")
    tx_id = await bench.request()
    with lying(bench):
        await new.turn()
    assert bench.state(tx_id) is State.QUEUED
    await new.turn_for(ADOPT_AFTER_S)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)


async def test_what_was_seen_before_an_alarm_does_not_count_after_it(bench: Bench) -> None:
    """A person decided to go on: the next alarm takes as many looks again."""
    node = await begun(bench, WARY_STRICT)
    use_key_elsewhere(bench)
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
