"""The first step of a new owner: it reads before it sends, and sends bytes that may never have been sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench, BenchNode
from fakes.failing_call import Died
from fakes.rounds import run_alone
from fencepost.application.lane import LeaseUntrusted
from fencepost.domain.send_result import SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import SignedTx
from fencepost.errors import Fenced, RpcUnavailable


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def dies_before_the_send(bench: Bench) -> BenchNode:
    """Store bytes that are never sent; the owner dies, and its lease is released."""
    node = bench.node(name="old")
    sound = bench.chain.send

    async def dying(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        raise Died(f"with {len(txs)} to send")

    bench.chain.send = dying  # type: ignore[method-assign]  # the process ends here
    with pytest.raises(Died):
        await node.turn()
    bench.chain.send = sound  # type: ignore[method-assign]  # the chain itself is well
    await node.release()
    return node


async def test_mined_transactions_are_found_before_anything_is_sent(bench: Bench) -> None:
    old = bench.node(name="old")
    tx_id = await bench.request()
    await old.turn()
    await old.release()
    bench.chain.mine()
    await bench.node(name="new").turn()
    assert bench.state(tx_id) is State.TRACKING
    assert len(bench.chain.sent) == 1


async def test_possibly_unsent_bytes_are_sent_immediately(bench: Bench) -> None:
    old = bench.node(name="old")
    txs = await bench.requests(3)
    await old.turn()
    await old.release()
    for tx_id in txs:
        bench.chain.drop(bench.tx(tx_id).latest.signed.hash)
    await bench.node(name="new").turn()
    assert bench.sent_nonces() == [0, 1, 2, 0, 1, 2]
    assert len(bench.chain.pool) == 3


async def test_stored_unsent_bytes_are_sent_unchanged(bench: Bench) -> None:
    txs = await bench.requests(3)
    await dies_before_the_send(bench)
    stored = [bench.tx(tx_id).latest.signed for tx_id in txs]
    await bench.node(name="new").turn()
    assert bench.chain.sent == stored
    assert {bench.state(tx_id) for tx_id in txs} == {State.SUBMITTED}


async def test_stored_bytes_wait_while_the_lease_is_not_trusted(bench: Bench) -> None:
    await bench.request()
    await dies_before_the_send(bench)
    new = bench.node(name="new")
    await new.node.heads_once(CHAIN_ID)
    await new.node.acquire_once()
    bench.clock.advance(7)  # of a ten-second lease: too long without a renewal
    with pytest.raises(LeaseUntrusted):
        await run_alone(new.lane)
    assert bench.chain.sent == []
    await new.turn()
    assert len(bench.chain.sent) == 1


async def test_the_old_owner_is_fenced_at_its_next_write(bench: Bench) -> None:
    old = bench.node(name="old")
    await bench.request()
    await old.turn()
    lane = old.lane
    bench.clock.advance(20)
    new = bench.node(name="new")
    await bench.request()
    await new.turn()
    lane.term = lane.term.renewed(bench.clock.now_s())  # by its own clock it still trusts its lease
    lane.queue.may_be_longer = True
    bench.clock.advance(QUICK.resubmit_interval_s)
    lane.term = lane.term.renewed(bench.clock.now_s())
    rows = len(bench.database.journal)
    with pytest.raises(Fenced):
        await run_alone(lane)
    assert len(bench.database.journal) == rows
    assert old.observer.counts["fenced"] == 1


async def test_a_lane_does_not_start_before_the_chain_was_read(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.node.acquire_once()
    with pytest.raises(RpcUnavailable):
        await run_alone(node.lane)
    assert not node.lane.reconciled
