"""Allocate nonces to the head of the queue: price, sign with the expected nonces, commit all or nothing.

A nonce is assigned late: only when the window has room and the bytes are signed. One statement stores nonces, bytes, states
and journal rows and moves the cursor from its expected value, so nothing is stored twice or in part. A crash before the
commit leaves nothing. A crash after it leaves bytes that the next lease holder sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from fencepost.application import funds, signing
from fencepost.application.lane import HandlerOnOtherNode, Lane
from fencepost.application.lane_set import LaneSet
from fencepost.application.nonce_sync import checked_cursor, is_checked
from fencepost.application.ports import Cursor, LaneWrite, TxChange
from fencepost.application.signing import Batch
from fencepost.domain import transaction_state
from fencepost.domain.ids import Signer
from fencepost.domain.states import SubState
from fencepost.domain.struct import Struct
from fencepost.domain.transaction import Fees, UnsignedTx
from fencepost.domain.transaction_state import Attempt, Kind, ManagedTx, Purpose
from fencepost.errors import (
    InsufficientFunds,
    RpcError,
    RpcUnavailable,
    SigningError,
    SigningRefused,
    TypeNotSupported,
    UnknownSigner,
    WouldRevert,
)

MAX_NONCES_PER_COMMIT = 256


# The lane repeats a gas estimate that the endpoint rejected, unless the call reverts, after these pauses. After so many
# rejections the request is STUCK, or continues without an estimate if the caller set a gas limit.
FIRST_ESTIMATE_PAUSE_S = 0.5
MAX_ESTIMATE_PAUSE_S = 30.0
MAX_ESTIMATE_REFUSALS = 3


# The lane repeats a rejected signing call after these pauses. After so many rejections it fails or marks the request.
FIRST_SIGNING_PAUSE_S = 0.2
MAX_SIGNING_PAUSE_S = 15.0
MAX_SIGNING_REFUSALS = 3


class Priced(Struct, frozen=True):
    tx: ManagedTx
    gas: int
    fees: Fees


class _TransientRejection(Struct, frozen=True):
    """The endpoint rejected the estimate for a reason that is not in the call: a later try may succeed."""

    reason: str


class _CannotPay(Struct, frozen=True):
    """The endpoint reports that the account can't pay for the call."""

    node_text: str


class _Plan(NamedTuple):
    """What a lane would allocate: the nonces from the cursor on, and what is signed for each."""

    lane: Lane
    cursor: Cursor
    priced: Sequence[Priced]
    to_sign: Batch


async def allocate(lanes: LaneSet, at_most: int = MAX_NONCES_PER_COMMIT) -> set[Signer]:
    """Allocate nonces, `at_most` for each lane; return the signers whose queue moved: a request got a nonce or ended.

    All lanes sign in one call and write in one call. A lane that needs a call of its own before it can sign is priced apart.
    """
    moved: set[Signer] = set()
    plans: list[_Plan] = []
    for lane in lanes:
        if lane.unreadable:  # the signer is in PROTECT, and its queue can't be read in order
            continue
        with lanes.guard(lane):
            if lane.queue.arrived or lane.queue.may_be_longer:
                await _refill(lanes, lane, at_most)
            if lane in lanes and _may_allocate(lane):
                await _plan(lanes, lane, batch_size(lane, at_most), plans, moved)
    await _sign_and_store(lanes, plans, moved)
    return moved


async def _plan(lanes: LaneSet, lane: Lane, count: int, plans: list[_Plan], moved: set[Signer]) -> None:
    plan = await _plan_without_calls(lane, count) if _is_ready(lane) else None
    if plan is not None:
        plans.append(plan)
    else:
        await lanes.apart(lane, _plan_with_calls, count, plans, moved)


def _is_ready(lane: Lane) -> bool:
    """Return whether the head of the queue can be signed with what the lane knows already."""
    suspicion = lane.suspicion
    return (
        lane.cursor is not None
        and suspicion.ahead.checked_at_s is None
        and not suspicion.doubts_history
        and is_checked(lane, lane.now_s())
        and next_needs_no_rpc(lane)
    )


