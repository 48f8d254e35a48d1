"""Write an event for every block of a chain that has the required depth, and one for every fork below that depth.

Blocks are linked by their parents: each stable block follows the one before it, unless a `block.reorg` names the fork and the
blocks that it replaced. Several nodes may follow one chain: the write of a node is applied if the last block is the one that it
has read, with its events in the same commit. So a block has one event, and a process that dies has written all of a turn or
nothing of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import BlockHash

MAX_BLOCKS_KEPT: Final = 128  # a deeper fork is reported without the block that it began at
MAX_BLOCKS_PER_TURN: Final = 64
POLL_INTERVAL_S: Final = 0.25  # of the head that the node knows, which is in memory


class LinkedBlock(NamedTuple):
    """Name a block and the one before it."""

    block: BlockRef
    parent_hash: BlockHash


@dataclass(frozen=True, slots=True)
class StableEntry:
    """Describe one journal entry: a stable block with its parent, or a fork with the blocks that it replaced."""

    block: BlockRef | None
    parent_hash: str | None = None
    replaced: Sequence[BlockRef] = ()


def entry_name(entry: StableEntry) -> str:
    """Return the name of the journal entry."""
    return "BlockReorg" if entry.replaced else "BlockStable"


def entry_detail(entry: StableEntry, *, depth: int) -> dict[str, Any]:
    """Return the detail of the journal entry."""
    detail: dict[str, Any] = {"depth": depth}
    if entry.block is not None:
        detail["at"] = [entry.block.number, entry.block.hash]
    if entry.replaced:
        detail["replaced"] = [[block.number, block.hash] for block in entry.replaced]
    else:
        detail["parent"] = entry.parent_hash
    return detail


class StableBlockStore(Protocol):
    """Store the newest stable blocks of each chain. Database errors are raised unchanged."""

    async def recent(self, chain_id: int) -> Sequence[BlockRef]:
        """Return the newest blocks in order, at most `MAX_BLOCKS_KEPT`; none if the chain is new."""
        ...

    async def move(
        self,
        chain_id: int,
        *,
        expected: BlockRef | None,
        blocks: Sequence[BlockRef],
        entries: Sequence[StableEntry],
        depth: int,
    ) -> bool:
        """Replace the newest blocks and write the entries, if the last block is still the expected one; return whether it was."""
        ...


@dataclass(slots=True)
class StableBlocks:
    """Follow one chain."""

    chain_id: int
    depth: int
    store: StableBlockStore
    head: Callable[[], int]  # the number of the newest block that the node knows; below 0 if it knows none
    read_block: Callable[[int], Awaitable[LinkedBlock | None]]
    on_written: Callable[[], object] = lambda: None
    _recent: Sequence[BlockRef] | None = field(default=None)  # None: read the store again
    _head_read: int = -1

    async def turn(self) -> float:
        """Write what has become stable, and return the seconds until the next turn."""
        head = self.head()
        if head != self._head_read and head - self.depth >= 0 and await self._write_to(head - self.depth):
            self._head_read = head
        return POLL_INTERVAL_S

    async def _write_to(self, target: int) -> bool:
        """Write blocks up to a number; return False if the rest must be read in another turn."""
        if self._recent is None:
            self._recent = await self.store.recent(self.chain_id)
        known = self._recent
        kept = await self._canonical(known)
        if kept is None:
            return False
        replaced = known[len(kept) :]
        fresh = await self._linked(kept, target)
        if not fresh and not replaced:
            return True
        entries = [StableEntry(*linked) for linked in fresh]
        if replaced:
            entries.insert(0, StableEntry(kept[-1] if kept else None, replaced=replaced))
        blocks = [*kept, *(linked.block for linked in fresh)][-MAX_BLOCKS_KEPT:]
        if not blocks:
            return False  # a fork below everything that is kept, whose new blocks can't be read yet
        expected = known[-1] if known else None
        self._recent = None
        if await self.store.move(
            self.chain_id, expected=expected, blocks=blocks, entries=entries, depth=self.depth
        ):
            self._recent = blocks
            self.on_written()
        return bool(blocks[-1].number >= target) and self._recent is not None

    async def _canonical(self, known: Sequence[BlockRef]) -> Sequence[BlockRef] | None:
        """Return the known blocks up to the fork; None if an endpoint does not have the newest of them yet."""
        for count in range(len(known), 0, -1):
            linked = await self.read_block(known[count - 1].number)
            if linked is None:
                return None
            if linked.block == known[count - 1]:
                return known[:count]
        return ()

    async def _linked(self, kept: Sequence[BlockRef], target: int) -> list[LinkedBlock]:
        """Read the blocks after the kept ones; stop where the chain changed while it was being read."""
        fresh: list[LinkedBlock] = []
        parent = kept[-1] if kept else None
        first = target if parent is None else parent.number + 1
        for number in range(first, min(target + 1, first + MAX_BLOCKS_PER_TURN)):
            linked = await self.read_block(number)
            if linked is None or (parent is not None and linked.parent_hash != parent.hash):
                break
            fresh.append(linked)
            parent = linked.block
        return fresh
