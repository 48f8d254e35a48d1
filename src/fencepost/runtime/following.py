"""The heads of the chains, told to the lanes: which of their hashes a block holds, and what a fork undid."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from fencepost.application.heads import ChainWatch, HeadChange
from fencepost.application.ports import Header, Ledger
from fencepost.domain.ids import Signer
from fencepost.errors import RpcError
from fencepost.runtime.lanes import Lanes

_log = logging.getLogger(__name__)

# Of so many requests that came last, the blocks are compared with the chain when a view begins.
MOST_LOOKED_BACK = 64

# New heads of a chain, as they come; it ends by being closed.
HeadFeed = Callable[[], AsyncGenerator[Header, None]]


@dataclass(frozen=True, slots=True)
class Following:
    watches: Mapping[int, ChainWatch]  # by chain id
    heads: Mapping[int, HeadFeed]  # by chain id
    lanes: Lanes
    ledger: Ledger
    on_undone: Callable[[Signer, int], None]  # a fork reaches down to this block, below what has ended for it
    _unlooked: set[int] = field(default_factory=set)  # chain ids: whether what had ended still stands
    _unasked: dict[int, int] = field(
        default_factory=dict
    )  # chain id → lowest fork the ledger wasn't asked about

    def __post_init__(self) -> None:
        for chain_id, watch in self.watches.items():
            watch.on_change = partial(self._changed, chain_id)

    async def run(self, chain_id: int) -> None:
        async with aclosing(self.heads[chain_id]()) as heads:
            async for head in heads:
                try:
                    await self.once(chain_id, head)
                except RpcError as error:
                    _log.warning("chain %s: %s", chain_id, error)
                    self.watches[chain_id].block_expected.set()  # not seen whole: soon again
                except Exception:  # noqa: BLE001 - a loop's edge: the cause is logged, the next head tries again
                    _log.exception("chain %s: a head was not told to the lanes", chain_id)

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
            self._unasked[chain_id] = min(undone[-1], self._unasked.get(chain_id, undone[-1]))
        self._unlooked.discard(chain_id)

    async def _ask_what_is_undone(self, chain_id: int) -> None:
        """A fork may reach below what has ended, of signers that nobody holds any more.

        The view moves on at once and shows a fork only once: one that the ledger could not be asked about is kept.
        """
        if (forked_at := self._unasked.get(chain_id)) is None:
            return
        for signer in await self.ledger.signers_finished_since(chain_id, forked_at):
            self.on_undone(signer, forked_at)
        del self._unasked[chain_id]

    def _tell_lanes(self, chain_id: int, change: HeadChange) -> None:
        self.lanes.head_moved()
        self._tell_whose_hashes(chain_id, change)
        if change.forked_at is not None:
            _log.warning(
                "chain %s forked at block %s, below head %s", chain_id, change.forked_at, change.old_head
            )
            self._unasked[chain_id] = min(change.forked_at, self._unasked.get(chain_id, change.forked_at))
        concerns_all = change.begun_anew or change.forked_at is not None
        for lane in self.lanes if concerns_all else self.lanes.watchful():
            if lane.signer.chain_id != chain_id:
                continue
            lane.must_look_up |= change.begun_anew and any(tx.attempts for tx in lane.unmined)
            if change.forked_at is not None:
                self.lanes.forked(lane.signer, change.forked_at)
            if lane.wants_blocks:
                self.lanes.wake(lane.signer)  # what else a lane waits for, it has its own timer for

    def _tell_whose_hashes(self, chain_id: int, change: HeadChange) -> None:
        """What it costs grows with the blocks, not with the lanes that wait."""
        awaited = self.watches[chain_id].awaited
        for block in change.blocks:
            for tx_hash in block.tx_hashes:
                if (signer := awaited.get(tx_hash)) is None:
                    continue
                if (lane := self.lanes.get(signer)) is not None:
                    lane.seen.add(tx_hash)
                    self.lanes.wake(signer)
                else:  # a lane that was lost wrote it at the last moment
                    del awaited[tx_hash]