async def _plan_without_calls(lane: Lane, count: int) -> _Plan | None:
    """Plan with the fees that are known, which the lanes of a chain fetch together; None if a request needs more."""
    quoted = await signing.quote(lane)
    cursor, priced = lane.cursor, price_without_rpc(lane, quoted, count)
    if cursor is None or not priced:
        return None
    lane.require_trust()
    to_sign = Batch(lane, [item.tx for item in priced], unsigned_txs(lane, cursor, priced))
    return _Plan(lane, cursor, priced, to_sign)


async def _plan_with_calls(lane: Lane, count: int, plans: list[_Plan], moved: set[Signer]) -> None:
    """Compare the cursor with the chain, end requests that are too late, estimate gas, read the balance."""
    cursor = await checked_cursor(lane)
    if cursor is None:
        return
    if await _reject_expired(lane):
        moved.add(lane.signer)
    batch = _head_of_queue(lane, count)
    if not batch:
        return
    lane.require_trust()
    if batch[0].kind is Kind.HANDLER:
        await _allocate_for_handler(lane, cursor, batch[0])
        moved.add(lane.signer)
        return
    priced, refused = await _price(lane, batch)
    if refused:
        moved.add(lane.signer)
    if priced:
        to_sign = Batch(lane, [item.tx for item in priced], unsigned_txs(lane, cursor, priced))
        await to_sign.admit()
        plans.append(_Plan(lane, cursor, priced, to_sign))


async def _sign_and_store(lanes: LaneSet, plans: Sequence[_Plan], moved: set[Signer]) -> None:
    if not plans:
        return
    signed = await signing.sign_each([plan.to_sign for plan in plans])
    writes: list[tuple[Lane, LaneWrite]] = []
    for plan, result in zip(plans, signed, strict=True):
        if isinstance(result, SigningRefused):
            await lanes.apart(plan.lane, _allocate_singly, plan, moved)
        elif isinstance(result, Exception):
            lanes.end(plan.lane, result)
        else:
            with lanes.guard(plan.lane):
                writes.append((plan.lane, _write_of(plan, result)))
    await lanes.commit(writes, op="allocate")
    moved.update(lane.signer for lane, _ in writes if lane in lanes)


def _write_of(plan: _Plan, signed: Sequence[Attempt]) -> LaneWrite:
    lane, cursor, priced, _ = plan
    lane.require_trust()
    changes = allocations(lane, cursor, priced, signed)
    return lane.build_write(changes, cursor=cursor.past(len(changes)))


# ---- the queue


async def _refill(lanes: LaneSet, lane: Lane, at_most: int) -> None:
    """Add arrived requests to the queue, or load the queue from the ledger, which includes them."""
    if lane.queue.may_be_longer:
        await lanes.apart(lane, _load_queue, at_most)
    else:
        _take_arrivals(lane)


async def _load_queue(lane: Lane, at_most: int) -> None:
    lane.queue.take_arrivals()
    if len(lane.queue) < min(window_capacity(lane), at_most):
        lane.queue.may_be_longer = False
        loaded = await lane.ports.ledger.load_queue(lane.signer, limit=lane.settings.read_ahead)
        lane.queue.load(loaded)
        lane.queue.may_be_longer = lane.queue.may_be_longer or len(loaded) >= lane.settings.read_ahead


def _take_arrivals(lane: Lane) -> None:
    """Add arrived requests to the queue, except those that a load has already added.

    If one has even ended since, the next commit fails on its version, and the lane is loaded again.
    """
    for tx in lane.queue.take_arrivals():
        if lane.queue.is_new(tx) or not lane.holds(tx.tx_id):
            lane.queue.add(tx)


# ---- rejected signatures


