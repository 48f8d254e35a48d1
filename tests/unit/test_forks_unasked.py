"""A fork that undid what had ended is not forgotten: not while the database is away, not when its holder dies over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench
from fencepost.application.reconcile import RECENT
from fencepost.application.step import step
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Signer
from fencepost.domain.states import State
from fencepost.lab.sim.ledger import FakeLedger
from fencepost.runtime.seeking import HELD_ELSEWHERE_S


class _Unreachable(FakeLedger):
    """Does not answer as long as it is down."""

    down: bool = False

    async def signers_finished_since(self, chain_id: int, block_number: int) -> Sequence[Signer]:
        self._require_up()
        return await super().signers_finished_since(chain_id, block_number)

    async def newest_ended_blocks(self, chain_id: int, *, limit: int) -> Sequence[BlockRef]:
        self._require_up()
        return await super().newest_ended_blocks(chain_id, limit=limit)

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        self._require_up()
        return await super().signers_with_work(chain_ids, limit=limit, after=after)

    def _require_up(self) -> None:
        if self.down:
            raise ConnectionError("the database is gone")


async def test_what_a_fork_undid_is_opened_again_once_the_database_answers() -> None:
    bench = Bench()
    ledger = _Unreachable(bench.database, node="node", incarnation=uuid4())
    node = bench.node(ledger=ledger)
    tx_id = await bench.request()
    await node.turn()
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    await node.release()

    ledger.down = True
    bench.chain.reorg(2)
    with pytest.raises(ConnectionError):
        await node.node.heads_once(CHAIN_ID)  # the view has moved on: this fork is seen once
    ledger.down = False
    await node.node.heads_once(CHAIN_ID)
    ledger.down = True
    with pytest.raises(ConnectionError):
        await node.node.seek_once()
    ledger.down = False
    assert await node.node.seek_once() == 1
    await step(node.lane)
    assert bench.state(tx_id) is not State.CONFIRMED


async def test_what_a_fork_undid_is_opened_again_though_its_holder_died_over_it() -> None:
    bench = Bench()
    holder, other = bench.node(name="holder"), bench.node(name="other")
    await other.node.heads_once(CHAIN_ID)
    tx_id = await bench.request()
    await holder.turn()
    bench.chain.mine(2)
    await holder.turn(2)
    await other.node.heads_once(CHAIN_ID)
    assert bench.state(tx_id) is State.CONFIRMED

    bench.chain.reorg(2)
    await other.node.heads_once(CHAIN_ID)
    assert await other.node.seek_once() == 0  # it is held: its holder will see to it, if it lives
    bench.clock.advance(60.0)
    assert await other.node.seek_once() == 1
    await step(other.lane)
    assert bench.state(tx_id) is not State.CONFIRMED


@pytest.mark.parametrize("is_included_again", [True, False])
async def test_what_a_fork_undid_while_nobody_ran_is_opened_again_by_whoever_starts(
    is_included_again: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    bench = Bench()
    before = bench.node(name="before")
    tx_id = await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    await before.release()

    bench.chain.reorg(2, keep=[bench.tx(tx_id).latest.signed.hash] if is_included_again else [])
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)  # its view begins: it shows no fork
    assert await after.node.seek_once() == 1
    await step(after.lane)
    assert bench.events(tx_id).count("Fork") == 1


async def test_a_fork_below_the_beginning_of_a_view_is_found() -> None:
    bench = Bench()
    before = bench.node(name="before")
    tx_id = await bench.request()
    await before.turn()
    bench.chain.mine(3)
    await before.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    await before.release()
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)  # its view begins at the head: what has ended lies below
    bench.chain.reorg(3)
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.seek_once() == 1
    await step(after.lane)
    assert bench.events(tx_id).count("Fork") == 1


async def test_what_an_earlier_fork_undid_is_found_below_a_block_that_stands() -> None:
    bench = Bench()
    before = bench.node(name="before")
    undone = await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    row = bench.tx(undone)
    bench.chain.reorg(2, keep=[row.latest.signed.hash])
    await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    await before.release()
    bench.database.txs[undone] = row  # as if whoever saw that fork had died before it wrote anything
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.seek_once() == 1


async def test_a_start_takes_nothing_whose_block_stands() -> None:
    bench = Bench()
    before = bench.node(name="before")
    await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    await before.release()
    after = bench.node(name="after")
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.seek_once() == 0


async def test_a_start_looks_back_again_when_the_database_did_not_answer() -> None:
    bench = Bench()
    before = bench.node(name="before")
    await bench.request()
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    await before.release()
    bench.chain.reorg(2)
    ledger = _Unreachable(bench.database, node="after", incarnation=uuid4())
    after = bench.node(ledger=ledger)
    ledger.down = True
    with pytest.raises(ConnectionError):
        await after.node.heads_once(CHAIN_ID)
    ledger.down = False
    await after.node.heads_once(CHAIN_ID)
    assert await after.node.seek_once() == 1


@pytest.mark.parametrize("count", [3, 16, 40, 150])
async def test_a_new_owner_opens_again_all_that_a_fork_undid_while_nobody_told_it(count: int) -> None:
    """Blocks hold many of one signer's transactions: a glance at the newest few is not enough."""
    bench = Bench()
    wide = replace(QUICK, max_in_flight=256)
    standing = await bench.request()
    before = bench.node(wide, name="before")
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    tx_ids = await bench.requests(count)
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    assert {bench.state(tx_id) for tx_id in tx_ids} == {State.CONFIRMED}
    await before.release()

    bench.chain.reorg(2)
    after = bench.node(wide, name="after")
    await after.turn()
    assert State.CONFIRMED not in {bench.state(tx_id) for tx_id in tx_ids}
    assert bench.state(standing) is State.CONFIRMED


async def test_what_a_fork_undid_is_found_below_much_that_ended_after_it() -> None:
    """The fork comes while a step is under way that ends others, and its lane is lost before it looks into the fork."""
    bench = Bench()
    wide = replace(QUICK, max_in_flight=4 * RECENT)
    holder, other = bench.node(wide, name="holder"), bench.node(wide, name="other")
    undone = await bench.requests(2)
    await holder.turn()
    bench.chain.mine(2)
    await holder.turn(2)
    await other.node.heads_once(CHAIN_ID)
    assert {bench.state(tx_id) for tx_id in undone} == {State.CONFIRMED}

    bench.chain.reorg(2, keep=[bench.tx(tx_id).latest.signed.hash for tx_id in undone])
    for node in (holder, other):
        await node.node.heads_once(CHAIN_ID)
    holder.lane.forked_at = None  # its step had begun before
    later = await bench.requests(2 * RECENT)
    await holder.turn()
    bench.chain.mine(2)
    await holder.turn(2)
    assert {bench.state(tx_id) for tx_id in later} == {State.CONFIRMED}
    await holder.release()

    bench.clock.advance(HELD_ELSEWHERE_S)
    await other.turn()
    assert [bench.events(tx_id).count("Fork") for tx_id in undone] == [1, 1]
