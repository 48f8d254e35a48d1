"""Step many lanes of one chain together when each has only routine work.

Per-lane overhead dominates when each lane has one transaction. Here all lanes fetch receipts together, sign together, write
together and send together. Each lane does the same as in `lane_step`, in the same order: receipts, nonces, sends. Each write
belongs to one lane, under its own token, all or nothing, so a crash on any line leaves what a crash in `lane_step` leaves.

`is_batchable` selects the lanes. A lane that meets anything else during the batch is left unchanged and steps alone: its own
step meets the same situation again and handles it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from fencepost.application import signing
from fencepost.application.allocate import (
    MAX_NONCES_PER_COMMIT,
    Priced,
    allocations,
    batch_size,
    price_without_rpc,
    unsigned_txs,
    window_capacity,
)
from fencepost.application.broadcast import (
    defer_send_results,
    needs_no_follow_up,
    record_send_results,
    waiting_to_be_sent,
)
from fencepost.application.lane import Lane, LaneSettings, StateMoved
from fencepost.application.lane_step import next_step_in_s, take_arrivals
from fencepost.application.nonce_sync import is_checked
from fencepost.application.pool_watch import is_pool_check_due
from fencepost.application.ports import Chain, Cursor, LaneWrite, TxChange
from fencepost.application.signing import Batch
from fencepost.application.track import (
    Depths,
    changes_from_receipts,
    due_for_receipts,
    hashes_of,
    is_written_with_next,
)
from fencepost.domain.ids import Signer
from fencepost.domain.states import CursorState, SubState
from fencepost.domain.transaction import UnsignedTx
from fencepost.domain.transaction_state import ManagedTx
from fencepost.errors import Fenced, FencepostError, RpcError

# Looked up once: in Python 3.11 access to an enumeration member is a function call.
_ACTIVE, _SUPERSEDED = CursorState.ACTIVE, SubState.SUPERSEDED


class NeedsOwnStep(Exception):
    """The lane met a situation that its own step must handle."""


class _AllocationPlan(NamedTuple):
    lane: Lane
    cursor: Cursor
    priced: list[Priced]
    txs: list[UnsignedTx]


def allows_batch_step(settings: LaneSettings) -> bool:
    """Return whether lanes with these settings may be batched: not strict ones, nor those that fetch receipts after a send."""
    return not (settings.strict or settings.fetch_receipt_upon_entry)


def is_batchable(lane: Lane) -> bool:
    """Return whether a lane has only receipts to fetch, nonces to assign or deferred writes to flush."""
    suspicion = lane.suspicion
    cursor, now_s = lane.cursor, lane.now_s()
    if (
        cursor is None
        or cursor.state is not _ACTIVE
        or cursor.pause is not None
        or not lane.reconciled
        or suspicion.alarm is not None
        or lane.commands.may_wait
        or lane.queue.may_be_longer
        or lane.blocks.must_fetch_receipts
        or suspicion.doubts_history
        or lane.sending.allocation_paused_until_s
        or lane.sending.window_limit is not None
        or is_pool_check_due(lane, now_s)
        or suspicion.ahead.checked_at_s is not None
        or lane.finality_unknown
        or not (allows_batch_step(lane.settings) and is_checked(lane, now_s))
    ):
        return False
    for tx in lane.in_flight.values():
        # Each must have bytes, wait for its block, and not be due for another send.
        if tx.mined is not None or not tx.attempts or tx.sub_state is _SUPERSEDED:
            return False
        if tx.resubmit_due_s is not None and tx.resubmit_due_s <= now_s:
            return False
    return bool(lane.blocks.receipt_ready_hashes or lane.queue or lane.queue.arrived or lane.due_deferred())


def weight(lane: Lane, at_most: int) -> int:
    """Return how many transactions of the lane a batch handles: with too many, the other lanes would wait."""
    return max(
        1, len(lane.blocks.receipt_ready_hashes), min(len(lane.queue) + len(lane.queue.arrived), at_most)
    )


def next_batch_step_in_s(lane: Lane) -> float | None:
    """Return the seconds until the next step after a batch step, which may have left requests that fit into the window."""
    return 0.0 if lane.queue and window_capacity(lane) > 0 else next_step_in_s(lane)


async def batch_step(
    lanes: Sequence[Lane], at_most: int = MAX_NONCES_PER_COMMIT
) -> Mapping[Signer, Exception]:
    """Step the lanes together; return those that did not complete, with the error.

    Each lane assigns `at_most` nonces; the rest is left to the next step.
    """
    step = _BatchStep(at_most)
    await step.take_receipts(lanes)
    await step.allocate_nonces(step.remaining(lanes))
    await step.send(step.remaining(lanes))
    await step.flush_due(step.remaining(lanes))
    return step.failed


class _BatchStep:
    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self.failed: dict[Signer, Exception] = {}

    def remaining(self, lanes: Iterable[Lane]) -> list[Lane]:
        return [lane for lane in lanes if lane.signer not in self.failed] if self.failed else list(lanes)

    def _defer_to_own_step(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            self.failed[lane.signer] = NeedsOwnStep()

    # ---- receipts

    async def take_receipts(self, lanes: Sequence[Lane]) -> None:
        """Write what the receipts changed, now or together with the next nonces."""
        ended = await self._changes_from_receipts(lanes)
        writes: list[tuple[Lane, LaneWrite]] = []
        for lane, changes in ended:
            if is_written_with_next(lane):
                lane.defer(changes, for_s=0)
            else:
                writes.append((lane, lane.build_write(changes)))
        await self._commit(writes, op="receipt")
        self._defer_to_own_step(lane for lane, _ in ended if lane.has_mined)

    async def _changes_from_receipts(
        self, lanes: Sequence[Lane]
    ) -> Sequence[tuple[Lane, Sequence[TxChange]]]:
        due = [(lane, txs) for lane in lanes if (txs := due_for_receipts(lane))]
        if not due:
            return ()
        try:
            hashes = [tx_hash for _, txs in due for tx_hash in hashes_of(txs)]
            receipts = await lanes[0].ports.chain_view.receipts.fetch(lanes[0].ports.chain, hashes)
        except RpcError:
            for lane, _ in due:
                lane.blocks.must_fetch_receipts = True
            self._defer_to_own_step(lane for lane, _ in due)
            return ()
        found = {receipt.tx_hash: receipt for receipt in receipts if receipt is not None}
        depths: Depths = {}
        ended: list[tuple[Lane, Sequence[TxChange]]] = []
        for lane, txs in due:
            changes = changes_from_receipts(lane, txs, found, depths)
            lane.ports.observer.note("receipts", signer=lane.signer, asked=len(txs), found=len(changes))
            if changes:
                ended.append((lane, changes))
            if len(changes) < len(txs):
                lane.blocks.must_fetch_receipts = True
                self._defer_to_own_step([lane])
        return ended

    # ---- nonces

    async def allocate_nonces(self, lanes: Sequence[Lane]) -> None:
        await self._commit(await self._allocations(lanes), op="allocate")

    async def _allocations(self, lanes: Sequence[Lane]) -> Sequence[tuple[Lane, LaneWrite]]:
        waiting_lanes = [lane for lane in lanes if lane.queue or lane.queue.arrived]
        planned = [plan for lane in waiting_lanes if (plan := await self._plan(lane)) is not None]
        if not planned:
            return ()
        signed = await signing.sign_each(
            [Batch(lane, [item.tx for item in priced], txs) for lane, _, priced, txs in planned]
        )
        writes: list[tuple[Lane, LaneWrite]] = []
        for (lane, cursor, priced, _), lane_signed in zip(planned, signed, strict=True):
            if isinstance(lane_signed, BaseException) or not lane.is_trusted:
                self._defer_to_own_step([lane])
                continue
            changes = allocations(lane, cursor, priced, lane_signed)
            writes.append((lane, lane.build_write(changes, cursor=cursor.past(len(changes)))))
        return writes

    async def _plan(self, lane: Lane) -> _AllocationPlan | None:
        take_arrivals(lane)
        try:
            quoted = await signing.quote(lane)
        except RpcError:
            self._defer_to_own_step([lane])
            return None
        cursor, priced = lane.cursor, price_without_rpc(lane, quoted, batch_size(lane, self._at_most))
        if cursor is None or priced is None or lane.queue.may_be_longer or not lane.is_trusted:
            self._defer_to_own_step([lane])
            return None
        return _AllocationPlan(lane, cursor, priced, unsigned_txs(lane, cursor, priced)) if priced else None

    # ---- sends

    async def send(self, lanes: Sequence[Lane]) -> None:
        """Send the waiting bytes. In a batch, a lane with a rejected or unanswered send steps alone and sends the same bytes."""
        sending: dict[Chain, list[tuple[Lane, list[ManagedTx]]]] = {}
        for lane in lanes:
            if waiting := waiting_to_be_sent(lane):
                if lane.is_trusted:
                    sending.setdefault(lane.ports.chain, []).append((lane, waiting))
                else:
                    self._defer_to_own_step([lane])
        for chain, batch in sending.items():
            results = await chain.send([tx.latest.signed for _, txs in batch for tx in txs])
            answers = iter(results)
            for lane, txs in batch:
                lane_results = list(islice(answers, len(txs)))
                try:
                    if all(map(needs_no_follow_up, txs, lane_results)):
                        defer_send_results(lane, txs, lane_results)
                    elif len(batch) == 1:  # no other lane waits while a rejection is handled
                        await record_send_results(lane, txs, lane_results)
                    else:
                        self._defer_to_own_step([lane])
                except FencepostError as error:
                    self.failed[lane.signer] = error

    async def flush_due(self, lanes: Sequence[Lane]) -> None:
        await self._commit([(lane, lane.build_write()) for lane in lanes if lane.due_deferred()], op="held")

    async def _commit(self, writes: Sequence[tuple[Lane, LaneWrite]], *, op: str) -> None:
        """Commit all writes together. An error of the ledger fails all lanes: which writes were stored is unknown."""
        if not writes:
            return
        written = await writes[0][0].ports.ledger.commit_each([write for _, write in writes])
        for (lane, write), answer in zip(writes, written, strict=True):
            try:
                lane.apply_result(write, answer, op=op)
            except (Fenced, StateMoved) as error:
                self.failed[lane.signer] = error