async def _allocate_singly(lane: Lane, plan: _Plan, moved: set[Signer]) -> None:
    """Find the request of a batch that the key port rejected, allocate those before it, and handle it.

    The requests behind it wait for that, so that requests keep their order.
    """
    results = await signing.sign_singly(plan.to_sign)
    refused = next((n for n, item in enumerate(results) if isinstance(item, SigningRefused)), len(results))
    before = [item for item in results[:refused] if isinstance(item, Attempt)]
    if before:
        write = _write_of(plan._replace(priced=plan.priced[:refused]), before)
        lane.apply_result(write, await lane.ports.ledger.commit(write), op="allocate")
        moved.add(lane.signer)
    if refused == len(results):
        return
    error = results[refused]
    assert isinstance(error, SigningRefused)  # noqa: S101 - chosen so
    signs_others = any(isinstance(item, Attempt) for item in results)
    if await _handle_refusal(lane, plan.priced[refused].tx, error, signs_others=signs_others):
        moved.add(lane.signer)


async def _handle_refusal(lane: Lane, tx: ManagedTx, error: SigningRefused, *, signs_others: bool) -> bool:
    """Fail a request that the key port rejects repeatedly, if the key port signs anything else for this account.

    If it signs nothing at all, the cause is not the request: the request waits and is marked STUCK.
    """
    sending = lane.sending
    tries = sending.refused_signatures[1] + 1 if sending.refused_signatures[0] == tx.tx_id else 1
    sending.refused_signatures = (tx.tx_id, tries)
    cursor = lane.cursor
    if tries >= MAX_SIGNING_REFUSALS and cursor is not None:
        if signs_others or await signing.signs_fillers(lane, tx, nonce=cursor.next_nonce):
            lane.ports.observer.note("signing_refused", signer=lane.signer, tx=tx.tx_id, reason=str(error))
            await lane.commit(
                [lane.change(tx, partial(transaction_state.reject, error=str(error)))], op="refuse"
            )
            return True
        if tx.sub_state is not SubState.STUCK:
            reason = f"the key store signs nothing for this account; check the key: {error}"
            lane.ports.observer.note("stuck", signer=lane.signer, tx=tx.tx_id, reason=reason)
            await lane.commit(
                [lane.change(tx, partial(transaction_state.mark_stuck, reason=reason))], op="stuck"
            )
    pause_s = min(MAX_SIGNING_PAUSE_S, FIRST_SIGNING_PAUSE_S * float(1 << min(tries - 1, 10)))
    sending.allocation_paused_until_s = lane.now_s() + pause_s
    return False


def unsigned_txs(lane: Lane, cursor: Cursor, priced: Sequence[Priced]) -> list[UnsignedTx]:
    return [
        signing.build_unsigned(
            lane, item.tx, nonce=cursor.next_nonce + i, gas=item.gas, fees=item.fees, purpose=Purpose.INTENT
        )
        for i, item in enumerate(priced)
    ]


def allocations(
    lane: Lane, cursor: Cursor, priced: Sequence[Priced], signed: Sequence[Attempt]
) -> list[TxChange]:
    funds.spend(lane, sum(funds.cost_wei(item.tx, item.gas, item.fees) for item in priced))
    return [
        lane.change(
            item.tx, partial(transaction_state.assign_nonce, nonce=cursor.next_nonce + i, attempt=attempt)
        )
        for i, (item, attempt) in enumerate(zip(priced, signed, strict=True))
    ]


async def sign_ahead(lane: Lane) -> None:
    """Sign the next request in advance, while the receipt of the one before it is fetched.

    `signing.sign_each` uses the bytes unless something changes before then. Nothing is stored, and only stored bytes are sent, so
    a crash here leaves nothing. An error here occurs again when the request is allocated, and is handled there.
    """
    cursor = lane.cursor
    if cursor is None or not lane.queue:
        return
    with suppress(RpcError, SigningError, UnknownSigner):
        priced = price_without_rpc(lane, await signing.quote(lane), 1)
        if priced:
            (unsigned,) = unsigned_txs(lane, cursor, priced)
            await signing.sign_ahead(lane, priced[0].tx, unsigned)


def _may_allocate(lane: Lane) -> bool:
    if lane.now_s() < lane.sending.allocation_paused_until_s:
        return False
    lane.sending.allocation_paused_until_s = 0.0  # while it is set, the lane schedules a step for it
    if not lane.queue or (lane.cursor is not None and not lane.cursor.is_open):
        return False
    return window_capacity(lane) > 0


