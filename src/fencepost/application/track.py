"""Track sent transactions to their end: receipts, confirmations, forks.

New blocks show which managed hashes were mined (`lane.blocks.receipt_ready_hashes`); only those receipts are fetched. A missing
receipt is no error. The attempt that was mined decides. A receipt counts once its block is in the chain view, and the
transaction ends when that block is deep enough. When a block leaves the view, its receipts no longer count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from fencepost.application.allocate import next_needs_no_rpc, sign_ahead
from fencepost.application.attribution import check_consumed
from fencepost.application.gap_filling import check_gap
from fencepost.application.lane import Lane, protect
from fencepost.application.lane_set import LaneSet
from fencepost.application.ports import LaneWrite, TxChange
from fencepost.domain import transaction_state
from fencepost.domain.confirmations import BlockRef, BlockStatus, Confirmations, confirm
from fencepost.domain.ids import TxHash
from fencepost.domain.states import State
from fencepost.domain.transaction_state import ManagedTx, Receipt, Transition
from fencepost.errors import RpcError

# A nonce that looks consumed by a foreign transaction is checked this often before PROTECT: receipts may lag.
SUSPICIONS_BEFORE_PROTECT = 3

# Checks that follow one another faster than this count as one.
SUSPICION_INTERVAL_S = 2.0

# Pauses between receipt requests right after a send, on chains that mine each transaction at once. A request takes time
# itself, and timers are no finer than a millisecond, so the first ones follow without a pause.
INSTANT_MINING_PAUSES_S = (0.0, 0.0, 0.0, 0.001, 0.002, 0.004, 0.008)

# How often the reason of a revert is requested, with growing pauses, before the end is written without it.
MAX_REASON_TRIES = 3
REASON_PAUSE_S = 0.5
MAX_REASON_CHARS = 300

# Looked up once: in Python 3.11 access to an enumeration member is a function call.
_ORPHANED, _SUSPENDED = BlockStatus.ORPHANED, State.SUSPENDED

Depths = dict[tuple[BlockRef, int | None], Confirmations]  # by block and required depth


async def collect_receipts(lanes: LaneSet) -> None:
    """Count confirmations, fetch the receipts that are due, and write what they show.

    Confirmations may need blocks below the view and reasons of reverts: each lane counts its own.
    """
    await _confirm_each(lanes)
    due = [(lane, txs) for lane in lanes if (txs := due_for_receipts(lane))]
    if due:
        await _fetch_receipts(lanes, due)
        await _confirm_each(lanes)


def due_for_receipts(lane: Lane) -> list[ManagedTx]:
    """Return the transactions that a block is known to contain; all of them at intervals and after missed blocks."""
    blocks = lane.blocks
    now_s = lane.now_s()
    unmined = [tx for tx in lane.unmined if tx.attempts]
    if not unmined:
        blocks.must_fetch_receipts = False
        blocks.receipt_ready_hashes.clear()
        blocks.mined_hashes.clear()
        blocks.receipt_checked_at_s = now_s
        return []
    checked_s = blocks.receipt_checked_at_s
    if (
        blocks.must_fetch_receipts
        or checked_s is None
        or now_s - checked_s >= lane.settings.stale_receipt_timeout_s
    ):
        blocks.must_fetch_receipts = False
        blocks.receipt_checked_at_s = now_s
        return unmined
    return [
        tx
        for tx in unmined
        if any(attempt.signed.hash in blocks.receipt_ready_hashes for attempt in tx.attempts)
    ]


async def fetch_receipts_after_send(lane: Lane) -> None:
    """Fetch head and receipts together right after a send, for a chain that mines at once.

    A strict lane cannot continue meanwhile: if its key is in another system, that system signs the next transaction. A key in
    this process would only delay the request for the receipt.
    """
    if not (
        lane.settings.strict
        and lane.settings.required_blocks == 0
        and lane.blocks.mines_instantly
        and not lane.ports.keys.signs_locally(lane.signer.address)
    ):
        await _fetch_until_mined(lane)
        return
    ahead = asyncio.create_task(sign_ahead(lane))
    try:
        await _fetch_until_mined(lane)
    except BaseException:
        ahead.cancel()
        raise
    await ahead


async def _fetch_until_mined(lane: Lane) -> None:
    """Fetch receipts until all are mined or the pauses are used up. After a failure the next sends ask only once."""
    blocks = lane.blocks
    unmined = [tx for tx in lane.unmined if tx.attempts]
    pauses_s = iter(INSTANT_MINING_PAUSES_S if blocks.mines_instantly else ())
    while unmined:
        receipts, head = await lane.ports.chain.receipts_and_head(hashes_of(unmined))
        if (
            lane.ports.chain_view.view.hashes.get(head.number) != head.hash
        ):  # else the view is as new, or newer
            await lane.ports.chain_view.refresh(head)
        found = {receipt.tx_hash: receipt for receipt in receipts if receipt is not None}
        blocks.mines_instantly = _all_below(lane.ports.chain_view.view.head, unmined, found)
        if blocks.mines_instantly or (pause_s := next(pauses_s, None)) is None:
            if (write := _record(lane, unmined, found, {})) is not None:
                lane.apply_result(write, await lane.ports.ledger.commit(write), op="receipt")
            break
        await lane.ports.clock.sleep(pause_s)
    if not blocks.mines_instantly:
        lane.ports.chain_view.block_expected.set()


def _all_below(head: int, txs: Sequence[ManagedTx], found: Mapping[TxHash, Receipt]) -> bool:
    """Return whether each has a receipt of a block that is in the view."""
    receipts = [receipt_of(tx, found) for tx in txs]
    return all(receipt is not None and receipt.block.number <= head for receipt in receipts)


async def fetch_receipts(lane: Lane, txs: Sequence[ManagedTx]) -> None:
    """Fetch the receipts of all attempts of a lone lane; record those whose block is in the view."""
    lanes = LaneSet([lane])
    await _fetch_receipts(lanes, [(lane, txs)])
    lanes.raise_failure()


async def _fetch_receipts(lanes: LaneSet, due: Sequence[tuple[Lane, Sequence[ManagedTx]]]) -> None:
    """Fetch the receipts of all lanes in one call. Write the changes, or defer them to the commit of the next nonces."""
    found: dict[TxHash, Receipt] | None = None
    with lanes.guard(*[lane for lane, _ in due]):
        found = await _ask_for_receipts(lanes, due)
    if found is None:
        return
    depths: Depths = {}
    writes: list[tuple[Lane, LaneWrite]] = []
    for lane, txs in due:
        with lanes.guard(lane):
            if (write := _record(lane, txs, found, depths)) is not None:
                writes.append((lane, write))
    await lanes.commit(writes, op="receipt")
    for lane, txs in due:
        missing = [tx for tx in txs if receipt_of(tx, found) is None]
        if missing and lane in lanes and not await lanes.apart(lane, _handle_missing, missing):
            lane.blocks.must_fetch_receipts = True  # the next round asks for all of them


async def _ask_for_receipts(
    lanes: LaneSet, due: Sequence[tuple[Lane, Sequence[ManagedTx]]]
) -> dict[TxHash, Receipt]:
    hashes = [tx_hash for _, txs in due for tx_hash in hashes_of(txs)]
    try:
        receipts = await lanes.ports.chain_view.receipts.fetch(lanes.ports.chain, hashes)
    except RpcError:
        for lane, _ in due:
            lane.blocks.must_fetch_receipts = True  # no endpoint answered: the next round retries
            lane.ports.observer.note("receipts_failed", signer=lane.signer)
        raise
    return {receipt.tx_hash: receipt for receipt in receipts if receipt is not None}


def hashes_of(txs: Sequence[ManagedTx]) -> list[TxHash]:
    """Return the hashes of all attempts."""
    return [attempt.signed.hash for tx in txs for attempt in tx.attempts]


def receipt_of(tx: ManagedTx, found: Mapping[TxHash, Receipt]) -> Receipt | None:
    """Return the receipt of the attempt that was mined, or None."""
    for attempt in tx.attempts:
        if (receipt := found.get(attempt.signed.hash)) is not None:
            return receipt
    return None


def _record(
    lane: Lane, txs: Sequence[ManagedTx], found: Mapping[TxHash, Receipt], depths: Depths
) -> LaneWrite | None:
    """Return the write of the changes; None if there are none, or if they are written with the next nonces."""
    changes = changes_from_receipts(lane, txs, found, depths)
    lane.ports.observer.note("receipts", signer=lane.signer, asked=len(txs), found=len(changes))
    if not changes:
        return None
    if is_written_with_next(lane):
        lane.defer(changes, for_s=0)
        return None
    return lane.build_write(changes)


def is_written_with_next(lane: Lane) -> bool:
    """Return whether results can be written together with the next nonces, which follow at once or wait for them."""
    return next_needs_no_rpc(lane) or (lane.settings.strict and bool(lane.queue))


def changes_from_receipts(
    lane: Lane, txs: Sequence[ManagedTx], found: Mapping[TxHash, Receipt], depths: Depths
) -> list[TxChange]:
    """Return the changes of the receipts whose block is in the view; `depths` caches the depth of each block."""
    required = lane.settings.required_blocks
    changes: list[TxChange] = []
    for tx in txs:
        receipt = receipt_of(tx, found)
        if receipt is None:
            continue
        now = depths.get((receipt.block, required))
        if now is None:
            now = confirm(receipt.block, lane.ports.chain_view.view, recorded=(), required=required)
            depths[receipt.block, required] = now
        if now.block_status is not _ORPHANED:
            changes.append(lane.change(tx, *_steps_of(lane, tx, receipt, now)))
            hashes = [attempt.signed.hash for attempt in tx.attempts]
            lane.blocks.receipt_ready_hashes.difference_update(hashes)
            lane.blocks.mined_hashes.difference_update(hashes)
            lane.suspicion.consumed_counts.pop(tx.held_nonce(), None)
    return changes


def _steps_of(lane: Lane, tx: ManagedTx, receipt: Receipt, now: Confirmations) -> list[partial[Transition]]:
    """Return the transitions: mined, and finished in the same commit if its block is deep enough already.

    A revert waits for its reason, a suspended transaction for the operator, and all wait while finality is unknown:
    they end in `_confirm`.
    """
    steps = [partial(transaction_state.record_receipt, receipt=receipt)]
    if now.is_final and receipt.succeeded and tx.state is not _SUSPENDED and not lane.finality_unknown:
        steps.append(partial(transaction_state.finish, confirmations=now, revert_reason=None))
    return steps


async def _handle_missing(lane: Lane, missing: Sequence[ManagedTx]) -> None:
    """Handle transactions without a receipt: usual, unless the chain shows their nonce consumed."""
    suspicion = lane.suspicion
    latest = await lane.ports.chain.nonce(lane.signer.address, "latest")
    counts = _is_new_check(lane)
    stale: list[TxChange] = []
    for tx in missing:
        nonce = tx.held_nonce()
        if nonce < latest:
            suspicion.consumed_counts[nonce] = suspicion.consumed_counts.get(nonce, 0) + counts
            lane.blocks.must_fetch_receipts |= (
                not lane.is_protected
            )  # after the alarm, a check at intervals is enough
            if suspicion.consumed_counts[nonce] >= SUSPICIONS_BEFORE_PROTECT and not lane.is_protected:
                await (
                    lane.ports.chain.check_identity()
                )  # on another chain none of the signer's transactions is mined
                alarm = await check_consumed(lane, tx)
                if alarm is not None:
                    await protect(lane, alarm)
                    return
                del suspicion.consumed_counts[nonce]
            continue
        suspicion.consumed_counts.pop(nonce, None)
        if _is_newly_stale(lane, tx):
            stale.append(lane.change(tx, transaction_state.mark_stale))
    if stale:
        await lane.commit(stale, op="stale")
    if lane.unmined:
        await check_gap(lane, latest, below=lane.unmined[0].held_nonce())


def _is_new_check(lane: Lane) -> bool:
    suspicion = lane.suspicion
    now_s = lane.now_s()
    if (
        suspicion.consumed_checked_at_s is not None
        and now_s - suspicion.consumed_checked_at_s < SUSPICION_INTERVAL_S
    ):
        return False
    suspicion.consumed_checked_at_s = now_s
    return True


def _is_newly_stale(lane: Lane, tx: ManagedTx) -> bool:
    return (
        tx.sub_state is None
        and tx.state is State.SUBMITTED
        and tx.last_submit_s is not None
        and lane.now_s() - tx.last_submit_s >= lane.settings.stale_receipt_timeout_s
    )


# ---- depth


async def _confirm_each(lanes: LaneSet) -> None:
    for lane in lanes:
        if lane.has_mined:
            await lanes.apart(lane, _confirm)


async def _confirm(lane: Lane) -> None:
    changes: list[TxChange] = []
    orphans: list[ManagedTx] = []
    for tx in [tx for tx in lane.in_flight.values() if tx.mined is not None]:
        now = await _confirmations(lane, tx)
        if now.block_status is BlockStatus.ORPHANED:
            changes.append(lane.change(tx, partial(transaction_state.orphan, due_s=lane.now_s())))
            orphans.append(tx)
            lane.ports.observer.note("new_fork", signer=lane.signer, tx=tx.tx_id, token=lane.term.token)
        elif (change := await _confirmation_change(lane, tx, now)) is not None:
            changes.append(change)
            if now.new_fork:
                lane.ports.observer.note("new_fork", signer=lane.signer, tx=tx.tx_id, token=lane.term.token)
    if not changes:
        return
    stored = await lane.commit(changes, op="confirm")
    orphan_ids = {tx.tx_id for tx in orphans}
    if orphan_ids:
        # The new fork may hold the same transaction in another block: fetch its receipt before sending it again.
        await fetch_receipts(lane, [tx for tx in stored if tx.tx_id in orphan_ids])


async def _confirmation_change(lane: Lane, tx: ManagedTx, now: Confirmations) -> TxChange | None:
    """Record new confirmations, and the end if they are enough. A fork among them always has its own entry."""
    if now.block_status is not BlockStatus.CANONICAL:
        return None
    confirmed = partial(transaction_state.record_confirmations, confirmations=now)
    if now.is_final and tx.state is State.TRACKING and not lane.finality_unknown:
        is_known, reason = await _revert_reason(lane, tx)
        if is_known:
            finished = partial(transaction_state.finish, confirmations=now, revert_reason=reason)
            return lane.change(tx, *([confirmed] if now.new_fork else []), finished)
    return lane.change(tx, confirmed) if now.blocks != tx.confirmations else None


async def _revert_reason(lane: Lane, tx: ManagedTx) -> tuple[bool, str | None]:
    """Return whether the end can be written, and why the transaction reverted, if it did.

    The reason is only information. An endpoint may never serve old state, so after a few tries the end is written without it.
    """
    blocks = lane.blocks
    if tx.mined is None or tx.mined.succeeded:
        return True, None
    try:
        return True, await lane.ports.chain.revert_reason(tx.mined.tx_hash)
    except RpcError as error:
        tries = blocks.reason_tries[tx.tx_id] = blocks.reason_tries.get(tx.tx_id, 0) + 1
        if tries >= MAX_REASON_TRIES:
            return True, f"the reason is not known: {error}"[:MAX_REASON_CHARS]
        blocks.reasons_due_s = lane.now_s() + REASON_PAUSE_S * tries
        return False, None


async def _confirmations(lane: Lane, tx: ManagedTx) -> Confirmations:
    assert tx.mined is not None  # noqa: S101 - the caller chose those
    required = lane.settings.required_blocks
    view = await lane.ports.chain_view.view_around(
        tx.mined.block.number, above=0 if required is None else required
    )
    return confirm(tx.mined.block, view, recorded=tx.confirmations, required=required)
