"""Store stable blocks in PostgreSQL: `sql/chains.sql`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import BlockHash
from fencepost.events.blocks import StableBlockStore, StableEntry, entry_detail, entry_name


class PostgresStableBlocks(StableBlockStore):
    def __init__(self, pool: Pool, *, node: str) -> None:
        self._pool = pool
        self._node = node

    async def recent(self, chain_id: int) -> Sequence[BlockRef]:
        row = await self._pool.fetchrow(sql("stable_chain_read"), chain_id)
        if row is None:
            return ()
        first = row["newest"] - len(row["hashes"]) + 1
        return [BlockRef(first + i, BlockHash(block_hash)) for i, block_hash in enumerate(row["hashes"])]

    async def move(
        self,
        chain_id: int,
        *,
        expected: BlockRef | None,
        blocks: Sequence[BlockRef],
        entries: Sequence[StableEntry],
        depth: int,
    ) -> bool:
        moved = await self._pool.fetchval(
            sql("stable_chain_move"),
            chain_id,
            blocks[-1].number,
            [block.hash for block in blocks],
            None if expected is None else expected.number,
            None if expected is None else expected.hash,
            [entry_name(entry) for entry in entries],
            msgspec.json.encode([entry_detail(entry, depth=depth) for entry in entries]).decode(),
            self._node,
        )
        return moved is not None
