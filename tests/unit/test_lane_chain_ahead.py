"""A chain nonce above ours: it may be one endpoint that lies, so it takes two looks, and nothing new goes out between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode
from fencepost.application.lane import Policy
from fencepost.application.sequence import ADOPT_AFTER_S
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
        assert again_s == ADOPT_AFTER_S  # it comes back by itself
        bench.clock.advance(ADOPT_AFTER_S / 2)
        await node.turn(3)
        assert bench.state(tx_id) is State.QUEUED
    bench.clock.advance(ADOPT_AFTER_S / 2)
    await node.turn()
    assert not is_protected(node)
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)
    assert "AdoptChainNonce" not in bench.events()


async def test_a_pipelined_signer_adopts_what_the_last_look_showed(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_elsewhere(bench, 2)
    tx_id = await bench.request()
    await node.turn()
    assert bench.state(tx_id) is State.QUEUED
    use_key_elsewhere(bench)
    bench.clock.advance(ADOPT_AFTER_S)
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 4)


async def test_another_reason_to_hold_nonces_back_does_not_shorten_the_wait(bench: Bench) -> None:
    node = await begun(bench, WARY)
    use_key_elsewhere(bench)
    tx_id = await bench.request()
    await node.turn()
    node.lane.hold_allocation_until_s = bench.clock.now_s()
    bench.clock.advance(ADOPT_AFTER_S - 0.1)
    again_s = await node.turn()
    assert bench.state(tx_id) is State.QUEUED
    assert again_s == pytest.approx(0.1)


async def test_a_strict_signer_is_protected_by_the_second_look(bench: Bench) -> None:
    node = await begun(bench, WARY_STRICT)
    use_key_elsewhere(bench)
    tx_id = await bench.request()
    await node.turn()
    assert not is_protected(node)
    bench.clock.advance(ADOPT_AFTER_S)
    await node.turn()
    assert is_protected(node)
    assert (bench.state(tx_id), bench.sent_nonces()) == (State.QUEUED, [0])


async def test_a_take_over_protects_a_strict_signer_though_nobody_asks_for_a_nonce(bench: Bench) -> None:
    old = await begun(bench, STRICT)
    await old.release()
    use_key_elsewhere(bench)
    new = bench.node(STRICT, name="new")
    again_s = await new.turn()
    assert not is_protected(new)
    assert again_s == ADOPT_AFTER_S
    bench.clock.advance(again_s)
    await new.turn()
    assert is_protected(new)


async def test_a_take_over_that_meets_a_liar_goes_on(bench: Bench) -> None:
    old = await begun(bench, STRICT)
    await old.release()
    new = bench.node(STRICT, name="new")
    tx_id = await bench.request()
    with lying(bench):
        await new.turn()
    assert bench.state(tx_id) is State.QUEUED
    bench.clock.advance(ADOPT_AFTER_S)
    await new.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).nonce) == (State.SUBMITTED, 1)


async def test_what_was_seen_before_an_alarm_does_not_count_after_it(bench: Bench) -> None:
    """A person decided to go on: the next alarm takes two looks again."""
    node = await begun(bench, WARY_STRICT)
    use_key_elsewhere(bench)
    await bench.request()
    await node.turn()
    bench.clock.advance(ADOPT_AFTER_S)
    await node.turn()
    assert is_protected(node)
    await bench.ask("unprotect", decision="keep")
    await node.turn()
    assert not is_protected(node)
    bench.clock.advance(ADOPT_AFTER_S)
    await node.turn()
    assert is_protected(node)
    assert bench.sent_nonces() == [0]