def window_capacity(lane: Lane) -> int:
    """Return how many more nonces fit into the window.

    Strict mode: no transaction may be in flight, which ends at the required depth. Pipelined mode: a transaction in a block
    no longer waits in a pool. A transaction that was seen in a block makes room before its receipt is read, up to one more
    window. Never do more transactions than one window wait for a block: after a fail-over the next lease holder relies on
    that (`nonce_sync.py`).
    """
    window = min(lane.settings.window, lane.sending.window_limit or lane.settings.window)
    if lane.settings.strict:
        return window - len(lane.in_flight)
    unmined = lane.unmined
    waiting = [tx for tx in unmined if not _is_in_block(lane, tx)] if lane.blocks.mined_hashes else unmined
    return min(window - len(waiting), 2 * window - len(unmined))


def _is_in_block(lane: Lane, tx: ManagedTx) -> bool:
    return any(attempt.signed.hash in lane.blocks.mined_hashes for attempt in tx.attempts)


def batch_size(lane: Lane, at_most: int) -> int:
    """Return how many requests of the queue to allocate next. A small remainder is included: alone it would cost a round."""
    waiting = len(lane.queue)
    return min(
        window_capacity(lane), MAX_NONCES_PER_COMMIT, at_most if 2 * waiting > 3 * at_most else waiting
    )


def _head_of_queue(lane: Lane, at_most: int) -> list[ManagedTx]:
    """Return the next requests in order. A handler's request comes alone, because its bytes don't exist yet."""
    batch: list[ManagedTx] = []
    for tx in lane.queue:
        if len(batch) == at_most or (batch and tx.kind is Kind.HANDLER):
            break
        batch.append(tx)
        if tx.kind is Kind.HANDLER:
            break
    return batch


async def _reject_expired(lane: Lane) -> bool:
    """End the requests whose deadline has passed; return whether there were any."""
    late = lane.queue.expired(lane.now_s())
    if late:
        error = "validUntil passed before the transaction got a nonce"
        await lane.commit(
            [lane.change(tx, partial(transaction_state.reject, error=error)) for tx in late], op="expire"
        )
    return bool(late)


# ---- gas and fees


async def _price(lane: Lane, batch: list[ManagedTx]) -> tuple[list[Priced], int]:
    """Determine gas and fees of each request; return them and how many requests were rejected without a nonce.

    Requests that would revert are rejected. Order is kept: the first request that can't be priced yet ends the batch.
    """
    quoted = await signing.quote(lane)
    estimates, _ = await asyncio.gather(_all_gas(lane, batch), funds.refresh(lane))
    priced: list[Priced] = []
    refusals = []
    for tx, estimate in zip(batch, estimates, strict=True):
        gas = estimate
        fees = signing.first_fees(lane, tx, quoted)
        if isinstance(gas, int):
            gas = await _limit_error(lane, tx, gas, fees) or gas
        if isinstance(gas, _TransientRejection):
            await _wait_for_estimate(lane, tx, gas)
            break
        if isinstance(gas, str):
            refusals.append(lane.change(tx, partial(transaction_state.reject, error=gas)))
        elif isinstance(gas, _CannotPay):
            if not priced:  # else it is checked when those before it have their nonces
                await funds.read(lane)
                gas_limit = tx.intent.gas or signing.with_margin(lane, signing.TRANSFER_GAS)
                needed_wei = funds.cost_wei(tx, gas_limit, fees)
                await funds.wait_for_funds(lane, tx, needed_wei, node_text=gas.node_text)
            break
        else:
            priced.append(Priced(tx, gas, fees))
    if refusals:
        await lane.commit(refusals, op="refuse")
    if priced:
        first = priced[0]
        await funds.record_low_balance(lane, funds.cost_wei(first.tx, first.gas, first.fees))
    return await _affordable(lane, priced), len(refusals)


