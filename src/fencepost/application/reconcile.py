"""On take-over and on boot: the ledger against the chain, before anything new happens.

Nothing is known but what the ledger holds. Receipts of all attempts say what mined; the chain's nonces say whether
somebody else used the key; what a deep reorg undid is opened again; everything else that has a nonce is sent again,
lowest first, as the bytes that are stored. A handler's nonce whose bytes were never stored is filled.
"""

from __future__ import annotations

from functools import partial

from fencepost.application.lane import Lane
from fencepost.application.ports import Cursor
from fencepost.application.sequence import compare_at_take_over, recall_doubt
from fencepost.application.track import look_up
from fencepost.domain import managed
from fencepost.domain.confirmations import Standing, standing
from fencepost.domain.managed import ManagedTx
from fencepost.errors import RpcUnavailable

# How many ended transactions are looked at together when a fork may have undone them.
MOST_REOPENED = 512

# A take-over looks at this many of the newest ended ones, because a fork may have happened while nobody watched.
RECENT = 16


async def reconcile(lane: Lane) -> None:
    if not lane.watch.has_begun:
        raise RpcUnavailable("the chain has not been seen yet")
    limit = lane.policy.read_ahead
    lane.queue.take_arrivals()  # what is stored by now is read
    lane.queue_may_have_more = False  # unless more is stored meanwhile
    state = await lane.ledger.load(lane.signer, queue_limit=limit)
    lane.adopt(state, queue_limit=limit)
    lane.suspicions.clear()
    recall_doubt(lane, state)
    if lane.cursor is not None:
        latest = await lane.chain.nonce(lane.signer.address, "latest")
        await compare_at_take_over(lane, latest=latest)
        await reopen_undone(lane, latest=latest)
    if lane.in_flight:
        await _settle(lane)
    lane.receipt_checked_at_s = lane.clock.now_s()
    lane.reconciled = True


async def _settle(lane: Lane) -> None:
    with_bytes = [tx for tx in lane.unmined if tx.attempts]
    if with_bytes:
        await look_up(lane, with_bytes)
    now_s = lane.clock.now_s()
    for nonce, tx in lane.in_flight.items():
        # Whether it was sent is not known: it is due at once. The claim is written when it is sent.
        if tx.mined is None and tx.attempts and tx.latest.sent_count > 0:
            lane.in_flight[nonce] = tx.changed(resubmit_due_s=now_s)


async def reopen_undone(lane: Lane, *, latest: int | None = None) -> int:
    """Ended transactions whose block is gone: a reorg deeper than the required depth. They are live again."""
    if lane.cursor is None:
        return 0
    above_view = lane.watch.view.head + 1  # forked out before we see it, perhaps: it is looked at to the last
    down_to = lane.looks_down_to = _lowest(above_view, lane.forked_at, lane.unseen_from)
    lane.forked_at = lane.unseen_from = None
    try:
        return await _reopen_undone(lane, lane.cursor, latest, down_to)
    except Exception:  # the lane may go on after some of them
        lane.forked_at = _lowest(down_to, lane.forked_at)
        raise
    finally:
        lane.looks_down_to = None


def _lowest(block: int, *others: int | None) -> int:
    return min([block, *(other for other in others if other is not None)])


async def _reopen_undone(lane: Lane, cursor: Cursor, latest: int | None, down_to: int) -> int:
    """All at the chain's nonce and above; and below it down to this block, or as far as they are undone.

    Blocks rise with nonces, so below the fork everything stands. Above it one that stands says nothing of those below:
    they may have been mined again, in other blocks than the ones that are stored, before it was mined at all.
    """
    if latest is None:
        latest = await lane.chain.nonce(lane.signer.address, "latest")
    reach = RECENT
    lowest = _lowest_of_ended(lane, cursor, min(latest, cursor.next_nonce), reach)
    count, is_more = await _reopen_between(lane, lowest, cursor.next_nonce, latest, down_to)
    while is_more and lowest > cursor.start_nonce:
        reach = min(MOST_REOPENED, 4 * reach)
        stop, lowest = lowest, _lowest_of_ended(lane, cursor, lowest, reach)
        more, is_more = await _reopen_between(lane, lowest, stop, latest, down_to)
        count += more
    return count


async def _reopen_between(lane: Lane, lowest: int, stop: int, latest: int, down_to: int) -> tuple[int, bool]:
    """How many are open again, and whether more may be undone below. A page at a time, upwards."""
    count, from_nonce = 0, lowest
    lowest_mined: ManagedTx | None = None
    is_lowest_undone = False
    while from_nonce < stop:
        ended = await lane.ledger.load_finished(lane.signer, from_nonce=from_nonce, limit=MOST_REOPENED)
        mined = [tx for tx in ended if tx.mined is not None and tx.held_nonce() < stop]
        undone = [tx for tx in mined if await _is_undone(lane, tx, latest)]
        if mined and lowest_mined is None:
            lowest_mined = mined[0]
            is_lowest_undone = bool(undone) and undone[0] is lowest_mined
        if undone:
            count += await _reopen(lane, undone)
        from_nonce = ended[-1].held_nonce() + 1 if len(ended) == MOST_REOPENED else stop
    return count, is_lowest_undone or _is_above(down_to, lowest_mined)


def _is_above(down_to: int, lowest: ManagedTx | None) -> bool:
    """Whether there may be more below the lowest that was found; if none was, nothing says that there isn't."""
    return lowest is None or lowest.mined is None or lowest.mined.block.number >= down_to


async def _reopen(lane: Lane, undone: list[ManagedTx]) -> int:
    lane.observer.note("reopened", signer=lane.signer, count=len(undone))
    due = partial(managed.orphaned, due_s=lane.clock.now_s())
    stored = await lane.commit([lane.change(tx, due) for tx in undone], op="reopen")
    await look_up(lane, stored)
    return len(stored)


def _lowest_of_ended(lane: Lane, cursor: Cursor, below: int, reach: int) -> int:
    """What has ended are our nonces that are not in flight: a full window would hide them from a count by nonces."""
    nonce, left = below, reach
    while left > 0 and nonce > cursor.start_nonce:
        nonce -= 1
        left -= nonce not in lane.in_flight
    return nonce


async def _is_undone(lane: Lane, tx: ManagedTx, latest: int) -> bool:
    if tx.mined is None:
        return False
    block = tx.mined.block
    where = standing(block, await lane.watch.view_around(block.number, above=0))
    if where is not Standing.BEYOND_VIEW:
        return where is Standing.ORPHANED
    if tx.held_nonce() >= latest:
        return True
    # Our view is behind, or it went back: whether its nonce was consumed in that block or in another is seen later.
    lane.unseen_from = _lowest(block.number, lane.unseen_from)
    return False
