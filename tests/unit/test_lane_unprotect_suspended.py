"""A person lets a protected signer go on while a suspended transaction holds a nonce: no hole, and nothing twice."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode
from fencepost.application.lane import Policy
from fencepost.domain.ids import TxHash
from fencepost.domain.managed import Receipt
from fencepost.domain.states import CursorState, State
from fencepost.lab.sim.chain import Lost


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def suspended(bench: Bench, node: BenchNode) -> UUID:
    """It has a nonce, and its bytes went out."""
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("suspend", tx_id)
    await node.turn()
    assert bench.state(tx_id) is State.SUSPENDED
    return tx_id


async def adopted(bench: Bench, node: BenchNode) -> None:
    wish = await bench.ask("unprotect", decision="adopt")
    await node.turn(2)
    assert bench.database.outcome(wish) == "active, adopt"


@pytest.mark.parametrize("policy", [QUICK, STRICT])
async def test_one_whose_nonce_a_stranger_has_is_lost_and_the_next_one_follows(
    bench: Bench, policy: Policy
) -> None:
    node = bench.node(policy)
    held = await suspended(bench, node)
    await bench.ask("protect", reason="the key was seen elsewhere")
    await node.turn()
    bench.chain.stranger(bench.signer.address, nonce=0)
    bench.chain.stranger(bench.signer.address)
    bench.chain.mine()
    await adopted(bench, node)
    assert bench.state(held) is State.FAILED
    assert "not ours" in (bench.tx(held).error or "")
    later = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(later), bench.tx(later).nonce) == (State.CONFIRMED, 2)


async def test_one_that_was_never_sent_keeps_its_nonce(bench: Bench) -> None:
    node = bench.node()
    bench.chain.fault_next_sends(Lost.BEFORE)
    held = await suspended(bench, node)
    await bench.ask("protect", reason="let me look")
    await node.turn()
    await adopted(bench, node)
    later = await bench.request()
    await node.turn()
    assert (bench.state(held), bench.tx(held).nonce, bench.tx(later).nonce) == (State.SUSPENDED, 0, 1)
    await bench.ask("resume", held)
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert (bench.state(held), bench.state(later)) == (State.CONFIRMED, State.CONFIRMED)


async def test_one_that_is_mined_is_not_lost_though_its_receipt_is_late(bench: Bench) -> None:
    node = bench.node()
    held = await suspended(bench, node)
    await bench.ask("protect", reason="let me look")
    await node.turn()
    bench.chain.mine(2)
    receipts = bench.chain.receipts

    async def none_yet(hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        return [None for _ in hashes]

    bench.chain.receipts = none_yet  # type: ignore[method-assign]  # a node whose receipts lag
    await adopted(bench, node)
    assert bench.state(held) is State.SUSPENDED
    bench.chain.receipts = receipts  # type: ignore[method-assign]  # they are there now
    await bench.ask("resume", held)
    await node.turn(2)
    assert bench.state(held) is State.CONFIRMED
    assert bench.database.cursors[bench.signer].state is CursorState.ACTIVE


async def test_a_death_between_letting_go_and_losing_it_is_finished_by_the_next_owner(bench: Bench) -> None:
    node = bench.node()
    held = await suspended(bench, node)
    await bench.ask("protect", reason="the key was seen elsewhere")
    await node.turn()
    bench.chain.stranger(bench.signer.address, nonce=0)
    bench.chain.mine()
    sent = len(bench.chain.sent)
    await bench.ask("resume", held)  # as far as the first of the two commits comes
    await node.turn()
    assert bench.state(held) is State.SUBMITTED
    await node.release()
    other = bench.node(name="other")
    await adopted(bench, other)
    assert bench.state(held) is State.FAILED
    assert len(bench.chain.sent) == sent
