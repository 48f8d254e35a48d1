"""From sent to ended: receipts, confirmations, forks.

Blocks tell which of our hashes are in (`lane.seen`); only those receipts are fetched. Not found is no error. Any
attempt of ours that mined decides. A receipt counts once its block stands in the shared view, and the end comes when
that block lies deep enough in it. A block that leaves the view takes its receipts with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from fencepost.application.allocate import next_comes_at_once, sign_ahead
from fencepost.application.lane import Lane
from fencepost.application.ports import TxChange
from fencepost.application.protect import protect
from fencepost.domain import managed
from fencepost.domain.confirmations import BlockRef, Confirmations, Standing, confirm
from fencepost.domain.ids import TxHash
from fencepost.domain.managed import ManagedTx, Receipt, Step
from fencepost.domain.states import State
from fencepost.errors import RpcError

# A nonce that looks consumed by a stranger is looked at this often before the alarm: receipts may lag behind nonces.
SUSPICIONS_BEFORE_PROTECT = 3

# Looks that follow one another faster than this tell nothing new, and count as one.
SUSPICION_APART_S = 2.0

# How long to wait between looks for what was sent just now, where blocks come with transactions.
# A look takes a moment itself, and no timer is finer than a millisecond: the first ones follow without a pause.
AT_ONCE_PAUSES_S = (0.0, 0.0, 0.0, 0.001, 0.002, 0.004, 0.008)

# From a lane's question to the bytes of a request: the lane, those who ask in the same turn, the one who asks for all.
TURNS_UNTIL_ASKED = 4

# What every receipt meets; Python 3.11 calls a function to find a member of an enumeration.
_ORPHANED, _SUSPENDED = Standing.ORPHANED, State.SUSPENDED

Depths = dict[tuple[BlockRef, int | None], Confirmations]  # by block and how deep it has to lie


async def track(lane: Lane) -> int:
    """How many transactions moved."""
    moved = await _confirm(lane) if lane.in_flight else 0
    wanted = due_for_look_up(lane)
    if wanted:
        try:
            moved += await look_up(lane, wanted)
        except RpcError:
            lane.must_look_up = True  # nobody answered: the next round asks again
            lane.observer.note("receipts_failed", signer=lane.signer)
            raise
        if lane.in_flight:
            moved += await _confirm(lane)
    return moved


def due_for_look_up(lane: Lane) -> list[ManagedTx]:
    """Those that a block is known to contain; all of them, now and then and when blocks may have been missed."""
    now_s = lane.clock.now_s()
    unmined = [tx for tx in lane.unmined if tx.attempts]
    if not unmined:
        lane.must_look_up = False
        lane.seen.clear()
        lane.in_block.clear()
        lane.receipt_checked_at_s = now_s
        return []
    checked_s = lane.receipt_checked_at_s
    if lane.must_look_up or checked_s is None or now_s - checked_s >= lane.policy.stale_receipt_timeout_s:
        lane.must_look_up = False
        lane.receipt_checked_at_s = now_s
        return unmined
    return [tx for tx in unmined if any(attempt.signed.hash in lane.seen for attempt in tx.attempts)]


async def look_at_once(lane: Lane) -> None:
    """After a send, for a chain that mines at once: head and receipts, in the time of one question.

    A strict lane, which can't go on meanwhile, signs what is next: where one ends at once, its turn comes at once.
    """
    if not (lane.policy.strict and lane.policy.required_blocks == 0 and lane.mines_at_once):
        await _ask_until_mined(lane)
        return
    ahead = asyncio.create_task(_sign_ahead_once_asked(lane))
    try:
        await _ask_until_mined(lane)
    except BaseException:
        ahead.cancel()
        raise
    await ahead


async def _sign_ahead_once_asked(lane: Lane) -> None:
    """Signing holds the loop up for a moment: the question goes out first, which is a few turns after it was put."""
    for _ in range(TURNS_UNTIL_ASKED):
        await asyncio.sleep(0)
    await sign_ahead(lane)


async def _ask_until_mined(lane: Lane) -> None:
    """At once may be a moment later. Where that was in vain, one question is enough after the next sends."""
    unmined = [tx for tx in lane.unmined if tx.attempts]
    pauses_s = iter(AT_ONCE_PAUSES_S if lane.mines_at_once else ())
    while unmined:
        receipts, head = await lane.chain.receipts_and_head(hashes_of(unmined))
        if lane.watch.view.hashes.get(head.number) != head.hash:  # else the view shows as much, or more
            await lane.watch.refresh(head)
        found = _found(lane, receipts)
        lane.mines_at_once = _all_below(lane.watch.view.head, unmined, found)
        if lane.mines_at_once or (pause_s := next(pauses_s, None)) is None:
            await _record(lane, unmined, found)
            break
        await lane.clock.sleep(pause_s)
    if not lane.mines_at_once:
        lane.watch.block_expected.set()


def _all_below(head: int, txs: Sequence[ManagedTx], found: Mapping[TxHash, Receipt]) -> bool:
    """Each has a receipt, of a block that the view reaches."""
    receipts = [receipt_of(tx, found) for tx in txs]
    return all(receipt is not None and receipt.block.number <= head for receipt in receipts)


async def look_up(lane: Lane, txs: Sequence[ManagedTx]) -> int:
    """Fetch the receipts of all attempts; record those whose block stands in the view."""
    found = _found(lane, await lane.watch.receipts.of(lane.chain, hashes_of(txs)))
    recorded = await _record(lane, txs, found)
    missing = [tx for tx in txs if receipt_of(tx, found) is None]
    if missing:
        await _judge_missing(lane, missing)
    return recorded


def hashes_of(txs: Sequence[ManagedTx]) -> list[TxHash]:
    return [attempt.signed.hash for tx in txs for attempt in tx.attempts]


def _found(lane: Lane, receipts: Sequence[Receipt | None]) -> dict[TxHash, Receipt]:
    found = {receipt.tx_hash: receipt for receipt in receipts if receipt is not None}
    lane.observer.note("receipts", signer=lane.signer, asked=len(receipts), found=len(found))
    return found


def receipt_of(tx: ManagedTx, found: Mapping[TxHash, Receipt]) -> Receipt | None:
    for attempt in tx.attempts:
        if (receipt := found.get(attempt.signed.hash)) is not None:
            return receipt
    return None


async def _record(lane: Lane, txs: Sequence[ManagedTx], found: Mapping[TxHash, Receipt]) -> int:
    """How many. What is written with the nonces that follow is written at the end of the step if none do."""
    changes = told_by_receipts(lane, txs, found, {})
    if not changes:
        return 0
    if is_written_with_next(lane):
        lane.hold(changes, for_s=0)
    else:
        await lane.commit(changes, op="receipt")
    return len(changes)


def is_written_with_next(lane: Lane) -> bool:
    """What ended need not be written before the next nonces are: where those come at once, or could not come before."""
    return next_comes_at_once(lane) or (lane.policy.strict and bool(lane.queue))


def told_by_receipts(
    lane: Lane, txs: Sequence[ManagedTx], found: Mapping[TxHash, Receipt], depths: Depths
) -> list[TxChange]:
    """What receipts change whose block stands in the view; `depths` are of blocks, which most receipts share."""
    required = lane.policy.required_blocks
    changes: list[TxChange] = []
    for tx in txs:
        receipt = receipt_of(tx, found)
        if receipt is None:
            continue
        now = depths.get((receipt.block, required))
        if now is None:
            now = confirm(receipt.block, lane.watch.view, recorded=(), required=required)
            depths[receipt.block, required] = now
        if now.standing is not _ORPHANED:
            changes.append(lane.change(tx, *_steps_of(lane, tx, receipt, now)))
            hashes = [attempt.signed.hash for attempt in tx.attempts]
            lane.seen.difference_update(hashes)
            lane.in_block.difference_update(hashes)
            lane.suspicions.pop(tx.held_nonce(), None)
    return changes


def _steps_of(lane: Lane, tx: ManagedTx, receipt: Receipt, now: Confirmations) -> list[partial[Step]]:
    """It is mined; and if its block lies deep enough already, it has ended in the same commit.

    A revert waits for its reason, what a person holds back waits for that person, and all wait for what is unsure:
    they end in `_confirm`.
    """
    steps = [partial(managed.mined, receipt=receipt)]
    if now.is_final and receipt.succeeded and tx.state is not _SUSPENDED and not lane.is_unsure:
        steps.append(partial(managed.finished, confirmations=now, revert_reason=None))
    return steps


async def _judge_missing(lane: Lane, missing: Sequence[ManagedTx]) -> None:
    """No receipt for any attempt: fine, unless the chain says that the nonce is consumed."""
    latest = await lane.chain.nonce(lane.signer.address, "latest")
    counts = _is_a_new_look(lane)
    stale: list[TxChange] = []
    for tx in missing:
        nonce = tx.held_nonce()
        if nonce < latest:
            lane.suspicions[nonce] = lane.suspicions.get(nonce, 0) + counts
            lane.must_look_up |= not lane.is_protected  # after the alarm, now and then is enough
            if lane.suspicions[nonce] >= SUSPICIONS_BEFORE_PROTECT:
                await protect(lane, f"nonce {nonce} was consumed by a transaction that is not ours")
                return
            continue
        lane.suspicions.pop(nonce, None)
        if _is_newly_stale(lane, tx):
            stale.append(lane.change(tx, managed.stale))
    if stale:
        await lane.commit(stale, op="stale")


def _is_a_new_look(lane: Lane) -> bool:
    now_s = lane.clock.now_s()
    if lane.judged_at_s is not None and now_s - lane.judged_at_s < SUSPICION_APART_S:
        return False
    lane.judged_at_s = now_s
    return True


def _is_newly_stale(lane: Lane, tx: ManagedTx) -> bool:
    return (
        tx.sub_state is None
        and tx.state is State.SUBMITTED
        and tx.last_submit_s is not None
        and lane.clock.now_s() - tx.last_submit_s >= lane.policy.stale_receipt_timeout_s
    )


# ---- depth


async def _confirm(lane: Lane) -> int:
    changes: list[TxChange] = []
    orphans: list[ManagedTx] = []
    for tx in [tx for tx in lane.in_flight.values() if tx.mined is not None]:
        now = await _confirmations(lane, tx)
        if now.standing is Standing.ORPHANED:
            changes.append(lane.change(tx, partial(managed.orphaned, due_s=lane.clock.now_s())))
            orphans.append(tx)
            lane.observer.note("new_fork", signer=lane.signer, tx=tx.tx_id, token=lane.term.token)
        elif now.is_final and tx.state is State.TRACKING and not lane.is_unsure:
            reason = (
                None
                if tx.mined is None or tx.mined.succeeded
                else await lane.chain.revert_reason(tx.mined.tx_hash)
            )
            changes.append(
                lane.change(tx, partial(managed.finished, confirmations=now, revert_reason=reason))
            )
        elif now.standing is Standing.CANONICAL and now.blocks != tx.confirmations:
            changes.append(lane.change(tx, partial(managed.confirmed_further, confirmations=now)))
            if now.new_fork:
                lane.observer.note("new_fork", signer=lane.signer, tx=tx.tx_id, token=lane.term.token)
    if not changes:
        return 0
    stored = await lane.commit(changes, op="confirm")
    gone = {tx.tx_id for tx in orphans}
    if gone:
        # The new fork may hold the same transaction in another block: look before sending it again.
        await look_up(lane, [tx for tx in stored if tx.tx_id in gone])
    return len(changes)


async def _confirmations(lane: Lane, tx: ManagedTx) -> Confirmations:
    assert tx.mined is not None  # noqa: S101 - the caller chose those
    required = lane.policy.required_blocks
    view = await lane.watch.view_around(tx.mined.block.number, above=0 if required is None else required)
    return confirm(tx.mined.block, view, recorded=tx.confirmations, required=required)
