"""Implement scheme `segments`: take blocks of nonces from the database, allocate from memory, store holds in batches.

A block starts above all stored nonces and above the chain's nonce, so after a restart the sequence continues above every
nonce that was ever allocated. An allocation is recorded in memory and stored with the next flush. Memory is bounded: when
`unflushed_max` holds are unstored, `allocate` waits for a flush, and fails while the database does. A mark first stores
unstored holds, and is itself durable.

Strong: an allocation needs no round trip, so it is the fastest scheme, and continues for a while without the database.
Weak: two processes may serve one signer, but they get different blocks and the chain waits for the slower one: route a
signer to one process. A clean shutdown leaves no nonce gap; a crash does.
Window of loss: up to `unflushed_max` unstored holds, and the rest of the blocks. It is unknown which of those nonces were
allocated, so they stay reserved for `dead_after_s` after the last heartbeat; then the block is retired, which fences the
old owner, and its unstored nonces can be allocated again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from fencepost.adapters.postgres.queries import sql
from fencepost.application.ports import Clock
from fencepost.domain.ids import Signer, TxHash
from fencepost.errors import NonceUnavailable
from fencepost.nonce.port import Hold, check_request
from fencepost.nonce.store import NonceStore, StoredMarks

MAX_FLUSHED_PER_COMMIT = 2000
_TRIES = 3

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Block:
    block_id: int
    next_nonce: int
    past_nonce: int

    @property
    def remaining(self) -> int:
        return self.past_nonce - self.next_nonce


@dataclass(slots=True)
class _Local:
    """The blocks of a signer that this process holds."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Allocated from in this order; used-up blocks are retired later.
    blocks: list[_Block] = field(default_factory=list)
    may_have_gaps: bool = True

    @property
    def remaining(self) -> int:
        return sum(block.remaining for block in self.blocks)


@dataclass(frozen=True, slots=True)
class _Unflushed:
    block_id: int
    hold: Hold
    expires_at_s: float  # of the process's clock


