"""Find out why the lowest transaction waits in a pool, record the reason, and send or reprice it.

Nothing above it can be mined before it. The endpoint may have dropped it, keep it in a part of the pool from which
nothing is mined, or hold it at a price that no block accepts. A resubmission of the same bytes returns "already known" in
the last two cases, so the lane would wait forever without a reason.
"""

from __future__ import annotations

from functools import partial

from fencepost.application.broadcast import is_sendable
from fencepost.application.lane import Lane
from fencepost.application.lane_parts import PoolCheck
from fencepost.application.resubmit import MAX_TXS_PER_BATCH, is_worth_a_bump, outbid_market
from fencepost.application.signing import may_reprice
from fencepost.domain import transaction_state
from fencepost.domain.send_result import SendCategory
from fencepost.domain.transaction_state import ManagedTx

# How long a transaction waits before its pool is checked, and how long between checks. If blocks with room pass it by,
# the lane checks earlier whether the endpoint has dropped it.
POOL_CHECK_INTERVAL_S = 30.0
FIRST_POOL_CHECK_S = 3.0
MIN_BLOCKS_PASSED = 2
MAX_PAUSE_S = 120.0

# After this many blocks with room the lane acts on a transaction that was not mined.
MIN_BLOCKS_WITH_ROOM = 5

# How often a forgotten transaction is resent before it is due; after that `resubmit.interval` applies.
MAX_RESENDS = 10

_IN_POOL = frozenset({SendCategory.ACCEPTED, SendCategory.ALREADY_KNOWN})


def is_pool_check_due(lane: Lane, now_s: float) -> bool:
    """Return whether it is time to check the pool."""
    return lane.suspicion.pool_check is not None and lane.suspicion.pool_check.due_s <= now_s


def current_pool_check(lane: Lane) -> tuple[ManagedTx, PoolCheck] | None:
    """Return the lowest transaction and its pool check, which starts when it becomes the lowest."""
    tx = next(iter(lane.unmined), None)
    if tx is None or lane.is_protected or not is_sendable(tx) or tx.latest.last_result not in _IN_POOL:
        lane.suspicion.pool_check = None
        return None
    check = lane.suspicion.pool_check
    if check is None or (check.tx_id, check.attempt) != (tx.tx_id, tx.latest.number):
        now_s = lane.now_s()
        due_s = now_s + min(FIRST_POOL_CHECK_S, POOL_CHECK_INTERVAL_S)
        check = PoolCheck(
            tx.tx_id, tx.latest.number, lane.ports.chain_view.blocks_with_room, due_s, begun_s=now_s
        )
        lane.suspicion.pool_check = check
    return tx, check


async def check_pool(lane: Lane) -> None:
    """Check the pool of the lowest transaction, if it is time."""
    current = current_pool_check(lane)
    if current is None:
        return
    (tx, check), now_s = current, lane.now_s()
    if now_s < check.due_s:
        return
    is_early = now_s - check.begun_s < POOL_CHECK_INTERVAL_S
    if is_early and lane.ports.chain_view.blocks_with_room - check.blocks_with_room < MIN_BLOCKS_PASSED:
        check.due_s = min(now_s + FIRST_POOL_CHECK_S, check.begun_s + POOL_CHECK_INTERVAL_S)
        return
    lane.require_trust()
    check.due_s = now_s + MAX_PAUSE_S  # in case the endpoints do not answer now
    if await lane.ports.chain.nonce(lane.signer.address, "latest") == tx.held_nonce():
        await _act_on_pool(lane, tx, check, now_s)


async def _act_on_pool(lane: Lane, tx: ManagedTx, check: PoolCheck, now_s: float) -> None:
    if await _resend_forgotten(lane, check, now_s):
        check.resends += 1
        check.due_s = now_s + min(MAX_PAUSE_S, POOL_CHECK_INTERVAL_S * check.resends)
        return
    if (
        now_s - check.begun_s < POOL_CHECK_INTERVAL_S
    ):  # the endpoint has it: act only when it waits for longer
        check.due_s = check.begun_s + POOL_CHECK_INTERVAL_S
        return
    check.due_s = now_s + POOL_CHECK_INTERVAL_S
    passed = lane.ports.chain_view.blocks_with_room - check.blocks_with_room
    if passed < MIN_BLOCKS_WITH_ROOM:
        return
    check.due_s = now_s + MAX_PAUSE_S
    pending = await lane.ports.chain.nonce(lane.signer.address, "pending")
    where = "pending" if pending > tx.held_nonce() else "queued"
    await _record_reason(lane, tx, where, passed)
    held = lane.in_flight[tx.held_nonce()]
    if may_reprice(lane, held) and await is_worth_a_bump(lane, held) and await outbid_market(lane, held):
        return
    # Send the same bytes to every endpoint: another one may pass them on to a block producer.
    held = lane.in_flight[tx.held_nonce()]
    lane.in_flight[tx.held_nonce()] = held.changed(resubmit_due_s=now_s)


async def _resend_forgotten(lane: Lane, check: PoolCheck, now_s: float) -> bool:
    """Resend transactions that no endpoint has any more, and return whether the lowest is among them."""
    waiting = [tx for tx in lane.unmined if is_sendable(tx) and tx.latest.last_result in _IN_POOL]
    waiting = waiting[:MAX_TXS_PER_BATCH]
    known = await lane.ports.chain.knows([tx.latest.signed.hash for tx in waiting])
    forgotten = [tx for tx, is_known in zip(waiting, known, strict=True) if not is_known]
    if not forgotten or check.resends >= MAX_RESENDS:
        return False
    lane.ports.observer.note(
        "forgotten_by_pool", signer=lane.signer, count=len(forgotten), tx=forgotten[0].tx_id
    )
    for tx in forgotten:
        lane.in_flight[tx.held_nonce()] = tx.changed(resubmit_due_s=now_s)
    return forgotten[0].tx_id == check.tx_id


async def _record_reason(lane: Lane, tx: ManagedTx, where: str, passed: int) -> None:
    """Record once why the transaction waits."""
    if tx.sub_state in transaction_state.PRICE_SUB_STATES:
        return
    base_wei = lane.ports.chain_view.base_fee_wei
    if base_wei is not None and tx.latest.fees.fee_cap_wei < base_wei:
        text = (
            f"below the market: it offers {tx.latest.fees.fee_cap_wei} wei per gas, the base fee is {base_wei} wei;"
            " it is mined when the base fee falls"
        )
        step = partial(transaction_state.mark_below_market, reason=text)
        lane.ports.observer.note("below_market", signer=lane.signer, tx=tx.tx_id, reason=text)
    else:
        text = (
            f"the endpoint has it {where} in its pool, but {passed} blocks with room did not include it;"
            " it is resubmitted to every endpoint, and bumped if fees.bump.enabled is on"
        )
        step = partial(transaction_state.mark_pending_in_pool, reason=text)
        lane.ports.observer.note("pending_in_pool", signer=lane.signer, tx=tx.tx_id, where=where, reason=text)
    await lane.commit([lane.change(tx, step)], op="pool")
