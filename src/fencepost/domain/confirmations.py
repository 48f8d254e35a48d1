"""Count a transaction's confirmations and detect forks below it.

All functions use one consistent view of the chain: the hashes of a range of blocks that are linked parent to child. A
transaction's confirmations are the blocks after its own, in order. If they begin with the recorded ones, the list grew
(append). Anything else is a new fork (replace the whole list).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from fencepost.domain.ids import BlockHash
from fencepost.domain.struct import Struct

# With safe or finalized no depth ends the list of confirmations: it is cut here.
MAX_LISTED = 64


class BlockRef(NamedTuple):
    number: int
    hash: BlockHash


class View(Struct, frozen=True):
    """The canonical hashes of the linked blocks `lowest … head`.

    `settled` is the number of the safe or finalized block, if the settings require one of them.
    """

    hashes: Mapping[int, BlockHash]
    lowest: int
    head: int
    settled: int | None = None

    def covers(self, number: int) -> bool:
        return self.lowest <= number <= self.head


class BlockStatus(StrEnum):
    CANONICAL = "canonical"
    ORPHANED = "orphaned"
    BEYOND_VIEW = "beyond_view"  # above the view's head or below its lowest block: check again later


class Confirmations(Struct, frozen=True):
    block_status: BlockStatus
    blocks: tuple[BlockRef, ...]
    new_fork: bool
    is_final: bool


def block_status(block: BlockRef, view: View) -> BlockStatus:
    if not view.covers(block.number):
        return BlockStatus.BEYOND_VIEW
    return BlockStatus.CANONICAL if view.hashes[block.number] == block.hash else BlockStatus.ORPHANED


def confirm(
    block: BlockRef, view: View, *, recorded: tuple[BlockRef, ...], required: int | None
) -> Confirmations:
    """Compare a transaction's block with the view.

    `required` confirmations make it final. With None it is final when the view's settled block reaches it.
    """
    where = block_status(block, view)
    if where is not BlockStatus.CANONICAL:
        return Confirmations(
            where, recorded, new_fork=where is BlockStatus.ORPHANED and bool(recorded), is_final=False
        )
    listed = MAX_LISTED if required is None else required
    top = min(view.head, block.number + listed)
    blocks = tuple([BlockRef(number, view.hashes[number]) for number in range(block.number + 1, top + 1)])
    if required is None:
        is_final = view.settled is not None and view.settled >= block.number
    else:
        is_final = len(blocks) >= required
    new_fork = blocks[: len(recorded)] != recorded[: len(blocks)]
    if not new_fork and len(blocks) < len(recorded):
        blocks = recorded  # the view ends before the recorded blocks do; nothing contradicts them yet
    return Confirmations(where, blocks, new_fork=new_fork, is_final=is_final)
