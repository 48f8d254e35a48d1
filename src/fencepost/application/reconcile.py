"""Compare the ledger with the chain at a take-over and at a start, before anything new is sent.

The lane knows only what the ledger holds. The receipts of all attempts show what was mined; the chain's nonces show
whether another program used the key; transactions that a deep reorg undid are reopened; everything else that has a nonce
is resubmitted, lowest first, with the stored bytes. A handler's nonce whose bytes were never stored is filled.
"""

from __future__ import annotations

from functools import partial

from fencepost.application.lane import Lane, protect
from fencepost.application.nonce_sync import compare_at_take_over, restore_doubt
from fencepost.application.ports import Cursor
from fencepost.application.track import fetch_receipts, hashes_of, receipt_of
from fencepost.domain import transaction_state
from fencepost.domain.confirmations import BlockRef, BlockStatus, block_status
from fencepost.domain.transaction_state import ManagedTx
from fencepost.errors import RpcUnavailable

# How many ended transactions are checked together when a fork may have undone them.
MAX_REOPENED = 512

# A take-over checks this many of the newest ended ones, because a fork may have happened while no node ran.
RECENT_FINISHED = 16


async def reconcile(lane: Lane) -> None:
    """Load the lane from the ledger, and compare it with the chain."""
    limit = lane.settings.read_ahead
    lane.queue.take_arrivals()  # the load below reads them
    lane.queue.may_be_longer = False  # more may be stored meanwhile: then it is set again
    state = await lane.ports.ledger.load(lane.signer, queue_limit=limit)
    lane.adopt(state, queue_limit=limit)
    lane.suspicion.consumed_counts.clear()
    restore_doubt(lane, state)
    if lane.unreadable:
        await protect_unreadable(lane)
    if not lane.ports.chain_view.has_head:
        await lane.ports.chain.head()  # raises the cause, if the endpoints cannot be used
        raise RpcUnavailable("no block of the chain has been read yet; the lane retries")
    if lane.cursor is not None:
        latest = await lane.ports.chain.nonce(lane.signer.address, "latest")
        await compare_at_take_over(lane, latest=latest)
        await reopen_undone(lane, latest=latest)
    if lane.in_flight:
        await _settle(lane)
    lane.blocks.receipt_checked_at_s = lane.now_s()
    lane.reconciled = True


async def raise_alarm(lane: Lane, reason: str) -> None:
    """Protect a signer whose lane could not be loaded or stepped, which is all that is known of it here."""
    if lane.cursor is None:
        state = await lane.ports.ledger.load_cursor(lane.signer)
        lane.cursor = state.cursor
        restore_doubt(lane, state)
    await protect(lane, reason)
    lane.suspicion.alarm = None


async def protect_unreadable(lane: Lane) -> None:
    """Protect a signer with a row that cannot be decoded: no request may overtake it before an operator decides."""
    rows = list(lane.unreadable.values())
    more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    await protect(lane, f"{rows[0]}{more}; cancel it or restore its row, then unprotect")


async def _settle(lane: Lane) -> None:
    with_bytes = [tx for tx in lane.unmined if tx.attempts]
    if with_bytes:
        await fetch_receipts(lane, with_bytes)
    now_s = lane.now_s()
    for nonce, tx in lane.in_flight.items():
        # It is unknown whether it was sent, so it is due at once. The claim is written when it is sent.
        if tx.mined is None and tx.attempts and tx.latest.sent_count > 0:
            lane.in_flight[nonce] = tx.changed(resubmit_due_s=now_s)


async def reopen_undone(lane: Lane, *, latest: int | None = None) -> int:
    """Reopen ended transactions whose block a reorg deeper than the required depth removed. Return how many."""
    blocks = lane.blocks
    if lane.cursor is None:
        return 0
    # Blocks above the view are always checked: a fork may remove one before the view shows it.
    above_view = lane.ports.chain_view.view.head + 1
    down_to = blocks.checking_down_to = _lowest(above_view, blocks.forked_at, blocks.unseen_from)
    blocks.forked_at = blocks.unseen_from = None
    try:
        return await _reopen_undone(lane, lane.cursor, latest, down_to)
    except Exception:  # the lane may continue after some of them
        blocks.forked_at = _lowest(down_to, blocks.forked_at)
        raise
    finally:
        blocks.checking_down_to = None


def _lowest(block: int, *others: int | None) -> int:
    return min([block, *(other for other in others if other is not None)])


async def _reopen_undone(lane: Lane, cursor: Cursor, latest: int | None, down_to: int) -> int:
    """Check all at the chain's nonce and above; and below it down to this block, or as far as they are undone.

    Blocks rise with nonces, so everything below the fork is canonical. Above the fork one canonical transaction proves
    nothing about those below: they may have been mined again, in other blocks than the stored ones, before it was mined.
    """
    if latest is None:
        latest = await lane.ports.chain.nonce(lane.signer.address, "latest")
    reach = RECENT_FINISHED
    lowest = _lowest_of_ended(lane, cursor, min(latest, cursor.next_nonce), reach)
    count, is_more = await _reopen_between(lane, lowest, cursor.next_nonce, latest, down_to)
    while is_more and lowest > cursor.start_nonce:
        reach = min(MAX_REOPENED, 4 * reach)
        stop, lowest = lowest, _lowest_of_ended(lane, cursor, lowest, reach)
        more, is_more = await _reopen_between(lane, lowest, stop, latest, down_to)
        count += more
    return count


