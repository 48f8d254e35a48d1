"""The shared view of a chain: linked, at the head after every look, and honest about what a fork replaced."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.bench import Bench
from fencepost.application.heads import MOST_CAUGHT_UP, ChainWatch, HeadChange
from fencepost.domain.ids import BlockHash
from fencepost.lab.sim.chain import FakeChain


async def hashes_of(chain: FakeChain, lowest: int, head: int) -> dict[int, BlockHash]:
    found = {}
    for number in range(lowest, head + 1):
        block = await chain.block(number)
        assert block is not None
        found[number] = block.header.hash
    return found


async def look(chain: FakeChain, watch: ChainWatch) -> HeadChange:
    """A look, and what must hold after it."""
    change = await watch.refresh()
    head = await chain.head()
    view = watch.view
    assert view.head == head.number
    assert view.covers(head.number)
    assert dict(view.hashes) == await hashes_of(chain, view.lowest, view.head)
    return change


# What happens between two looks: blocks on top, or a reorg of some depth.
happenings = st.lists(
    st.lists(st.tuples(st.sampled_from(["mine", "reorg"]), st.integers(1, 12)), max_size=3), max_size=8
)


@settings(max_examples=60)
@given(happenings, st.integers(1, 20))
async def test_the_view_is_the_chain_after_every_look(rounds: list[list[tuple[str, int]]], keep: int) -> None:
    chain = Bench().chain
    chain.mine(3)
    watch = ChainWatch(chain, keep=keep)
    assert (await look(chain, watch)).begun_anew
    for happened in rounds:
        before = dict(watch.view.hashes)
        for what, count in happened:
            if what == "mine":
                chain.mine(count)
            else:
                chain.reorg(min(count, (await chain.head()).number))
        change = await look(chain, watch)
        after = await hashes_of(chain, 0, (await chain.head()).number)
        replaced = [number for number, known in before.items() if after.get(number) != known]
        assert change.forked_at == (min(replaced) if replaced else None)
        assert (
            [block.header.hash for block in change.blocks]
            == [after[number] for number in range(change.blocks[0].header.number, len(after))]
            if change.blocks
            else not replaced
        )
        assert len(watch.view.hashes) <= keep + 1


async def test_nothing_new_is_no_change() -> None:
    chain = Bench().chain
    watch = ChainWatch(chain)
    await look(chain, watch)
    assert await look(chain, watch) == HeadChange()


async def test_too_many_missed_blocks_begin_the_view_anew() -> None:
    chain = Bench().chain
    watch = ChainWatch(chain)
    await look(chain, watch)
    chain.mine(MOST_CAUGHT_UP + 1)
    change = await look(chain, watch)
    assert change.begun_anew
    assert len(watch.view.hashes) == 1


async def test_a_view_around_an_old_block_is_read_for_the_purpose() -> None:
    chain = Bench().chain
    chain.mine(40)
    watch = ChainWatch(chain, keep=5)
    await look(chain, watch)
    view = await watch.view_around(10, above=3)
    assert (view.lowest, view.head) == (10, 13)
    assert dict(view.hashes) == await hashes_of(chain, 10, 13)
    assert (await watch.view_around(99, above=3)).head == 40
    assert (await watch.view_around(40, above=3)).head == 40


async def test_the_settled_block_comes_with_the_view() -> None:
    chain = Bench().chain
    chain.mine(9)
    watch = ChainWatch(chain, settled_tag="finalized")
    await look(chain, watch)
    assert watch.view.settled == 7
