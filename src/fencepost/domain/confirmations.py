"""How deep a transaction lies, and whether the chain below it has changed.

Everything here looks at one consistent view of the chain: headers of a range of blocks that are linked parent to
child. A transaction's confirmations are the blocks after its own, in order. Compared with what was recorded before:
the same prefix means the list grew (append); anything else is a new fork (replace the whole list).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from fencepost.domain.ids import BlockHash
from fencepost.domain.value import Value

# With safe or finalized there is no depth to stop at: the list of blocks is cut here.
MOST_LISTED = 64


class BlockRef(NamedTuple):
    number: int
    hash: BlockHash


class View(Value, frozen=True):
    """Canonical hashes of the blocks `lowest … head`, linked; `settled` is the safe or finalized number, if asked for."""

    hashes: Mapping[int, BlockHash]
    lowest: int
    head: int
    settled: int | None = None

    def covers(self, number: int) -> bool:
        return self.lowest <= number <= self.head


class Standing(StrEnum):
    CANONICAL = "canonical"
    ORPHANED = "orphaned"
    BEYOND_VIEW = "beyond_view"  # newer than the view's head, or older than it reaches: ask again


class Confirmations(Value, frozen=True):
    standing: Standing
    blocks: tuple[BlockRef, ...]
    new_fork: bool
    is_final: bool


def standing(block: BlockRef, view: View) -> Standing:
    if not view.covers(block.number):
        return Standing.BEYOND_VIEW
    return Standing.CANONICAL if view.hashes[block.number] == block.hash else Standing.ORPHANED


def confirm(
    block: BlockRef, view: View, *, recorded: tuple[BlockRef, ...], required: int | None
) -> Confirmations:
    """`required` blocks on top make it final; None waits for the view's settled block instead."""
    where = standing(block, view)
    if where is not Standing.CANONICAL:
        return Confirmations(
            where, recorded, new_fork=where is Standing.ORPHANED and bool(recorded), is_final=False
        )
    listed = MOST_LISTED if required is None else required
    top = min(view.head, block.number + listed)
    blocks = tuple([BlockRef(number, view.hashes[number]) for number in range(block.number + 1, top + 1)])
    if required is None:
        is_final = view.settled is not None and view.settled >= block.number
    else:
        is_final = len(blocks) >= required
    new_fork = blocks[: len(recorded)] != recorded[: len(blocks)]
    if not new_fork and len(blocks) < len(recorded):
        blocks = recorded  # the view ends earlier than what was recorded; nothing contradicts it yet
    return Confirmations(where, blocks, new_fork=new_fork, is_final=is_final)
