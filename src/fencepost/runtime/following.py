"""The heads of the chains, told to the lanes: which of their hashes a block holds, and what a fork undid."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fencepost.application.allocate import room
from fencepost.application.block_receipts import WholeBlock
from fencepost.application.heads import ChainWatch, HeadChange
from fencepost.application.ports import Block, Clock, Header, Ledger
from fencepost.domain.ids import Signer, TxHash
from fencepost.runtime.lanes import Lanes
from fencepost.runtime.looping import IsDatabaseFailure, Trouble, is_broken_connection

_log = logging.getLogger(__name__)

# Of so many requests that came last, the blocks are compared with the chain when a view begins.
MOST_LOOKED_BACK = 64

# A fork is asked about at once, and again so many seconds later: an owner whose view is behind does not know of it, and
# may still write an end in a block that is gone.
ASK_AFTER_S = (0.0, 2.0, 15.0, 60.0)

# A feed shows a head once. What could not be told of it is tried again after a growing pause.
FIRST_PAUSE_S = 0.1
MOST_PAUSE_S = 2.0

# New heads of a chain, as they come; it ends by being closed.
HeadFeed = Callable[[], AsyncGenerator[Header, None]]


class _Ask(NamedTuple):
    """Whose transactions have ended in this block or above?"""

    block: int
    due_s: float


@dataclass(frozen=True, slots=True)
class Following:
    watches: Mapping[int, ChainWatch]  # by chain id
    heads: Mapping[int, HeadFeed]  # by chain id
    lanes: Lanes
    ledger: Ledger
    clock: Clock
    on_undone: Callable[[Signer, int], None]  # a fork reaches down to this block, below what has ended for it
    is_database_failure: IsDatabaseFailure = is_broken_connection
    _unlooked: set[int] = field(default_factory=set)  # chain ids: whether what had ended still stands
    _readers: dict[int, asyncio.TaskGroup] = field(default_factory=dict)  # by chain id, while it is followed
    _asks: dict[int, list[_Ask]] = field(default_factory=dict)  # by chain id: still to be put to the ledger

    def __post_init__(self) -> None:
        for chain_id, watch in self.watches.items():
            watch.on_change = partial(self._changed, chain_id)

    async def run(self, chain_id: int) -> None:
        trouble = Trouble(f"heads of chain {chain_id}", self.is_database_failure)
        async with asyncio.TaskGroup() as readers, aclosing(self.heads[chain_id]()) as heads:
            self._readers[chain_id] = readers
            try:
                async for head in heads:
                    await self._follow_until_seen(chain_id, head, trouble)
            finally:
                del self._readers[chain_id]

    async def _follow_until_seen(self, chain_id: int, head: Header, trouble: Trouble) -> None:
        pause_s = FIRST_PAUSE_S
        now: Header | None = head
        while not await self._follow(chain_id, now, trouble):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
            now = None  # whatever the head is by then

    async def _follow(self, chain_id: int, head: Header | None, trouble: Trouble) -> bool:
        try:
            await self.once(chain_id, head)
        except Exception as error:  # noqa: BLE001 - a loop's edge: the cause is logged, and it is tried again
            trouble.met(error)
            return False
        trouble.over()
        return True

    async def once(self, chain_id: int, head: Header | None = None) -> HeadChange:
        change = await self.watches[chain_id].refresh(head)
        await self._look_back(chain_id)
        await self._ask_what_is_undone(chain_id)
        return change

    def _changed(self, chain_id: int, change: HeadChange) -> None:
        """Whoever moved the view: this loop, or a lane that could not wait for it."""
        self._tell_lanes(chain_id, change)
        if change.begun_anew or (change.forked_at is not None and change.forked_at <= change.old_lowest):
            self._unlooked.add(chain_id)

    async def _look_back(self, chain_id: int) -> None:
        """A view shows no fork below its beginning. What ended there may be undone, and nobody saw it.

        All of the newest are compared: one that stands says nothing of those below it, which a fork that was never
        worked off may have undone earlier.
        """
        if chain_id not in self._unlooked:
            return
        undone: list[int] = []
        for block in await self.ledger.newest_ended_blocks(chain_id, limit=MOST_LOOKED_BACK):
            now = await self.watches[chain_id].chain.block(block.number)
            if now is None or now.header.hash != block.hash:
                undone.append(block.number)
        if undone:
            _log.warning("chain %s forked at block %s or below while nobody saw it", chain_id, undone[-1])
            self._will_ask(chain_id, undone[-1], after_s=(0.0,))  # whoever ran meanwhile saw it
        self._unlooked.discard(chain_id)

    def _will_ask(self, chain_id: int, block: int, *, after_s: Sequence[float]) -> None:
        now_s = self.clock.now_s()
        self._asks.setdefault(chain_id, []).extend(_Ask(block, now_s + later_s) for later_s in after_s)

    async def _ask_what_is_undone(self, chain_id: int) -> None:
        """A fork may reach below what has ended, of signers that nobody holds any more.

        The view moves on at once and shows a fork only once: one that the ledger could not be asked about is kept.
        """
        now_s = self.clock.now_s()
        due = [ask for ask in self._asks.get(chain_id, ()) if ask.due_s <= now_s]
        if not due:
            return
        block = min(ask.block for ask in due)
        for signer in await self.ledger.signers_finished_since(chain_id, block):
            self.on_undone(signer, block)
        self._asks[chain_id] = [ask for ask in self._asks[chain_id] if ask not in due]  # others may have come

    def _tell_lanes(self, chain_id: int, change: HeadChange) -> None:
        self.lanes.head_moved()
        self._tell_whose_hashes(chain_id, change)
        if change.forked_at is not None:
            _log.warning(
                "chain %s forked at block %s, below head %s", chain_id, change.forked_at, change.old_head
            )
            self._will_ask(chain_id, change.forked_at, after_s=ASK_AFTER_S)
        concerns_all = change.begun_anew or change.forked_at is not None
        for lane in self.lanes if concerns_all else self.lanes.watchful():
            if lane.signer.chain_id != chain_id:
                continue
            lane.must_look_up |= change.begun_anew and any(tx.attempts for tx in lane.unmined)
            if concerns_all:
                lane.in_block.clear()  # what is still in one is not known any more
            if change.forked_at is not None:
                self.lanes.forked(lane.signer, change.forked_at)
            if lane.wants_blocks:
                self.lanes.wake(lane.signer)  # what else a lane waits for, it has its own timer for

    def _tell_whose_hashes(self, chain_id: int, change: HeadChange) -> None:
        """What it costs grows with the blocks, not with the lanes that wait."""
        watch = self.watches[chain_id]
        for block in change.blocks:
            ours = self._ours(watch, block)
            whole = watch.receipts.came(block, ours)
            readers = self._readers.get(chain_id)
            if whole is None or readers is None:
                self._tell_of_receipts(watch, ours)
            else:  # a large block takes a node a while: lanes go on sending meanwhile
                self._tell_of_room(watch, ours)
                readers.create_task(self._read(watch, whole, ours), name=f"receipts-{chain_id}")

    def _ours(self, watch: ChainWatch, block: Block) -> list[TxHash]:
        awaited = watch.awaited
        ours: list[TxHash] = []
        for tx_hash in block.tx_hashes:
            if (signer := awaited.get(tx_hash)) is None:
                continue
            if (lane := self.lanes.get(signer)) is not None:
                lane.in_block.add(tx_hash)
                ours.append(tx_hash)
            else:  # a lane that was lost wrote it at the last moment
                del awaited[tx_hash]
        return ours

    async def _read(self, watch: ChainWatch, whole: WholeBlock, ours: Sequence[TxHash]) -> None:
        try:
            await whole.read(watch.chain)
        except Exception:  # noqa: BLE001 - whatever it is, lanes must hear of their block
            _log.exception(
                "receipts of block %s could not be read: lanes ask for their own", whole.ref.number
            )
        self._tell_of_receipts(watch, ours)

    def _tell_of_room(self, watch: ChainWatch, ours: Sequence[TxHash]) -> None:
        for signer in dict.fromkeys(watch.awaited[tx_hash] for tx_hash in ours):
            lane = self.lanes.get(signer)
            if lane is not None and lane.has_queue and room(lane) > 0:
                self.lanes.wake(signer)

    def _tell_of_receipts(self, watch: ChainWatch, ours: Sequence[TxHash]) -> None:
        """Who has lost its lane or found its receipt meanwhile waits for it no more."""
        for tx_hash in ours:
            signer = watch.awaited.get(tx_hash)
            if signer is not None and (lane := self.lanes.get(signer)) is not None:
                lane.seen.add(tx_hash)
                self.lanes.wake(signer)