async def _reopen_between(lane: Lane, lowest: int, stop: int, latest: int, down_to: int) -> tuple[int, bool]:
    """Return how many were reopened, and whether more may be undone below. Reads page by page, upwards."""
    count, from_nonce = 0, lowest
    lowest_mined: ManagedTx | None = None
    is_lowest_undone = False
    while from_nonce < stop:
        ended = await lane.ports.ledger.load_finished(lane.signer, from_nonce=from_nonce, limit=MAX_REOPENED)
        mined = [tx for tx in ended if tx.mined is not None and tx.held_nonce() < stop]
        undone = [tx for tx in mined if await _is_undone(lane, tx, latest)]
        if mined and lowest_mined is None:
            lowest_mined = mined[0]
            is_lowest_undone = bool(undone) and undone[0] is lowest_mined
        if undone:
            count += await _reopen(lane, await _still_undone(lane, undone))
        lost = [tx for tx in ended if tx.mined is None and tx.held_nonce() < stop]
        if lost:
            count += await _reopen_lost(lane, lost, latest)
        from_nonce = ended[-1].held_nonce() + 1 if len(ended) == MAX_REOPENED else stop
    return count, is_lowest_undone or _is_above(down_to, lowest_mined)


def _is_above(down_to: int, lowest: ManagedTx | None) -> bool:
    """Return whether more may be undone below the lowest that was found; if none was found, more may be."""
    return lowest is None or lowest.mined is None or lowest.mined.block.number >= down_to


async def _still_undone(lane: Lane, undone: list[ManagedTx]) -> list[ManagedTx]:
    """Compare once more after checking the endpoints' identity: on another chain every transaction looks undone."""
    await lane.ports.chain.check_identity()
    latest = await lane.ports.chain.nonce(lane.signer.address, "latest")
    return [tx for tx in undone if await _is_undone(lane, tx, latest)]


async def _reopen(lane: Lane, undone: list[ManagedTx]) -> int:
    if not undone:
        return 0
    lane.ports.observer.note("reopened", signer=lane.signer, count=len(undone))
    due = partial(transaction_state.orphan, due_s=lane.now_s())
    stored = await lane.commit([lane.change(tx, due) for tx in undone], op="reopen")
    await fetch_receipts(lane, stored)
    return len(stored)


async def _reopen_lost(lane: Lane, lost: list[ManagedTx], latest: int) -> int:
    """Reopen lost transactions whose nonce is free again, whose own bytes were mined, or whose evidence a fork removed.

    They become SUPERSEDED, so that the same checks apply as before: a lagging node does not send anything.
    """
    receipts = await lane.ports.chain.receipts(hashes_of(lost))
    found = {receipt.tx_hash: receipt for receipt in receipts if receipt is not None}
    wrong = [
        tx
        for tx in lost
        if tx.held_nonce() >= latest
        or receipt_of(tx, found) is not None
        or (tx.lost_at is not None and await _has_left_chain(lane, tx.lost_at))
    ]
    if wrong:
        await lane.ports.chain.check_identity()
        lane.ports.observer.note("reopened", signer=lane.signer, count=len(wrong))
        await lane.commit([lane.change(tx, transaction_state.reopen) for tx in wrong], op="reopen")
        lane.suspicion.superseded.seen_at = None
    return len(wrong)


def _lowest_of_ended(lane: Lane, cursor: Cursor, below: int, reach: int) -> int:
    """Return the nonce of the `reach`-th ended transaction below `below`: nonces in flight are not counted."""
    nonce, left = below, reach
    while left > 0 and nonce > cursor.start_nonce:
        nonce -= 1
        left -= nonce not in lane.in_flight
    return nonce


async def _is_undone(lane: Lane, tx: ManagedTx, latest: int) -> bool:
    if tx.mined is None:
        return False
    return await _has_left_chain(lane, tx.mined.block, is_free=tx.held_nonce() >= latest)


async def _has_left_chain(lane: Lane, block: BlockRef, *, is_free: bool = False) -> bool:
    """Return whether a block left the chain. Beyond the view, only a nonce that is free again shows it."""
    where = block_status(block, await lane.ports.chain_view.view_around(block.number, above=0))
    if where is not BlockStatus.BEYOND_VIEW:
        return where is BlockStatus.ORPHANED
    if is_free:
        return True
    # The view lags, or it went back: a later check shows in which block its nonce was consumed.
    lane.blocks.unseen_from = _lowest(block.number, lane.blocks.unseen_from)
    return False
