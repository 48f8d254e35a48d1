"""Depth and forks, against generated chains."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.domain.confirmations import MAX_LISTED, BlockRef, BlockStatus, View, block_status, confirm
from fencepost.domain.ids import BlockHash


def ref(number: int, fork: int = 0) -> BlockRef:
    return BlockRef(number, BlockHash(f"{number}/{fork}"))


def view(lowest: int, head: int, *, forked_from: int | None = None, settled: int | None = None) -> View:
    hashes = {
        n: ref(n, int(forked_from is not None and n >= forked_from)).hash for n in range(lowest, head + 1)
    }
    return View(hashes=hashes, lowest=lowest, head=head, settled=settled)


numbers = st.integers(min_value=0, max_value=30)
depths = st.integers(min_value=0, max_value=12)


@given(numbers, numbers, numbers, st.none() | numbers)
def test_a_block_is_canonical_if_the_view_contains_it(
    number: int, lowest: int, length: int, fork: int | None
) -> None:
    seen = view(lowest, lowest + length, forked_from=fork)
    where = block_status(ref(number), seen)
    if not lowest <= number <= lowest + length:
        assert where is BlockStatus.BEYOND_VIEW
    else:
        assert where is (
            BlockStatus.ORPHANED if fork is not None and number >= fork else BlockStatus.CANONICAL
        )


@given(numbers, depths, depths)
def test_a_transaction_is_final_exactly_at_depth(number: int, required: int, on_top: int) -> None:
    found = confirm(ref(number), view(number, number + on_top), recorded=(), required=required)
    assert found.is_final is (on_top >= required)
    assert found.blocks == tuple(ref(number + 1 + i) for i in range(min(on_top, required)))
    assert not found.new_fork


@given(numbers, depths, depths, depths)
def test_new_blocks_of_the_same_chain_are_appended(number: int, required: int, old: int, more: int) -> None:
    first = confirm(ref(number), view(number, number + old), recorded=(), required=required)
    then = confirm(ref(number), view(number, number + old + more), recorded=first.blocks, required=required)
    assert not then.new_fork
    assert then.blocks[: len(first.blocks)] == first.blocks


@given(numbers, st.integers(1, 12), depths, depths, st.integers(1, 12))
def test_replaced_blocks_are_a_new_fork(
    number: int, required: int, old: int, more: int, fork_above: int
) -> None:
    first = confirm(ref(number), view(number, number + old), recorded=(), required=required)
    forked = view(number, number + old + more, forked_from=number + fork_above)
    then = confirm(ref(number), forked, recorded=first.blocks, required=required)
    assert then.new_fork is (fork_above <= len(first.blocks))
    if then.new_fork:
        assert then.blocks == tuple(
            BlockRef(n, forked.hashes[n]) for n in range(number + 1, min(number + required, forked.head) + 1)
        )


@given(numbers, depths, depths)
def test_a_shorter_view_removes_no_confirmation(number: int, required: int, old: int) -> None:
    first = confirm(ref(number), view(number, number + old), recorded=(), required=required)
    shorter = confirm(ref(number), view(number, number), recorded=first.blocks, required=required)
    assert shorter.blocks == first.blocks
    assert not shorter.new_fork


@given(numbers, depths, depths)
def test_an_orphan_is_never_final(number: int, required: int, on_top: int) -> None:
    forked = view(number, number + on_top, forked_from=number)
    found = confirm(ref(number), forked, recorded=(ref(number + 1),), required=required)
    assert (found.block_status, found.is_final, found.new_fork) == (BlockStatus.ORPHANED, False, True)


@given(numbers, depths, st.none() | numbers)
def test_the_settled_block_decides_without_a_required_depth(
    number: int, on_top: int, settled: int | None
) -> None:
    found = confirm(ref(number), view(number, number + on_top, settled=settled), recorded=(), required=None)
    assert found.is_final is (settled is not None and settled >= number)


def test_the_list_is_bounded_without_a_required_depth() -> None:
    found = confirm(ref(1), view(1, 1 + 3 * MAX_LISTED), recorded=(), required=None)
    assert len(found.blocks) == MAX_LISTED
