"""Scheme `segments`: blocks of nonces from the database, handed out from memory, stored in batches.

A block is taken above everything that the database knows and the chain has seen, so after a restart the sequence goes
on above all that was ever given. Giving a nonce is noted in memory and stored with the next flush. Memory is bounded:
when `unflushed_max` holds wait to be stored, allocating waits for a flush, and fails while the database does. A mark
stores what is unstored first, and is itself durable.

Strong: giving costs no round trip, so it is the fastest of all, and goes on for a while without the database.
Weak: two processes may serve one signer, but they get different blocks and the chain waits for the slower one: route a
signer to one process. A clean end leaves no hole; a crash does.
Window of loss: up to `unflushed_max` holds that nobody has stored, and the rest of the blocks. Nobody knows which of
those nonces were given, so they stay away for `dead_after_s` after the last sign of life; then the block is retired,
which fences the old owner off, and what is missing in it can be given again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import Clock
from fencepost.domain.ids import Signer, TxHash
from fencepost.errors import NonceUnavailable
from fencepost.nonce.port import Hold, check_request
from fencepost.nonce.records import MarksInRecords, Records

MOST_FLUSHED_A_COMMIT = 2000


@dataclass(slots=True)
class _Block:
    block_id: int
    next_nonce: int
    past_nonce: int


@dataclass(slots=True)
class _Local:
    """What this process has of a signer."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    block: _Block | None = None
    may_have_gaps: bool = True


@dataclass(frozen=True, slots=True)
class _Unflushed:
    block_id: int
    hold: Hold
    expires_at_s: float  # of the process's clock


class SegmentNonces(MarksInRecords):
    def __init__(
        self,
        records: Records,
        *,
        clock: Clock,
        block_size: int = 500,
        unflushed_max: int = 10_000,
        dead_after_s: float = 60.0,
    ) -> None:
        super().__init__(records)
        self._clock = clock
        self._owner = uuid4()
        self._block_size = block_size
        self._unflushed_max = unflushed_max
        self._dead_after_s = dead_after_s
        self._locals: defaultdict[Signer, _Local] = defaultdict(_Local)
        self._unflushed: dict[tuple[Signer, int], _Unflushed] = {}
        self._flushing = asyncio.Lock()
        self._seen_at_s = clock.now_s()  # when the database last heard of us

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        if len(self._unflushed) + count > self._unflushed_max:
            await self._flush()  # back-pressure: nobody gets more than can be stored
        if self._clock.now_s() - self._seen_at_s > self._dead_after_s / 2:
            await self._flush()  # our blocks may be retired: first show that we live, or learn that we don't
        token = uuid4()
        local = self._locals[signer]
        async with local.lock:
            got = await self._reuse(local, signer, count, hold_for_s)
            while len(got) < count:
                block = local.block
                if block is None or block.next_nonce == block.past_nonce:
                    block = local.block = await self._take_block(local, signer, count - len(got))
                got.append(self._give(block, signer, token, hold_for_s))
        return got

    def _give(self, block: _Block, signer: Signer, token: UUID, hold_for_s: float) -> Hold:
        hold = Hold(signer, block.next_nonce, token)
        block.next_nonce += 1
        self._unflushed[signer, hold.nonce] = _Unflushed(
            block.block_id, hold, self._clock.now_s() + hold_for_s
        )
        return hold

    async def _reuse(self, local: _Local, signer: Signer, count: int, hold_for_s: float) -> list[Hold]:
        if not local.may_have_gaps:
            return []
        await self._records.open(signer)
        got = await self._records.take_gaps(signer, count=count, hold_for_s=hold_for_s)
        local.may_have_gaps = len(got) == count
        return got

    async def _take_block(self, local: _Local, signer: Signer, wanted: int) -> _Block:
        """Above the chain and the database; a block that is used up and stored is retired on the way."""
        if local.block is not None:
            await self._flush()
            await self._end_blocks([local.block])
            local.block = None
        await self._records.open(signer)
        row = await self._records.pool.fetchrow(
            sql("nonce_block_take"),
            signer.chain_id,
            signer.address,
            await self._records.seen_by_chain(signer),
            max(self._block_size, wanted),
            self._owner,
        )
        if row is None:
            raise NonceUnavailable(f"there is no sequence for {signer.address}")
        return _Block(row["block_id"], row["first_nonce"], row["past_nonce"])

    # ---- storing

    async def _flush(self) -> int:
        """Store all that waits now; an error leaves it waiting."""
        stored = 0
        async with self._flushing:
            bound = len(self._unflushed) // MOST_FLUSHED_A_COMMIT + 1
            for _ in range(bound):
                batch = [
                    entry
                    for entry, _ in zip(self._unflushed.values(), range(MOST_FLUSHED_A_COMMIT), strict=False)
                ]
                await self._store(batch)
                stored += len(batch)
        return stored

    async def _store(self, batch: Sequence[_Unflushed]) -> None:
        now_s = self._clock.now_s()
        blocks = {local.block.block_id for local in self._locals.values() if local.block is not None}
        alive = await self._records.pool.fetch(
            sql("nonce_block_flush"),
            self._owner,
            sorted(blocks | {entry.block_id for entry in batch}),
            [entry.block_id for entry in batch],
            [entry.hold.signer.chain_id for entry in batch],
            [entry.hold.signer.address for entry in batch],
            [entry.hold.nonce for entry in batch],
            [entry.hold.token for entry in batch],
            [entry.expires_at_s - now_s for entry in batch],
        )
        self._seen_at_s = now_s
        for entry in batch:
            self._unflushed.pop((entry.hold.signer, entry.hold.nonce), None)
        # Retired while we were away: what is left in such a block is not ours any more.
        lost = blocks - {row["block_id"] for row in alive}
        for local in self._locals.values():
            if local.block is not None and local.block.block_id in lost:
                local.block = None
                local.may_have_gaps = True

    async def _end_blocks(self, blocks: Sequence[_Block]) -> None:
        await self._records.pool.execute(
            sql("nonce_block_give_back"),
            self._owner,
            [block.block_id for block in blocks],
            [block.next_nonce for block in blocks],
        )

    # ---- marks: durable, after what they speak of

    async def _stored(self, hold: Hold) -> None:
        if (hold.signer, hold.nonce) in self._unflushed:
            await self._flush()

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        await self._stored(hold)
        await super().mark_submitted(hold, tx_hash)

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        await self._stored(hold)
        await super().mark_used(hold, tx_hash)

    async def mark_recyclable(self, hold: Hold) -> None:
        await self._stored(hold)
        await super().mark_recyclable(hold)
        self._locals[hold.signer].may_have_gaps = True

    async def reclaim_expired(self, signer: Signer) -> int:
        await self._flush()
        await self._records.open(signer)
        await self._records.pool.execute(
            sql("nonce_block_retire_dead"), signer.chain_id, signer.address, self._dead_after_s
        )
        released = await super().reclaim_expired(signer)
        if released:
            self._locals[signer].may_have_gaps = True
        return released

    async def tend_once(self) -> int:
        """Flush, and look for nonces that other processes released."""
        stored = await self._flush()
        for signer in await self._records.with_gaps(list(self._locals)):
            self._locals[signer].may_have_gaps = True
        return stored

    async def close(self) -> None:
        await self._flush()
        blocks = [local.block for local in self._locals.values() if local.block is not None]
        self._locals.clear()
        if blocks:
            await self._end_blocks(blocks)
        await super().close()