class SegmentNonces(StoredMarks):
    def __init__(
        self,
        store: NonceStore,
        *,
        clock: Clock,
        block_size: int = 500,
        unflushed_max: int = 10_000,
        dead_after_s: float = 60.0,
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self._owner = uuid4()
        self._block_size = block_size
        self._unflushed_max = unflushed_max
        self._dead_after_s = dead_after_s
        self._locals: defaultdict[Signer, _Local] = defaultdict(_Local)
        self._unflushed: dict[tuple[Signer, int], _Unflushed] = {}
        self._flushing = asyncio.Lock()
        self._heartbeat_at_s = clock.now_s()  # the last heartbeat that the database stored

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        if len(self._unflushed) + count > self._unflushed_max:
            await self._flush()  # back-pressure: bound the number of unstored holds
        if self._may_be_retired():
            await self._flush()  # send a heartbeat, or learn that the blocks were retired
        local = self._locals[signer]
        async with local.lock:
            reused = await self._reuse(local, signer, count, hold_for_s)
            try:
                await self._require_nonces(local, signer, count - len(reused))
            except BaseException:
                await self._release(local, reused)
                raise
            # No await from here on: the blocks can't be retired after `_require_nonces` checked them.
            token = uuid4()
            allocated = [
                self._allocate_one(local, signer, token, hold_for_s) for _ in range(count - len(reused))
            ]
        return [*reused, *allocated]

    async def _require_nonces(self, local: _Local, signer: Signer, wanted: int) -> None:
        """Ensure that `wanted` nonces remain in blocks that are not retired, or raise; allocate nothing yet."""
        if wanted == 0:
            return
        for _ in range(_TRIES):
            if local.remaining < wanted:
                await self._take_block(local, signer, wanted - local.remaining)
            if self._may_be_retired():  # the calls above took long
                await self._flush()
            elif local.remaining >= wanted:
                return
        raise NonceUnavailable(f"the blocks of {signer.address} expire before they can be used: retry")

    def _may_be_retired(self) -> bool:
        """Return whether the last heartbeat is so old that other processes may soon retire the blocks."""
        return self._clock.now_s() - self._heartbeat_at_s > self._dead_after_s / 2

    async def _release(self, local: _Local, reused: Sequence[Hold]) -> None:
        """Release the nonces of a call that failed; if that fails too, they stay held until they expire."""
        if not reused:
            return
        local.may_have_gaps = True
        try:
            await self._store.release(reused)
        except Exception as error:  # noqa: BLE001 - the caller gets the error of the call itself
            _log.warning(
                "nonces %s of %s stay held until they expire (%s)",
                [hold.nonce for hold in reused],
                reused[0].signer.address,
                type(error).__name__,
            )

    def _allocate_one(self, local: _Local, signer: Signer, token: UUID, hold_for_s: float) -> Hold:
        block = next(block for block in local.blocks if block.remaining)
        hold = Hold(signer, block.next_nonce, token)
        block.next_nonce += 1
        self._unflushed[signer, hold.nonce] = _Unflushed(
            block.block_id, hold, self._clock.now_s() + hold_for_s
        )
        return hold

    async def _reuse(self, local: _Local, signer: Signer, count: int, hold_for_s: float) -> list[Hold]:
        if not local.may_have_gaps:
            return []
        await self._store.open(signer)
        got = await self._store.allocate_released(signer, count=count, hold_for_s=hold_for_s)
        local.may_have_gaps = len(got) == count
        return got

    async def _take_block(self, local: _Local, signer: Signer, wanted: int) -> None:
        """Add a block above the chain's nonce and all stored nonces; retire blocks that are used up and stored."""
        if any(not block.remaining for block in local.blocks):
            await self._flush()  # may drop blocks that were retired meanwhile
            used_up = [block for block in local.blocks if not block.remaining]
            if used_up:
                await self._end_blocks(used_up)
            local.blocks = [block for block in local.blocks if block not in used_up]
        await self._store.open(signer)
        row = await self._store.pool.fetchrow(
            sql("nonce_block_take"),
            signer.chain_id,
            signer.address,
            await self._store.chain_nonce(signer),
            max(self._block_size, wanted),
            self._owner,
        )
        if row is None:
            raise NonceUnavailable(f"the database has no nonce cursor for {signer.address}")
        local.blocks.append(_Block(row["block_id"], row["first_nonce"], row["past_nonce"]))

    # ---- storing

    async def _flush(self) -> int:
        """Store all unstored holds and return their number; after an error they stay unstored."""
        stored = 0
        async with self._flushing:
            bound = len(self._unflushed) // MAX_FLUSHED_PER_COMMIT + 1
            for _ in range(bound):
                batch = [
                    entry
                    for entry, _ in zip(self._unflushed.values(), range(MAX_FLUSHED_PER_COMMIT), strict=False)
                ]
                await self._store_batch(batch)
                stored += len(batch)
        return stored

    async def _store_batch(self, batch: Sequence[_Unflushed]) -> None:
        now_s = self._clock.now_s()
        blocks = {block.block_id for local in self._locals.values() for block in local.blocks}
        alive = await self._store.pool.fetch(
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
        self._heartbeat_at_s = now_s
        for entry in batch:
            self._unflushed.pop((entry.hold.signer, entry.hold.nonce), None)
        # Blocks that were retired meanwhile: their unused nonces no longer belong to this process.
        lost = blocks - {row["block_id"] for row in alive}
        for local in self._locals.values():
            if any(block.block_id in lost for block in local.blocks):
                local.blocks = [block for block in local.blocks if block.block_id not in lost]
                local.may_have_gaps = True

    async def _end_blocks(self, blocks: Sequence[_Block]) -> None:
        await self._store.pool.execute(
            sql("nonce_block_give_back"),
            self._owner,
            [block.block_id for block in blocks],
            [block.next_nonce for block in blocks],
        )

    # ---- marks: durable, stored after their holds

    async def _store_hold(self, hold: Hold) -> None:
        if (hold.signer, hold.nonce) in self._unflushed:
            await self._flush()

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        await self._store_hold(hold)
        await super().mark_submitted(hold, tx_hash)

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        await self._store_hold(hold)
        await super().mark_used(hold, tx_hash)

    async def mark_recyclable(self, hold: Hold) -> None:
        await self._store_hold(hold)
        await super().mark_recyclable(hold)
        self._locals[hold.signer].may_have_gaps = True

    async def reclaim_expired(self, signer: Signer) -> int:
        await self._flush()
        await self._store.open(signer)
        await self._store.pool.execute(
            sql("nonce_block_retire_dead"), signer.chain_id, signer.address, self._dead_after_s
        )
        released = await super().reclaim_expired(signer)
        if released:
            self._locals[signer].may_have_gaps = True
        return released

    async def tend_once(self) -> int:
        """Flush, and find signers with nonces that other processes released."""
        stored = await self._flush()
        for signer in await self._store.with_gaps(list(self._locals)):
            self._locals[signer].may_have_gaps = True
        return stored

    async def close(self) -> None:
        await self._flush()
        blocks = [block for local in self._locals.values() for block in local.blocks]
        self._locals.clear()
        if blocks:
            await self._end_blocks(blocks)
        await super().close()
