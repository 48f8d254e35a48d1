"""Forks that are easily missed: by a lagging view, by an owner that died, by an incompletely read head."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench, BenchNode
from fakes.rounds import run_alone
from fencepost.application.ports import Header, LaneWrite, Written
from fencepost.application.reconcile import MAX_REOPENED, RECENT_FINISHED
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.states import State
from fencepost.runtime.head_follower import CHECK_DELAYS_S, FIRST_PAUSE_S
from fencepost.testing import InMemoryLedger

WIDE = replace(QUICK, max_in_flight=8 * RECENT_FINISHED)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def took_over(bench: Bench, node: BenchNode) -> None:
    """Take over without a read of the chain: the view stays as it was."""
    node.node.hint(bench.signer)
    assert await node.node.acquire_once() == 1
    await run_alone(node.lane)


def hashes(bench: Bench, txs: Sequence[UUID]) -> list[TxHash]:
    return [bench.tx(tx_id).latest.signed.hash for tx_id in txs]


@pytest.mark.parametrize("count", [2, RECENT_FINISHED, 4 * RECENT_FINISHED])
async def test_a_view_that_lagged_at_the_take_over_is_checked_again_when_it_has_caught_up(
    bench: Bench, count: int
) -> None:
    before, after = bench.node(WIDE, name="before"), bench.node(WIDE, name="after")
    await before.ended(1)
    await after.node.heads_once(CHAIN_ID)  # then it gets no further block for a while
    undone = await before.ended(count)
    await before.release()
    bench.chain.reorg(2, keep=hashes(bench, undone))  # mined again in other blocks: no nonce shows it

    await took_over(bench, after)
    assert not after.lane.is_idle  # unknown finality is work
    change = await after.node.heads_once(CHAIN_ID)
    assert change.forked_at is None  # in this view nothing was replaced
    await run_alone(after.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in undone} == {1}
    assert after.lane.blocks.unseen_from is None


async def test_a_view_that_went_back_is_checked_again_when_it_has_grown(bench: Bench) -> None:
    """A lagging endpoint shows less of the new fork than was seen of the old one."""
    node = bench.node(WIDE)
    await node.ended(1)
    undone = await node.ended(3)
    height = bench.chain.height
    bench.chain.reorg(2, keep=hashes(bench, undone))
    behind = bench.chain.behind(bench.chain.height - height + 2)
    whole, node.node.chain_views[CHAIN_ID].chain = bench.chain, behind
    assert (await node.node.heads_once(CHAIN_ID)).forked_at is not None
    await run_alone(node.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in undone} == {0}

    node.node.chain_views[CHAIN_ID].chain = whole
    assert (await node.node.heads_once(CHAIN_ID)).forked_at is None
    await run_alone(node.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in undone} == {1}


async def test_transactions_in_the_canonical_chain_are_not_reopened(bench: Bench) -> None:
    before, after = bench.node(WIDE, name="before"), bench.node(WIDE, name="after")
    await after.node.heads_once(CHAIN_ID)
    standing = await before.ended(3)
    await before.release()
    await took_over(bench, after)
    await after.node.heads_once(CHAIN_ID)
    await run_alone(after.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in standing} == {0}
    assert after.lane.blocks.unseen_from is None
    assert after.lane.is_idle


async def test_no_transaction_finishes_above_one_that_may_be_undone(bench: Bench) -> None:
    """So the next owner finds it among the newest if this one dies before the check."""
    node = bench.node(WIDE)
    ended_before = await node.ended(2)
    later = await bench.requests(2)
    await node.turn()
    bench.chain.mine()
    height = bench.chain.height
    bench.chain.reorg(3, keep=hashes(bench, ended_before))
    bench.chain.mine(2)
    node.node.chain_views[CHAIN_ID].chain = bench.chain.behind(bench.chain.height - height + 3)
    await node.node.heads_once(CHAIN_ID)
    await run_alone(node.lane)
    assert node.lane.finality_unknown
    node.lane.blocks.unseen_from = bench.chain.height + 1  # one block longer
    node.node.chain_views[CHAIN_ID].chain = bench.chain
    await node.node.heads_once(CHAIN_ID)
    await run_alone(node.lane)
    assert {bench.state(tx_id) for tx_id in later} == {State.TRACKING}
    bench.chain.mine()
    await node.node.heads_once(CHAIN_ID)
    await run_alone(node.lane)
    assert {bench.events(tx_id).count("Fork") for tx_id in ended_before} == {1}
    assert {bench.state(tx_id) for tx_id in (*ended_before, *later)} == {State.CONFIRMED}


async def test_an_owner_that_dies_during_a_reopening_leaves_the_rest_to_the_next_owner(bench: Bench) -> None:
    """The newest are reopened first. If they finished again immediately, they would hide those below."""

    class Dying(InMemoryLedger):
        reopenings = 0

        async def commit(self, write: LaneWrite) -> Written:
            self.reopenings += any(change.before.is_terminal for change in write.changes)
            if self.reopenings > 2:
                raise ConnectionError("the database is gone, and so is this process")
            return await super().commit(write)

    before = bench.node(WIDE, name="before")
    dying = bench.node(WIDE, ledger=Dying(bench.database, node="dying", incarnation=uuid4()))
    await dying.node.heads_once(CHAIN_ID)
    undone = await before.ended(7 * RECENT_FINISHED)
    await before.release()
    bench.chain.reorg(2, keep=hashes(bench, undone))
    with pytest.raises(ConnectionError):
        await dying.turn()
    assert [bench.events(tx_id).count("Fork") for tx_id in undone] == [0] * 2 * RECENT_FINISHED + [
        1
    ] * 5 * RECENT_FINISHED
    bench.clock.advance(60.0)

    after = bench.node(WIDE, name="after")
    await after.turn(2)
    assert {bench.events(tx_id).count("Fork") for tx_id in undone} == {1}
    assert {bench.state(tx_id) for tx_id in undone} == {State.CONFIRMED}


async def test_a_transaction_finished_by_a_lagging_owner_after_the_fork_query_is_queried_again(
    bench: Bench,
) -> None:
    late, other = bench.node(name="late"), bench.node(name="other")
    await other.node.heads_once(CHAIN_ID)
    tx_id = await bench.request()
    await late.turn()
    bench.chain.mine(2)
    await other.node.heads_once(CHAIN_ID)
    before_the_fork = bench.chain.behind(0)
    late.node.chain_views[CHAIN_ID].chain = before_the_fork
    late.lane.ports = replace(late.lane.ports, chain=before_the_fork)
    bench.chain.reorg(2)
    assert (await other.node.heads_once(CHAIN_ID)).forked_at is not None
    await late.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    await late.release()  # it is gone: no work is left, and no node has a reason to read

    assert await other.node.acquire_once() == 0
    bench.clock.advance(CHECK_DELAYS_S[1])
    bench.chain.mine()
    await other.node.heads_once(CHAIN_ID)
    assert await other.node.acquire_once() == 1
    await run_alone(other.lane)
    assert bench.state(tx_id) is not State.CONFIRMED


async def test_an_incompletely_read_head_is_read_again_without_a_new_head(bench: Bench) -> None:
    async def one_head() -> AsyncGenerator[Header, None]:
        yield await bench.chain.head()
        await asyncio.Event().wait()

    node = bench.node()
    bench.chain.mine()
    node.node.head_follower.heads[CHAIN_ID] = one_head  # type: ignore[index]  # a dict, for this once
    watch = node.node.chain_views[CHAIN_ID]
    watch.chain = dark = bench.chain.behind(0)
    dark.offline = True
    head_follower = asyncio.create_task(node.node.head_follower.run(CHAIN_ID))
    await asyncio.sleep(FIRST_PAUSE_S / 2)
    assert watch.view.head == -1
    dark.offline = False
    await asyncio.wait([head_follower], timeout=4 * FIRST_PAUSE_S)
    head_follower.cancel()
    assert watch.view.head == bench.chain.height


async def test_a_fork_during_the_query_for_another_is_queried_too(
    bench: Bench,
) -> None:
    class Slow(InMemoryLedger):
        """During the query the chain forks further down, and a lane refreshes the view."""

        def __init__(self) -> None:
            super().__init__(bench.database, node="node", incarnation=uuid4())
            self.asked: list[int] = []

        async def signers_finished_since(
            self, chain_id: int, block_number: int, *, limit: int, after: Signer | None = None
        ) -> Sequence[Signer]:
            if not self.asked:
                bench.chain.reorg(4)
                await node.node.chain_views[CHAIN_ID].refresh()
            self.asked.append(block_number)
            return await super().signers_finished_since(chain_id, block_number, limit=limit, after=after)

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


# ---- finished transactions below a window full of unfinished ones


@pytest.mark.parametrize("window", [RECENT_FINISHED - 1, RECENT_FINISHED, 3 * RECENT_FINISHED])
async def test_transactions_undone_below_a_full_window_are_reopened(bench: Bench, window: int) -> None:
    wide = replace(QUICK, max_in_flight=window)
    before = bench.node(wide, name="before")
    undone = await before.ended(2)
    waiting = await bench.requests(window)
    await before.turn()
    assert len(before.lane.unmined) == window
    await before.release()

    # The same nonces are consumed in other blocks: only the blocks show it.
    bench.chain.reorg(2, keep=[bench.tx(tx_id).latest.signed.hash for tx_id in undone])
    after = bench.node(wide, name="after")
    await after.turn()
    assert [bench.events(tx_id).count("Fork") for tx_id in undone] == [1, 1]
    bench.chain.mine(2)
    await after.turn(2)
    for tx_id in (*undone, *waiting):
        mined = bench.tx(tx_id).mined
        assert bench.state(tx_id) is State.CONFIRMED
        assert mined is not None
        assert bench.chain.is_canonical(mined.block.number, mined.block.hash)


async def test_a_suspended_transaction_does_not_hide_finished_ones_above_it(bench: Bench) -> None:
    """It is mined and stays in flight while suspended; everything above it finishes meanwhile."""
    wide = replace(QUICK, max_in_flight=256)
    before = bench.node(wide, name="before")
    held = await bench.request()
    await before.turn()
    await bench.ask("suspend", held)
    await before.turn()
    bench.chain.mine(2)
    await before.turn(2)
    assert bench.state(held) is State.SUSPENDED
    for _ in range(3):
        standing = await before.ended(200)
    undone = await before.ended(2)
    await before.release()

    bench.chain.reorg(2, keep=[bench.tx(tx_id).latest.signed.hash for tx_id in undone])
    after = bench.node(wide, name="after")
    await after.turn()
    assert [bench.events(tx_id).count("Fork") for tx_id in undone] == [1, 1]
    assert {bench.state(tx_id) for tx_id in standing} == {State.CONFIRMED}


@pytest.mark.parametrize("is_included_again", [False, True])
async def test_more_undone_transactions_than_one_read_returns_are_all_reopened(
    bench: Bench, *, is_included_again: bool
) -> None:
    wide = replace(QUICK, max_in_flight=256)
    before = bench.node(wide, name="before")
    standing = await before.ended(3)
    height = bench.chain.height
    undone: list[UUID] = []
    while len(undone) <= MAX_REOPENED + RECENT_FINISHED:
        undone += await before.ended(250)
    await before.release()

    hashes = [bench.tx(tx_id).latest.signed.hash for tx_id in undone] if is_included_again else []
    bench.chain.reorg(bench.chain.height - height, keep=hashes)
    after = bench.node(wide, name="after")
    await after.turn()
    assert [bench.events(tx_id).count("Fork") for tx_id in undone] == [1] * len(undone)
    assert [bench.events(tx_id).count("Fork") for tx_id in standing] == [0] * len(standing)
