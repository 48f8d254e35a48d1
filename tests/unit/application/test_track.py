"""From inclusion to the end: depth, forks, and reorgs that drop a block, early or late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode
from fakes.rounds import run_alone
from fencepost.application.lane import LaneSettings
from fencepost.domain.ids import TxHash
from fencepost.domain.states import State
from fencepost.domain.transaction_state import ManagedTx
from fencepost.errors import RpcUnavailable


@pytest.fixture
def bench() -> Bench:
    return Bench()


def deep(required: int) -> LaneSettings:
    return replace(QUICK, required=required)


async def mined(bench: Bench, node: BenchNode, *, on_top: int = 0) -> tuple[UUID, TxHash]:
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine(1 + on_top)
    await node.turn()
    tx_hash = bench.tx(tx_id).hash
    assert tx_hash is not None
    return tx_id, tx_hash


def details(bench: Bench, tx_id: UUID, event: str) -> list[Mapping[str, Any]]:
    return [row.detail for row in bench.database.journal_of(tx_id) if row.event == event]


# ---- depth


@pytest.mark.parametrize("required", [0, 1, 3])
async def test_a_transaction_finishes_at_its_required_confirmations_and_not_before(
    bench: Bench, required: int
) -> None:
    node = bench.node(deep(required))
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine()
    for on_top in range(required + 1):
        await node.turn()
        expected = State.CONFIRMED if on_top == required else State.TRACKING
        assert bench.state(tx_id) is expected, on_top
        bench.chain.mine()
    assert len(bench.tx(tx_id).confirmations) == required


async def test_confirmations_are_appended_block_by_block(bench: Bench) -> None:
    node = bench.node(deep(4))
    tx_id, _ = await mined(bench, node)
    for _ in range(3):
        bench.chain.mine()
        await node.turn()
    news = details(bench, tx_id, "Confirm")
    assert [(detail["newFork"], detail["count"], len(detail["blocks"])) for detail in news] == [
        (False, 1, 1),
        (False, 2, 1),
        (False, 3, 1),
    ]


@pytest.mark.parametrize("tag", ["safe", "finalized"])
async def test_a_transaction_may_wait_for_the_finalized_block(bench: Bench, tag: str) -> None:
    policy = replace(QUICK, required="safe") if tag == "safe" else replace(QUICK, required="finalized")
    node = bench.node(policy)
    tx_id, _ = await mined(bench, node, on_top=1)
    assert bench.state(tx_id) is State.TRACKING
    bench.chain.mine()  # the fake chain settles the block two below its head
    await node.turn()
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_reverted_transaction_fails_at_depth_with_its_reason(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    tx_hash = bench.tx(tx_id).latest.signed.hash
    bench.chain.reverting[tx_hash] = "not enough"
    bench.chain.mine()
    await node.turn()
    assert bench.state(tx_id) is State.TRACKING
    bench.chain.mine()
    await node.turn()
    assert (bench.state(tx_id), bench.tx(tx_id).error) == (State.FAILED, "reverted: not enough")


async def test_an_unmined_transaction_needs_no_receipt_read_until_a_block_contains_it(bench: Bench) -> None:
    node = bench.node()
    await bench.request()
    await node.turn(3)
    asked = node.observer.counts["receipts"]
    bench.chain.mine(3, only=())
    await node.turn(3)
    assert node.observer.counts["receipts"] == asked
    bench.chain.mine()
    await node.turn()
    assert node.observer.counts["receipts"] == asked + 1


async def test_a_failed_receipt_read_is_repeated_immediately(bench: Bench) -> None:
    node = bench.node(replace(QUICK, resubmit_enabled=False))
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    node.lane.blocks.must_fetch_receipts = True  # blocks were missed
    bench.chain.offline = True
    with pytest.raises(RpcUnavailable):
        await run_alone(node.lane)
    bench.chain.offline = False
    await run_alone(node.lane)
    assert bench.state(tx_id) is State.TRACKING


# ---- reorgs


async def test_replaced_confirmations_replace_the_list(bench: Bench) -> None:
    node = bench.node(deep(5))
    tx_id, _ = await mined(bench, node, on_top=2)
    old = bench.tx(tx_id).confirmations
    bench.chain.reorg(2)
    await node.turn()
    tx = bench.tx(tx_id)
    assert tx.state is State.TRACKING
    assert len(tx.confirmations) == 3
    assert not set(old) & set(tx.confirmations)
    (fork,) = details(bench, tx_id, "Fork")
    assert (fork["newFork"], fork["count"], len(fork["blocks"])) == (True, 3, 3)


async def test_a_partly_replaced_list_is_a_new_fork(bench: Bench) -> None:
    node = bench.node(deep(5))
    tx_id, _ = await mined(bench, node, on_top=3)
    old = bench.tx(tx_id).confirmations
    bench.chain.reorg(1)
    await node.turn()
    new = bench.tx(tx_id).confirmations
    assert (old[:2], len(new)) == (new[:2], 4)
    assert len(details(bench, tx_id, "Fork")) == 1


async def test_a_dropped_block_removes_its_receipt(bench: Bench) -> None:
    node = bench.node(deep(3))
    tx_id, _ = await mined(bench, node, on_top=1)
    bench.chain.reorg(2)  # back in the pool
    await node.turn()
    tx = bench.tx(tx_id)
    assert (tx.state, tx.mined, tx.confirmations) == (State.SUBMITTED, None, ())
    bench.chain.mine(4)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_transaction_dropped_by_a_reorg_is_sent_again(bench: Bench) -> None:
    node = bench.node(deep(3))
    tx_id, tx_hash = await mined(bench, node, on_top=1)
    bench.chain.reorg(2)
    bench.chain.drop(tx_hash)
    await node.turn()
    assert bench.chain.pool == {tx_hash}
    bench.chain.mine(4)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert len(bench.tx(tx_id).attempts) == 1


async def test_a_transaction_included_again_by_a_reorg_is_tracked_in_its_new_block(bench: Bench) -> None:
    node = bench.node(deep(3))
    tx_id, tx_hash = await mined(bench, node, on_top=1)
    before = bench.tx(tx_id).mined
    sent = len(bench.chain.sent)
    bench.chain.reorg(2, keep=[tx_hash])
    await node.turn()
    after = bench.tx(tx_id).mined
    assert before is not None
    assert after is not None
    assert (bench.state(tx_id), after.block != before.block) == (State.TRACKING, True)
    assert len(bench.chain.sent) == sent
    bench.chain.mine(3)
    await node.turn()
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_foreign_transaction_in_the_new_fork_protects(bench: Bench) -> None:
    node = bench.node(deep(3))
    tx_id, tx_hash = await mined(bench, node, on_top=1)
    bench.chain.reorg(2)
    bench.chain.drop(tx_hash)
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    bench.chain.mine(2)
    for _ in range(4):
        await node.turn()
        bench.clock.advance(61)
    assert node.lane.is_protected
    assert bench.state(tx_id) is State.SUBMITTED


async def test_several_dropped_transactions_return_in_order_after_a_reorg(bench: Bench) -> None:
    node = bench.node(deep(3))
    txs = await bench.requests(5)
    await node.turn()
    bench.chain.mine()
    await node.turn()
    bench.chain.reorg(1)
    for tx_id in txs:
        bench.chain.drop(bench.tx(tx_id).latest.signed.hash)
    before = len(bench.chain.sent)
    await node.turn()
    assert bench.sent_nonces()[before:] == [0, 1, 2, 3, 4]
    bench.chain.mine(4)
    await node.turn(2)
    assert {bench.state(tx_id) for tx_id in txs} == {State.CONFIRMED}


# ---- deeper than the depth


async def ended(bench: Bench, node: BenchNode) -> tuple[UUID, TxHash]:
    tx_id, tx_hash = await mined(bench, node, on_top=1)
    await node.turn()
    assert bench.state(tx_id) is State.CONFIRMED
    return tx_id, tx_hash


async def test_a_reorg_deeper_than_the_depth_reopens_a_transaction(bench: Bench) -> None:
    node = bench.node()
    tx_id, tx_hash = await ended(bench, node)
    bench.chain.reorg(2)
    bench.chain.drop(tx_hash)
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    assert bench.chain.pool == {tx_hash}
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert bench.tx(tx_id).nonce == 0


async def test_a_reopened_transaction_that_is_included_again_finishes_again(bench: Bench) -> None:
    node = bench.node()
    tx_id, tx_hash = await ended(bench, node)
    bench.chain.reorg(2, keep=[tx_hash])
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert bench.events(tx_id).count("Finish") == 2
    assert len(bench.chain.sent) == 1


async def test_a_reorg_while_no_node_ran_is_found_at_take_over(bench: Bench) -> None:
    node = bench.node()
    tx_id, tx_hash = await ended(bench, node)
    await node.release()
    bench.chain.reorg(2)
    bench.chain.drop(tx_hash)
    other = bench.node(STRICT, name="other")
    await bench.request()
    await other.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    assert tx_hash in bench.chain.pool


async def test_a_signer_without_work_is_acquired_when_a_fork_undid_its_end(bench: Bench) -> None:
    node = bench.node()
    tx_id, tx_hash = await ended(bench, node)
    await node.release()
    bench.chain.reorg(2)
    bench.chain.drop(tx_hash)
    await node.node.heads_once(31_337)
    assert await node.node.acquire_once() == 1
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED


async def test_a_reopening_delayed_by_a_silent_endpoint_happens_later(bench: Bench) -> None:
    node = bench.node()
    tx_id, tx_hash = await ended(bench, node)
    bench.chain.reorg(2)
    bench.chain.drop(tx_hash)
    await node.node.heads_once(31_337)
    bench.chain.offline = True
    with pytest.raises(RpcUnavailable):
        await run_alone(node.lane)
    bench.chain.offline = False
    await run_alone(node.lane)
    assert bench.state(tx_id) is State.SUBMITTED


async def test_a_cancelled_transaction_undone_by_a_reorg_is_cancelled_again(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    await bench.ask("cancel", tx_id)
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CANCELLED
    bench.chain.reorg(2)
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    bench.chain.mine(2)
    await node.turn(2)
    tx: ManagedTx = bench.tx(tx_id)
    assert (tx.state, tx.error) == (State.CANCELLED, "cancelled by eve")


async def test_a_node_that_missed_many_blocks_restarts_its_view(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine(600)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_fork_seen_with_the_last_confirmation_is_recorded(bench: Bench) -> None:
    node = bench.node(replace(QUICK, required=3))
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn()
    assert len(bench.tx(tx_id).confirmations) == 1
    replaced = bench.tx(tx_id).confirmations[0]
    bench.chain.reorg(1)
    bench.chain.mine()
    await node.turn()
    assert bench.state(tx_id) is State.CONFIRMED
    rows = {row.event: row.detail for row in bench.database.journal_of(tx_id)}
    assert bench.events(tx_id)[-2:] == ["Fork", "Finish"]
    blocks = [[block.number, block.hash] for block in bench.tx(tx_id).confirmations]
    assert (rows["Fork"]["newFork"], rows["Fork"]["blocks"]) == (True, blocks)
    assert rows["Fork"]["replaced"] == [[replaced.number, replaced.hash]]
    assert (rows["Finish"]["newFork"], rows["Finish"]["blocks"]) == (True, blocks)
    assert node.observer.counts["new_fork"] == 1


async def test_the_last_confirmations_are_stored_with_the_end(bench: Bench) -> None:
    node = bench.node(replace(QUICK, required=3))
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn()
    bench.chain.mine(2)
    await node.turn()
    confirmed, finished = [row.detail for row in bench.database.journal_of(tx_id) if "blocks" in row.detail]
    shown = [*confirmed["blocks"], *finished["blocks"]]
    assert shown == [[block.number, block.hash] for block in bench.tx(tx_id).confirmations]