async def _affordable(lane: Lane, priced: list[Priced]) -> list[Priced]:
    """Return the first requests that the account can pay for. If there are none, record on the first what is missing."""
    if not priced:
        return priced
    covered = _covered(lane, priced)
    if not covered:
        await funds.read(lane)
        covered = _covered(lane, priced)
    if covered:
        lane.sending.short_of_funds = None
    else:
        first = priced[0]
        await funds.wait_for_funds(lane, first.tx, funds.cost_wei(first.tx, first.gas, first.fees))
    return covered


def _covered(lane: Lane, priced: list[Priced]) -> list[Priced]:
    total_wei = 0
    for index, item in enumerate(priced):
        total_wei += funds.cost_wei(item.tx, item.gas, item.fees)
        if not funds.is_covered(lane, total_wei):
            return priced[:index]
    return priced


async def _limit_error(lane: Lane, tx: ManagedTx, gas: int, fees: Fees) -> str | None:
    """Return which limit forbids the request; if none does, reserve its maximum cost from the signer's daily limit."""
    limit = signing.operator_limit(lane)
    if lane.settings.price_required and tx.intent.fees is None:
        return (
            "the request has no price, and fees.source is disabled: set maxFeePerGas and maxPriorityFeePerGas"
        )
    if fees.fee_cap_wei > limit.fees.fee_cap_wei:
        return (
            f"the request's fee of {fees.fee_cap_wei} wei per gas is above the cap of {limit.fees.fee_cap_wei} wei"
            f" ({limit.source})"
        )
    gas_max = None if lane.sending.limits is None else lane.sending.limits.gas_max
    if gas_max is not None and gas > gas_max:
        return f"the gas limit of {gas} is above the gasMax of {gas_max} in the spending policy"
    wanted = signing.build_unsigned(lane, tx, nonce=0, gas=gas, fees=fees, purpose=Purpose.INTENT)
    return await signing.reserve(lane, tx, wanted, Purpose.INTENT)


def price_without_rpc(lane: Lane, quoted: Fees, count: int) -> list[Priced] | None:
    """Price the head of the queue without a call to an endpoint or the policy; return None if one is needed."""
    if lane.sending.limits is not None or lane.queue.expired(lane.now_s()):
        return None
    priced: list[Priced] = []
    total_wei = 0
    for tx in islice(lane.queue, max(0, count)):
        gas, fees = tx.intent.gas, signing.first_fees(lane, tx, quoted)
        is_plain = tx.kind is Kind.INTENT and fees.fee_cap_wei <= lane.settings.fee_cap_wei
        if lane.settings.price_required and tx.intent.fees is None:
            return None  # it is rejected
        if gas is None or not is_plain or _needs_estimate(lane, tx):
            return None
        total_wei += funds.cost_wei(tx, gas, fees)
        priced.append(Priced(tx, gas, fees))
    return priced if not priced or funds.is_covered(lane, total_wei) else None


async def _wait_for_estimate(lane: Lane, tx: ManagedTx, refusal: _TransientRejection) -> None:
    """Schedule another estimate, and mark the request STUCK after `MAX_ESTIMATE_REFUSALS` rejections."""
    sending = lane.sending
    tries = sending.refused_estimates[1] + 1 if sending.refused_estimates[0] == tx.tx_id else 1
    sending.refused_estimates = (tx.tx_id, tries)
    pause_s = min(MAX_ESTIMATE_PAUSE_S, FIRST_ESTIMATE_PAUSE_S * float(1 << min(tries - 1, 10)))
    sending.allocation_paused_until_s = lane.now_s() + pause_s
    lane.ports.observer.note(
        "estimate_refused", signer=lane.signer, tx=tx.tx_id, tries=tries, reason=refusal.reason
    )
    if tries >= MAX_ESTIMATE_REFUSALS and tx.sub_state is not SubState.STUCK:
        reason = f"the endpoint rejected eth_estimateGas {tries} times; retrying: {refusal.reason}"
        lane.ports.observer.note("stuck", signer=lane.signer, tx=tx.tx_id, reason=reason)
        await lane.commit([lane.change(tx, partial(transaction_state.mark_stuck, reason=reason))], op="stuck")


