"""A deep fork while nobody watched: what had ended is found below a window that is full of what has not."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from fakes.bench import QUICK, Bench
from fencepost.application.reconcile import MOST_REOPENED, RECENT
from fencepost.domain.states import State


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("window", [RECENT - 1, RECENT, 3 * RECENT])
async def test_what_a_fork_undid_below_a_full_window_is_opened_again(bench: Bench, window: int) -> None:
    wide = replace(QUICK, max_in_flight=window)
    before = bench.node(wide, name="before")
    undone = await before.ended(2)
    waiting = await bench.requests(window)
    await before.turn()
    assert len(before.lane.unmined) == window
    await before.release()

    # The same nonces are consumed in other blocks: only a look at the blocks tells it.
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


async def test_one_that_a_person_holds_back_does_not_hide_what_ended_above_it(bench: Bench) -> None:
    """It is mined and stays in flight for as long as the person wants; everything above it ends meanwhile."""
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
async def test_more_than_one_look_holds_is_opened_again_to_the_last(
    bench: Bench, *, is_included_again: bool
) -> None:
    wide = replace(QUICK, max_in_flight=256)
    before = bench.node(wide, name="before")
    standing = await before.ended(3)
    height = bench.chain.height
    undone: list[UUID] = []
    while len(undone) <= MOST_REOPENED + RECENT:
        undone += await before.ended(250)
    await before.release()

    hashes = [bench.tx(tx_id).latest.signed.hash for tx_id in undone] if is_included_again else []
    bench.chain.reorg(bench.chain.height - height, keep=hashes)
    after = bench.node(wide, name="after")
    await after.turn()
    assert [bench.events(tx_id).count("Fork") for tx_id in undone] == [1] * len(undone)
    assert [bench.events(tx_id).count("Fork") for tx_id in standing] == [0] * len(standing)
