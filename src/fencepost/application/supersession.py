"""Decide about transactions whose nonce a foreign transaction has consumed, after an operator adopted the chain's nonce.

Such a transaction may fail only when the foreign one is final. A reorg may free its nonce before that, and its own
bytes, which cannot be recalled, may be mined instead. So it stays in flight as SUPERSEDED, is not sent, and each new head
decides:

- the chain's nonce has fallen back to its nonce, in two checks that are `SUSPICION_INTERVAL_S` apart: it is reclaimed, and its
  stored bytes go out again. So no gap is left.
- one of its own attempts has a receipt: it is mined, like any other.
- the nonce is consumed, and the head that first showed it is as deep in the chain as everything that ends: it is lost.

The block at which the consumption was first seen is kept in memory until then: the next lease holder counts from its own
first check. A lost transaction keeps it (`lost_at`): if a fork removes that block, the transaction is reopened (`reconcile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fencepost.application.lane import Lane
from fencepost.application.ports import TxChange
from fencepost.application.track import SUSPICION_INTERVAL_S, changes_from_receipts, hashes_of, receipt_of
from fencepost.domain import transaction_state
from fencepost.domain.confirmations import BlockRef, BlockStatus, confirm
from fencepost.domain.states import State
from fencepost.domain.transaction_state import ManagedTx


async def settle_superseded(lane: Lane) -> int:
    """Reclaim, record as mined, or fail superseded transactions. Return how many changed."""
    txs = lane.superseded
    if not txs or not _is_due(lane):
        return 0
    lane.suspicion.superseded.seen_at = _head(lane)
    latest = await lane.ports.chain.nonce(lane.signer.address, "latest")
    changes = _changes_of_free(lane, [tx for tx in txs if tx.held_nonce() >= latest])
    changes += await _changes_of_consumed(lane, [tx for tx in txs if tx.held_nonce() < latest])
    if changes:
        await lane.ports.chain.check_identity()  # another chain's nonces and receipts decide nothing
        await lane.commit(changes, op="superseded")
    return len(changes)


def superseded_due_s(lane: Lane) -> float | None:
    """Return when the next check is due that no new head triggers."""
    check = lane.suspicion.superseded
    return None if check.unconsumed_since_s is None else check.unconsumed_since_s + SUSPICION_INTERVAL_S


def _is_due(lane: Lane) -> bool:
    """Return whether there is a new head, or the second check of a nonce that seems to be free again is due."""
    due_s = superseded_due_s(lane)
    return lane.suspicion.superseded.seen_at != _head(lane) or (due_s is not None and due_s <= lane.now_s())


def _head(lane: Lane) -> BlockRef:
    view = lane.ports.chain_view.view
    return BlockRef(view.head, view.hashes[view.head])


def _changes_of_free(lane: Lane, txs: Sequence[ManagedTx]) -> list[TxChange]:
    """Reclaim nonces that two checks show free: one endpoint may lag behind the one that showed the nonce consumed."""
    check = lane.suspicion.superseded
    if not txs:
        check.unconsumed_since_s = None
        return []
    now_s = lane.now_s()
    check.consumed_at = None  # depth is counted from the next check that shows the nonces consumed
    if check.unconsumed_since_s is None:
        check.unconsumed_since_s = now_s
    if now_s < check.unconsumed_since_s + SUSPICION_INTERVAL_S:
        return []
    check.unconsumed_since_s = None
    return [lane.change(tx, partial(transaction_state.reclaim, due_s=now_s)) for tx in txs]


async def _changes_of_consumed(lane: Lane, txs: Sequence[ManagedTx]) -> list[TxChange]:
    check = lane.suspicion.superseded
    if not txs:
        return []
    receipts = await lane.ports.chain.receipts(hashes_of(txs))
    found = {receipt.tx_hash: receipt for receipt in receipts if receipt is not None}
    changes = changes_from_receipts(lane, txs, found, {})
    foreign = [tx for tx in txs if receipt_of(tx, found) is None and tx.state is not State.SUSPENDED]
    if foreign and await _is_final(lane) and check.consumed_at is not None and not lane.finality_unknown:
        lose = partial(transaction_state.fail_superseded, seen_at=check.consumed_at)
        changes += [lane.change(tx, lose) for tx in foreign]
    return changes


async def _is_final(lane: Lane) -> bool:
    """Return whether the head that first showed the nonces consumed is as deep as every transaction that ends."""
    check = lane.suspicion.superseded
    if check.unconsumed_since_s is not None:
        return False
    required = lane.settings.required_blocks
    if check.consumed_at is not None:
        view = await lane.ports.chain_view.view_around(check.consumed_at.number, above=required or 0)
        depth = confirm(check.consumed_at, view, recorded=(), required=required)
        if depth.block_status is not BlockStatus.ORPHANED:
            return depth.is_final
    await lane.ports.chain_view.refresh()  # the endpoint may be ahead of the view
    check.consumed_at = _head(lane)
    return confirm(check.consumed_at, lane.ports.chain_view.view, recorded=(), required=required).is_final
