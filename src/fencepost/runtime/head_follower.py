"""Follow the heads of the chains, and wake the lanes whose hashes a block holds or whose blocks a fork removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fencepost.application.allocate import window_capacity
from fencepost.application.block_receipts import WholeBlock
from fencepost.application.chain_view import ChainView, HeadChange
from fencepost.application.ports import Block, Clock, Header, Ledger
from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Signer, TxHash
from fencepost.errors import ChainReplaced
from fencepost.runtime.lane_scheduler import LaneScheduler
from fencepost.tasks.service_loop import FailureLog, IsDatabaseFailure, is_broken_connection

_log = logging.getLogger(__name__)

# When a chain view starts, blocks in which transactions ended are compared with the chain in pages of this size,
# newest first.
ENDED_BLOCKS_PAGE = 64

# After this many pages that each contain a removed block, all signers are checked instead.
MAX_ENDED_BLOCKS_PAGES = 64

# Signers that a fork affects are read in pages of this size.
SIGNERS_PAGE = 1000

# The ledger is queried at once for the signers that a fork affects, and again after these seconds: a lease holder whose
# view lags does not know the fork, and may still write an end in a removed block.
CHECK_DELAYS_S = (0.0, 2.0, 15.0, 60.0)

# A feed yields each head once. A head whose processing failed is retried after a growing pause.
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 2.0

# An endless generator of a chain's new heads; the caller closes it.
HeadFeed = Callable[[], AsyncGenerator[Header, None]]


class _UndoneCheck(NamedTuple):
    """Schedule a query for the signers whose transactions ended in this block or above."""

    block: int
    due_s: float


@dataclass(frozen=True, slots=True)
class HeadFollower:
    """Follow one head feed per chain, refresh the chain view, and pass each change on to the lanes."""

    chain_views: Mapping[int, ChainView]  # by chain id
    heads: Mapping[int, HeadFeed]  # by chain id
    lanes: LaneScheduler
    ledger: Ledger
    clock: Clock
    on_undone: Callable[[Signer, int], None]  # a fork at this block may have undone ended transactions
    is_database_failure: IsDatabaseFailure = is_broken_connection
    _unchecked: set[int] = field(default_factory=set)  # chain ids whose ended blocks must be compared
    _readers: dict[int, asyncio.TaskGroup] = field(default_factory=dict)  # by chain id, while it is followed
    _checks: dict[int, list[_UndoneCheck]] = field(default_factory=dict)  # by chain id: not yet run

    def __post_init__(self) -> None:
        """Subscribe to the changes and failures of every chain view."""
        for chain_id, chain_view in self.chain_views.items():
            chain_view.on_change = partial(self._changed, chain_id)
            chain_view.on_failure = partial(self._failed, chain_id)

    async def run(self, chain_id: int) -> None:
        """Follow the heads of one chain until cancelled."""
        failure_log = FailureLog(f"heads of chain {chain_id}", self.is_database_failure)
        async with asyncio.TaskGroup() as readers, aclosing(self.heads[chain_id]()) as heads:
            self._readers[chain_id] = readers
            try:
                async for head in heads:
                    await self._follow_until_read(chain_id, head, failure_log)
            finally:
                del self._readers[chain_id]

    async def _follow_until_read(self, chain_id: int, head: Header, failure_log: FailureLog) -> None:
        pause_s = FIRST_PAUSE_S
        now: Header | None = head
        while not await self._follow(chain_id, now, failure_log):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            now = None  # the retry reads the head of that moment

    async def _follow(self, chain_id: int, head: Header | None, failure_log: FailureLog) -> bool:
        try:
            await self.once(chain_id, head)
        except Exception as error:  # noqa: BLE001 - a loop's edge: the cause is logged, and it is tried again
            failure_log.failed(error)
            self._failed(chain_id, error)
            return False
        failure_log.succeeded()
        return True

    async def once(self, chain_id: int, head: Header | None = None) -> HeadChange:
        """Refresh the view with this head, or with the current one, and run the checks that are due."""
        change = await self.chain_views[chain_id].refresh(head)
        await self._check_ended_blocks(chain_id)
        await self._run_due_checks(chain_id)
        return change

    def _failed(self, chain_id: int, error: Exception) -> None:
        """Raise the alarm in every lane of a chain that was replaced by another one, even if the lane waits for a block."""
        if not isinstance(error, ChainReplaced):
            return
        for lane in self.lanes:
            if lane.signer.chain_id == chain_id and lane.on_chain_replaced(error):
                self.lanes.wake(lane.signer)

    def _changed(self, chain_id: int, change: HeadChange) -> None:
        """Handle a change of the view, made by this loop or by a lane that refreshed the view itself."""
        self._notify_lanes(chain_id, change)
        if change.restarted or (change.forked_at is not None and change.forked_at <= change.old_lowest):
            self._unchecked.add(chain_id)

    async def _check_ended_blocks(self, chain_id: int) -> None:
        """Compare the blocks in which transactions ended with the chain.

        A view shows no fork below its first block, and no node may have run while the chain forked.
        """
        if chain_id not in self._unchecked:
            return
        lowest = await self._lowest_undone(chain_id)
        if lowest is not None:
            _log.warning("chain %s forked at block %s or below while no node followed it", chain_id, lowest)
            self._schedule_checks(chain_id, lowest, after_s=(0.0,))  # a node that ran saw the fork
        self._unchecked.discard(chain_id)

    async def _lowest_undone(self, chain_id: int) -> int | None:
        """Return the lowest block that is gone, going down page by page until all blocks of a page are canonical.

        One canonical block proves nothing about those below it: an earlier fork may have undone them, and the lease
        holder may have died before it handled that fork.
        """
        lowest: int | None = None
        below: int | None = None
        for _ in range(MAX_ENDED_BLOCKS_PAGES):
            page = await self.ledger.newest_ended_blocks(chain_id, limit=ENDED_BLOCKS_PAGE, below=below)
            gone = [block.number for block in page if not await self._is_canonical(chain_id, block)]
            if not gone:
                return lowest
            lowest, below = gone[-1], page[-1].number
        _log.error(
            "chain %s: %s pages of ended transactions are in blocks that are no longer canonical; all signers are"
            " checked. Verify that the endpoint serves the right chain",
            chain_id,
            MAX_ENDED_BLOCKS_PAGES,
        )
        return 0

    async def _is_canonical(self, chain_id: int, block: BlockRef) -> bool:
        now = await self.chain_views[chain_id].chain.block(block.number)
        return now is not None and now.header.hash == block.hash

    def _schedule_checks(self, chain_id: int, block: int, *, after_s: Sequence[float]) -> None:
        now_s = self.clock.now_s()
        checks = self._checks.setdefault(chain_id, [])
        checks.extend(_UndoneCheck(block, now_s + later_s) for later_s in after_s)

    async def _run_due_checks(self, chain_id: int) -> None:
        """Find signers whose ended transactions a fork may have undone, even if no node holds their lease.

        The view reports a fork only once, so a check stays scheduled until the ledger has answered.
        """
        now_s = self.clock.now_s()
        due = [check for check in self._checks.get(chain_id, ()) if check.due_s <= now_s]
        if not due:
            return
        block = min(check.block for check in due)
        after: Signer | None = None
        while True:
            page = await self.ledger.signers_finished_since(chain_id, block, limit=SIGNERS_PAGE, after=after)
            for signer in page:
                self.on_undone(signer, block)
            if len(page) < SIGNERS_PAGE:
                break
            after = page[-1]
        # Keep checks that were scheduled during the queries.
        self._checks[chain_id] = [check for check in self._checks[chain_id] if check not in due]

    def _notify_lanes(self, chain_id: int, change: HeadChange) -> None:
        self.lanes.head_moved()
        self._notify_hash_owners(chain_id, change)
        if change.forked_at is not None:
            _log.warning(
                "chain %s forked at block %s, below head %s", chain_id, change.forked_at, change.old_head
            )
            self._schedule_checks(chain_id, change.forked_at, after_s=CHECK_DELAYS_S)
        concerns_all = change.restarted or change.forked_at is not None
        for lane in self.lanes if concerns_all else self.lanes.lanes_awaiting_blocks():
            if lane.signer.chain_id != chain_id:
                continue
            needs_step = lane.on_head(change)
            if change.forked_at is not None:
                self.lanes.forked(lane.signer, change.forked_at)
            if needs_step:
                self.lanes.wake(lane.signer)  # for everything else a lane has its own timer

    def _notify_hash_owners(self, chain_id: int, change: HeadChange) -> None:
        """Pass each managed hash of the new blocks on to its lane. The cost grows with the blocks, not with the lanes."""
        chain_view = self.chain_views[chain_id]
        for block in change.blocks:
            ours = self._ours(chain_view, block)
            whole = chain_view.receipts.add_block(block, ours)
            readers = self._readers.get(chain_id)
            if whole is None or readers is None:
                self._notify_receipts_ready(chain_view, ours)
            else:  # an endpoint needs a while for a large block: lanes keep sending meanwhile
                self._wake_lanes_with_capacity(chain_view, ours)
                readers.create_task(self._read(chain_view, whole, ours), name=f"receipts-{chain_id}")

    def _ours(self, chain_view: ChainView, block: Block) -> list[TxHash]:
        awaited = chain_view.awaited
        ours: list[TxHash] = []
        for tx_hash in block.tx_hashes:
            if (signer := awaited.get(tx_hash)) is None:
                continue
            if (lane := self.lanes.get(signer)) is not None:
                lane.on_mined(tx_hash)
                ours.append(tx_hash)
            else:  # a lane added it just before it was dropped
                del awaited[tx_hash]
        return ours

    async def _read(self, chain_view: ChainView, whole: WholeBlock, ours: Sequence[TxHash]) -> None:
        try:
            await whole.read(chain_view.chain)
        except Exception:  # noqa: BLE001 - the lanes must be woken for their block after any error
            _log.exception(
                "cannot read the receipts of block %s at once: each lane fetches its own", whole.ref.number
            )
        self._notify_receipts_ready(chain_view, ours)

    def _wake_lanes_with_capacity(self, chain_view: ChainView, ours: Sequence[TxHash]) -> None:
        for signer in dict.fromkeys(chain_view.awaited[tx_hash] for tx_hash in ours):
            lane = self.lanes.get(signer)
            if lane is not None and lane.has_queue and window_capacity(lane) > 0:
                self.lanes.wake(signer)

    def _notify_receipts_ready(self, chain_view: ChainView, ours: Sequence[TxHash]) -> None:
        """Wake the lanes whose receipts can be fetched; skip lanes that are gone or have found their receipt."""
        for tx_hash in ours:
            signer = chain_view.awaited.get(tx_hash)
            if signer is not None and (lane := self.lanes.get(signer)) is not None:
                lane.on_receipt_ready(tx_hash)
                self.lanes.wake(signer)