async def _all_gas(lane: Lane, batch: list[ManagedTx]) -> list[int | str | _TransientRejection | _CannotPay]:
    """Estimate the gas of all concurrently. Raises the first error itself, so that a silent endpoint counts as one."""
    given = [tx.intent.gas for tx in batch if tx.intent.gas is not None and not _needs_estimate(lane, tx)]
    if len(given) == len(batch):
        return list(given)
    estimates: list[int | str | _TransientRejection | _CannotPay] = []
    for answer in await asyncio.gather(*(_gas(lane, tx) for tx in batch), return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        estimates.append(answer)
    return estimates


async def _gas(lane: Lane, tx: ManagedTx) -> int | str | _TransientRejection | _CannotPay:
    """Return the gas limit, an error text if the call reverts, a transient rejection, or that the account can't pay.

    If the caller set the gas limit, the estimate is optional: an endpoint that keeps rejecting it does not stop the request.
    """
    if tx.intent.gas is not None and not _needs_estimate(lane, tx):
        return tx.intent.gas
    try:
        estimate = await lane.ports.chain.estimate_gas(lane.signer.address, tx.intent.call)
    except WouldRevert as error:
        return f"would revert: {error}"
    except InsufficientFunds as error:
        return _CannotPay(str(error))
    except TypeNotSupported as error:
        return f"the chain does not support access lists: {error}"
    except RpcError as error:
        if isinstance(error, RpcUnavailable) and _is_first_silence(lane, tx):
            raise
        is_tried = lane.sending.refused_estimates == (
            tx.tx_id,
            max(lane.sending.refused_estimates[1], MAX_ESTIMATE_REFUSALS),
        )
        return tx.intent.gas if is_tried and tx.intent.gas is not None else _TransientRejection(str(error))
    return tx.intent.gas or signing.with_margin(lane, estimate)


def _is_first_silence(lane: Lane, tx: ManagedTx) -> bool:
    """Count unanswered estimates of the head of the queue; return True while the whole lane should pause for them.

    An endpoint that keeps rejecting this one method, with HTTP 403 for example, must not stop its signers for good.
    """
    sending = lane.sending
    if not lane.queue or lane.queue[0].tx_id != tx.tx_id:
        return False
    tries = sending.refused_estimates[1] + 1 if sending.refused_estimates[0] == tx.tx_id else 1
    if tries >= MAX_ESTIMATE_REFUSALS:
        return False  # it counts as a rejection
    sending.refused_estimates = (tx.tx_id, tries)
    return True


def next_needs_no_rpc(lane: Lane) -> bool:
    """Return whether a request waits that needs neither an estimate nor a remote signature before it gets a nonce."""
    first = lane.queue[0] if lane.queue else next(iter(lane.queue.arrived), None)
    return (
        first is not None
        and not _needs_estimate(lane, first)
        and lane.ports.keys.signs_locally(lane.signer.address)
    )


def _needs_estimate(lane: Lane, tx: ManagedTx) -> bool:
    return tx.intent.gas is None or lane.settings.refuse_reverting


async def _allocate_for_handler(lane: Lane, cursor: Cursor, tx: ManagedTx) -> None:
    """Assign the nonce before the handler runs, because the handler needs it. Cancel the request if its handler is gone."""
    if (
        tx.tx_id not in lane.ports.handlers
        and tx.valid_until_s is not None
        and tx.origin != lane.ports.incarnation
    ):
        raise HandlerOnOtherNode(f"another process has the handler of the next request of {lane.signer}")
    if tx.tx_id not in lane.ports.handlers:
        await lane.commit(
            [
                lane.change(
                    tx,
                    partial(
                        transaction_state.cancel_unsent, reason="the process that had its handler has ended"
                    ),
                )
            ],
            op="drop",
        )
        return
    change = lane.change(tx, partial(transaction_state.assign_nonce, nonce=cursor.next_nonce, attempt=None))
    await lane.commit([change], cursor=cursor.past(1), op="allocate")
