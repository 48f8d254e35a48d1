"""Forks that are easily missed: by a view that was behind, by an owner that died over one, by a head that was not seen whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench, BenchNode
from fencepost.application.ports import Header, LaneWrite, Written
from fencepost.application.reconcile import RECENT
from fencepost.application.step import step
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.states import State
from fencepost.lab.sim.ledger import FakeLedger
from fencepost.runtime.following import ASK_AFTER_S, FIRST_PAUSE_S

WIDE = replace(QUICK, max_in_flight=8 * RECENT)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def took_over(bench: Bench, node: BenchNode) -> None:
    """Without a look at the chain: the view is what it was."""
    node.node.hint(bench.signer)
    assert await node.node.seek_once() == 1
    await step(node.lane)


def hashes(bench: Bench, txs: Sequence[UUID]) -> list[TxHash]:
    return [bench.tx(tx_id).latest.signed.hash for tx_id in txs]


@pytest.mark.parametrize("count", [2, RECENT, 4 * RECENT])
async def test_a_view_that_was_behind_at_the_take_over_is_looked_at_again_when_it_has_caught_up(
    bench: Bench, count: int
) -> None:
    before, after = bench.node(WIDE, name="before"), bench.node(WIDE, name="after")
    await before.ended(1)
    await after.node.heads_once(CHAIN_ID)  # and for a while it hears of no further block
    undone = await before.ended(count)
    await before.release()
    bench.chain.reorg(2, keep=hashes(bench, undone))  # mined again in other blocks: no nonce tells it

    await took_over(bench, after)
    assert not after.lane.is_idle  # what is not known yet is work
    change = await after.node.heads_once(CHAIN_ID)
    assert change.forked_at is None  # seen from here nothing was replaced
    await step(after.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in undone} == {1}
    assert after.lane.unseen_from is None


async def test_a_view_that_went_back_is_looked_at_again_when_it_has_grown(bench: Bench) -> None:
    """An endpoint that is behind shows less of the new fork than was seen of the old one."""
    node = bench.node(WIDE)
    await node.ended(1)
    undone = await node.ended(3)
    height = bench.chain.height
    bench.chain.reorg(2, keep=hashes(bench, undone))
    behind = bench.chain.behind(bench.chain.height - height + 2)
    whole, node.node.watches[CHAIN_ID].chain = bench.chain, behind
    assert (await node.node.heads_once(CHAIN_ID)).forked_at is not None
    await step(node.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in undone} == {0}

    node.node.watches[CHAIN_ID].chain = whole
    assert (await node.node.heads_once(CHAIN_ID)).forked_at is None
    await step(node.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in undone} == {1}


async def test_what_stands_once_the_view_has_caught_up_is_left_alone(bench: Bench) -> None:
    before, after = bench.node(WIDE, name="before"), bench.node(WIDE, name="after")
    await after.node.heads_once(CHAIN_ID)
    standing = await before.ended(3)
    await before.release()
    await took_over(bench, after)
    await after.node.heads_once(CHAIN_ID)
    await step(after.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in standing} == {0}
    assert after.lane.unseen_from is None
    assert after.lane.is_idle


async def test_nothing_ends_above_what_may_be_undone(bench: Bench) -> None:
    """So the next owner finds it among the newest, should this one die before it has looked."""
    node = bench.node(WIDE)
    ended_before = await node.ended(2)
    later = await bench.requests(2)
    await node.turn()
    bench.chain.mine()
    height = bench.chain.height
    bench.chain.reorg(3, keep=hashes(bench, ended_before))
    bench.chain.mine(2)
    node.node.watches[CHAIN_ID].chain = bench.chain.behind(bench.chain.height - height + 3)
    await node.node.heads_once(CHAIN_ID)
    await step(node.lane)
    assert node.lane.is_unsure
    node.lane.unseen_from = bench.chain.height + 1  # it stays so for one block longer
    node.node.watches[CHAIN_ID].chain = bench.chain
    await node.node.heads_once(CHAIN_ID)
    await step(node.lane)
    assert {bench.state(tx_id) for tx_id in later} == {State.TRACKING}
    bench.chain.mine()
    await node.node.heads_once(CHAIN_ID)
    await step(node.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in ended_before} == {1}
    assert {bench.state(tx_id) for tx_id in (*ended_before, *later)} == {State.CONFIRMED}


async def test_who_dies_over_a_fork_leaves_what_it_had_not_looked_at_to_the_next_owner(bench: Bench) -> None:
    """The newest are opened again first. If they ended again at once, they would hide those below."""

    class Dying(FakeLedger):
        reopenings = 0

        async def commit(self, write: LaneWrite) -> Written:
            self.reopenings += any(change.before.is_terminal for change in write.changes)
            if self.reopenings > 2:
                raise ConnectionError("the database is gone, and so is this process")
            return await super().commit(write)

    before = bench.node(WIDE, name="before")
    dying = bench.node(WIDE, ledger=Dying(bench.database, node="dying", incarnation=uuid4()))
    await dying.node.heads_once(CHAIN_ID)
    undone = await before.ended(7 * RECENT)
    await before.release()
    bench.chain.reorg(2, keep=hashes(bench, undone))
    with pytest.raises(ConnectionError):
        await dying.turn()
    assert [bench.events(tx_id).count("Fork") for tx_id in undone] == [0] * 2 * RECENT + [1] * 5 * RECENT
    bench.clock.advance(60.0)

    after = bench.node(WIDE, name="after")
    await after.turn(2)
    assert {bench.events(tx_id).count("Fork") for tx_id in undone} == {1}
    assert {bench.state(tx_id) for tx_id in undone} == {State.CONFIRMED}


async def test_what_an_owner_that_is_behind_ends_after_the_fork_was_asked_about_is_asked_for_again(
    bench: Bench,
) -> None:
    late, other = bench.node(name="late"), bench.node(name="other")
    await other.node.heads_once(CHAIN_ID)
    tx_id = await bench.request()
    await late.turn()
    bench.chain.mine(2)
    await other.node.heads_once(CHAIN_ID)
    before_the_fork = bench.chain.behind(0)
    late.lane.chain = late.node.watches[CHAIN_ID].chain = before_the_fork
    bench.chain.reorg(2)
    assert (await other.node.heads_once(CHAIN_ID)).forked_at is not None
    await late.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    await late.release()  # and is gone: no work is left, nobody has a reason to look

    assert await other.node.seek_once() == 0
    bench.clock.advance(ASK_AFTER_S[1])
    bench.chain.mine()
    await other.node.heads_once(CHAIN_ID)
    assert await other.node.seek_once() == 1
    await step(other.lane)
    assert bench.state(tx_id) is not State.CONFIRMED


async def test_a_head_that_was_not_seen_whole_is_looked_at_again_though_no_other_comes(bench: Bench) -> None:
    async def one_head() -> AsyncGenerator[Header, None]:
        yield await bench.chain.head()
        await asyncio.Event().wait()

    node = bench.node()
    bench.chain.mine()
    node.node.following.heads[CHAIN_ID] = one_head  # type: ignore[index]  # a dict, for this once
    watch = node.node.watches[CHAIN_ID]
    watch.chain = dark = bench.chain.behind(0)
    dark.offline = True
    following = asyncio.create_task(node.node.following.run(CHAIN_ID))
    await asyncio.sleep(FIRST_PAUSE_S / 2)
    assert watch.view.head == -1
    dark.offline = False
    await asyncio.wait([following], timeout=4 * FIRST_PAUSE_S)
    following.cancel()
    assert watch.view.head == bench.chain.height


async def test_a_fork_that_comes_while_the_ledger_is_asked_about_another_is_asked_about_as_well(
    bench: Bench,
) -> None:
    class Slow(FakeLedger):
        """Meanwhile, the chain forks further down, and a lane that could not wait moves the view."""

        def __init__(self) -> None:
            super().__init__(bench.database, node="node", incarnation=uuid4())
            self.asked: list[int] = []

        async def signers_finished_since(self, chain_id: int, block_number: int) -> Sequence[Signer]:
            if not self.asked:
                bench.chain.reorg(4)
                await node.node.watches[CHAIN_ID].refresh()
            self.asked.append(block_number)
            return await super().signers_finished_since(chain_id, block_number)

    ledger = Slow()
    node = bench.node(ledger=ledger)
    bench.chain.mine(6)
    await node.node.heads_once(CHAIN_ID)
    bench.chain.mine(3)
    await node.node.heads_once(CHAIN_ID)
    bench.chain.reorg(1)
    await node.node.heads_once(CHAIN_ID)
    await node.node.heads_once(CHAIN_ID)
    assert len(ledger.asked) == 2
    assert ledger.asked[1] < ledger.asked[0]
