"""The shared view of a chain: linked blocks up to the head, and the blocks that a fork replaced."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.bench import Bench
from fencepost.application.chain_view import MAX_CATCH_UP_BLOCKS, ChainView, HeadChange
from fencepost.application.ports import Block, BlockTag, Header
from fencepost.domain.confirmations import BlockRef, BlockStatus, confirm
from fencepost.domain.ids import BlockHash
from fencepost.errors import RpcUnavailable
from fencepost.testing import InMemoryChain


async def hashes_of(chain: InMemoryChain, lowest: int, head: int) -> dict[int, BlockHash]:
    found = {}
    for number in range(lowest, head + 1):
        block = await chain.block(number)
        assert block is not None
        found[number] = block.header.hash
    return found


async def look(chain: InMemoryChain, watch: ChainView) -> HeadChange:
    """Refresh the view and assert its invariants."""
    change = await watch.refresh()
    head = await chain.head()
    view = watch.view
    assert view.head == head.number
    assert view.covers(head.number)
    assert dict(view.hashes) == await hashes_of(chain, view.lowest, view.head)
    return change


# What happens between two refreshes: new blocks, or a reorg of some depth.
happenings = st.lists(
    st.lists(st.tuples(st.sampled_from(["mine", "reorg"]), st.integers(1, 12)), max_size=3), max_size=8
)


@settings(max_examples=60)
@given(happenings, st.integers(1, 20))
async def test_the_view_equals_the_chain_after_every_refresh(
    rounds: list[list[tuple[str, int]]], keep: int
) -> None:
    chain = Bench().chain
    chain.mine(3)
    watch = ChainView(chain, keep=keep)
    assert (await look(chain, watch)).restarted
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


async def test_a_refresh_without_a_new_block_is_no_change() -> None:
    chain = Bench().chain
    watch = ChainView(chain)
    await look(chain, watch)
    assert await look(chain, watch) == HeadChange()


async def test_too_many_missed_blocks_restart_the_view() -> None:
    chain = Bench().chain
    watch = ChainView(chain)
    await look(chain, watch)
    chain.mine(MAX_CATCH_UP_BLOCKS + 1)
    change = await look(chain, watch)
    assert change.restarted
    assert len(watch.view.hashes) == 1


async def test_a_view_around_an_old_block_is_read_on_demand() -> None:
    chain = Bench().chain
    chain.mine(40)
    watch = ChainView(chain, keep=5)
    await look(chain, watch)
    view = await watch.view_around(10, above=3)
    assert (view.lowest, view.head) == (10, 13)
    assert dict(view.hashes) == await hashes_of(chain, 10, 13)
    assert (await watch.view_around(99, above=3)).head == 40
    assert (await watch.view_around(40, above=3)).head == 40


async def test_the_view_includes_the_settled_block() -> None:
    chain = Bench().chain
    chain.mine(9)
    watch = ChainView(chain, settled_tag="finalized")
    await look(chain, watch)
    assert watch.view.settled == 7


class Blockless(InMemoryChain):
    """A chain that serves heads but no blocks."""

    is_blockless = False

    async def block(self, number: int) -> Block | None:
        if self.is_blockless:
            raise RpcUnavailable("no blocks")
        return await super().block(number)


async def test_the_settled_number_does_not_advance_before_the_view() -> None:
    """Otherwise a replaced block would be final by a number of the new fork."""
    chain = Blockless(Bench().chain.decode)
    chain.mine(9)
    watch = ChainView(chain, settled_tag="finalized")
    await look(chain, watch)
    block = await chain.block(9)
    assert block is not None
    chain.reorg(4)
    chain.mine(5)
    chain.is_blockless = True
    with pytest.raises(RpcUnavailable):
        await watch.refresh()
    mined_in = BlockRef(9, block.header.hash)
    assert not confirm(mined_in, watch.view, recorded=(), required=None).is_final
    chain.is_blockless = False
    await look(chain, watch)
    assert watch.view.settled == 13
    assert confirm(mined_in, watch.view, recorded=(), required=None).block_status is BlockStatus.ORPHANED


class TwoFaced(InMemoryChain):
    """Another endpoint, on another fork, answers for the settled block."""

    settled: Header | None = None

    async def head(self, tag: BlockTag = "latest") -> Header:
        return self.settled if tag == "finalized" and self.settled is not None else await super().head(tag)


async def test_a_settled_block_of_another_fork_is_not_used() -> None:
    chain = TwoFaced(Bench().chain.decode)
    chain.mine(9)
    watch = ChainView(chain, settled_tag="finalized")
    await look(chain, watch)
    known = await chain.head("finalized")
    chain.settled = known.changed(number=9, hash=BlockHash("0x" + "77" * 32))
    chain.mine()
    await look(chain, watch)
    assert watch.view.settled == known.number
    chain.settled = None
    await look(chain, watch)
    assert watch.view.settled == 8


async def test_a_replaced_block_was_not_settled() -> None:
    chain = TwoFaced(Bench().chain.decode)
    watch = ChainView(chain, settled_tag="finalized")
    await look(chain, watch)
    chain.mine(9)
    await look(chain, watch)
    chain.settled = await chain.head("finalized")  # it keeps the replaced block
    chain.reorg(5)
    await look(chain, watch)
    assert watch.view.settled is None
