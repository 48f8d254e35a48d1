"""On take-over and on boot: the ledger against the chain, before anything new happens.

Nothing is known but what the ledger holds. Receipts of all attempts say what mined; the chain's nonces say whether
somebody else used the key; what a deep reorg undid is opened again; everything else that has a nonce is sent again,
lowest first, as the bytes that are stored. A handler's nonce whose bytes were never stored is filled.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fencepost.application.lane import Lane, protect
from fencepost.application.track import look_up
from fencepost.domain import managed
from fencepost.domain.confirmations import Standing, standing
from fencepost.domain.managed import ManagedTx

# How many ended transactions are looked at when the chain lies below them.
MOST_REOPENED = 512

QUEUE_LIMIT = 512


async def reconcile(lane: Lane) -> None:
    lane.adopt(await lane.ledger.load(lane.signer, queue_limit=QUEUE_LIMIT), queue_limit=QUEUE_LIMIT)
    lane.suspicions.clear()
    if lane.cursor is not None:
        latest = await lane.chain.nonce(lane.signer.address, "latest")
        if lane.policy.strict and latest > lane.cursor.next_nonce:
            await protect(
                lane,
                f"the chain's nonce is {latest}, ours is {lane.cursor.next_nonce}: somebody else uses this key",
            )
        if latest < lane.cursor.next_nonce:
            await reopen(lane, from_nonce=latest)
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
            lane.in_flight[nonce] = replace(tx, resubmit_due_s=now_s)


async def reopen(lane: Lane, *, from_nonce: int) -> int:
    """Ended transactions whose block is gone: a reorg deeper than the required depth. They are live again."""
    ended = await lane.ledger.load_finished(lane.signer, from_nonce=from_nonce, limit=MOST_REOPENED)
    undone: list[ManagedTx] = []
    for tx in ended:
        if tx.mined is None:
            continue
        view = await lane.watch.view_around(tx.mined.block.number, above=0)
        if standing(tx.mined.block, view) is not Standing.CANONICAL:
            undone.append(tx)
    if not undone:
        return 0
    lane.observer.note("reopened", signer=lane.signer, count=len(undone))
    due = partial(managed.orphaned, due_s=lane.clock.now_s())
    stored = await lane.commit([lane.change(tx, due) for tx in undone], op="reopen")
    await look_up(lane, stored)
    return len(stored)
