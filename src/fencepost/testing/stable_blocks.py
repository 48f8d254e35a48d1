"""Stable blocks over the rows of the in-memory database."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, Signer
from fencepost.events.blocks import StableBlockStore, StableEntry, entry_detail, entry_name
from fencepost.testing.database import InMemoryDatabase, JournalRow


class InMemoryStableBlocks(StableBlockStore):
    """Keep the newest stable blocks in memory; their events are in the journal of the database."""

    def __init__(self, database: InMemoryDatabase) -> None:
        """Write to the journal of this database."""
        self._database = database
        self._blocks: dict[int, Sequence[BlockRef]] = {}

    async def recent(self, chain_id: int) -> Sequence[BlockRef]:
        """Return the newest blocks."""
        await asyncio.sleep(0)
        return self._blocks.get(chain_id, ())

    async def move(
        self,
        chain_id: int,
        *,
        expected: BlockRef | None,
        blocks: Sequence[BlockRef],
        entries: Sequence[StableEntry],
        depth: int,
    ) -> bool:
        """Replace the newest blocks if the last one is the expected one."""
        await asyncio.sleep(0)
        known = self._blocks.get(chain_id, ())
        if (known[-1] if known else None) != expected:
            return False
        self._blocks[chain_id] = list(blocks)
        signer = Signer(chain_id, Address(""))  # the event concerns no signer
        for entry in entries:
            detail = entry_detail(entry, depth=depth)
            self._database.journal.append(
                JournalRow(signer, None, entry_name(entry), None, detail, "n", None)
            )
        return True
