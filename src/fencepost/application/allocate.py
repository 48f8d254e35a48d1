"""Give nonces to the head of the queue: price, sign with the nonces expected, commit all or nothing.

A nonce is bound late: only when the window has room and the bytes are signed. Nonces, bytes, states and journal rows
are one statement that also moves the cursor from the value we expected, so that nothing is stored twice or in part.
Dying on any line before the commit leaves nothing; dying after it leaves bytes that the next owner sends.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import islice

from fencepost.application import attempts
from fencepost.application.lane import HandlerElsewhere, Lane
from fencepost.application.ports import Cursor, TxChange
from fencepost.application.sequence import checked_cursor
from fencepost.domain import managed
from fencepost.domain.managed import Attempt, Kind, ManagedTx, Purpose
from fencepost.domain.states import CursorState
from fencepost.domain.transaction import Fees, UnsignedTx
from fencepost.domain.value import Value
from fencepost.errors import InsufficientFunds, RpcError, RpcRefused, SigningError, UnknownSigner, WouldRevert

# How long the queue waits when the account can't pay for its head.
FUNDS_RETRY_S = 5.0

# Nonces of one commit.
MOST_AT_ONCE = 256


class Priced(Value, frozen=True):
    tx: ManagedTx
    gas: int
    fees: Fees


async def allocate(lane: Lane, at_most: int = MOST_AT_ONCE) -> int:
    """How many requests left the queue, with a nonce or refused without one: more may fit behind them."""
    if not _may_allocate(lane):
        return 0
    cursor = await checked_cursor(lane)
    if cursor is None:
        return 0
    late = await _refuse_what_is_too_late(lane)
    batch = _head_of_queue(lane, share_of(lane, at_most))
    if not batch:
        return late
    lane.require_trust()
    if batch[0].kind is Kind.HANDLER:
        return late + await _allocate_for_handler(lane, cursor, batch[0])
    priced, refused = await _price(lane, batch)
    if not priced:
        return late + refused
    wanted = to_be_signed(lane, cursor, priced)
    signed = await attempts.sign(lane, wanted, numbers=[1] * len(wanted), purpose=Purpose.INTENT)
    changes = allocations(lane, cursor, priced, signed)
    lane.require_trust()
    await lane.commit(changes, cursor=cursor.past(len(changes)), op="allocate")
    return late + refused + len(changes)


def to_be_signed(lane: Lane, cursor: Cursor, priced: Sequence[Priced]) -> list[UnsignedTx]:
    return [
        attempts.unsigned(
            lane, item.tx, nonce=cursor.next_nonce + i, gas=item.gas, fees=item.fees, purpose=Purpose.INTENT
        )
        for i, item in enumerate(priced)
    ]


def allocations(
    lane: Lane, cursor: Cursor, priced: Sequence[Priced], signed: Sequence[Attempt]
) -> list[TxChange]:
    return [
        lane.change(item.tx, partial(managed.allocated, nonce=cursor.next_nonce + i, attempt=attempt))
        for i, (item, attempt) in enumerate(zip(priced, signed, strict=True))
    ]


async def sign_ahead(lane: Lane) -> None:
    """The bytes that the next in line gets, unless something changes before its turn; `attempts.sign` sees whether.

    It is for the time in which the chain is asked about the one before. Nothing is stored, and nothing that isn't stored
    goes out: dying here leaves nothing. What fails here fails again in its turn, and is judged there.
    """
    cursor = lane.cursor
    if cursor is None or not lane.queue:
        return
    with suppress(RpcError, SigningError, UnknownSigner):
        priced = priced_at_once(lane, await attempts.quote(lane), 1)
        if priced:
            (wanted,) = to_be_signed(lane, cursor, priced)
            (signed,) = await lane.keys.sign(lane.signer.address, [wanted])
            lane.signed_ahead = wanted, signed


def _may_allocate(lane: Lane) -> bool:
    if lane.clock.now_s() < lane.hold_allocation_until_s:
        return False
    lane.hold_allocation_until_s = 0.0  # while it stands, the lane comes back for it
    if not lane.queue or (lane.cursor is not None and lane.cursor.state is not CursorState.ACTIVE):
        return False
    return room(lane) > 0


def room(lane: Lane) -> int:
    """Strict: nothing may be in flight until depth. Pipelined: what is in a block no longer waits in a pool.

    What a block was seen to contain makes room before its receipt is there, for as much again as the window holds. Never
    does more than a window wait for a block: whoever comes after a fail-over relies on that (`sequence.py`).
    """
    window = min(lane.policy.window, lane.window_limit or lane.policy.window)
    if lane.policy.strict:
        return window - len(lane.in_flight)
    unmined = lane.unmined
    waiting = [tx for tx in unmined if not _is_in_block(lane, tx)] if lane.in_block else unmined
    return min(window - len(waiting), 2 * window - len(unmined))


def _is_in_block(lane: Lane, tx: ManagedTx) -> bool:
    return any(attempt.signed.hash in lane.in_block for attempt in tx.attempts)


def share_of(lane: Lane, at_most: int) -> int:
    """How many of the queue come next. A small rest goes with them: alone it would cost a round, and wait for a block."""
    waiting = len(lane.queue)
    return min(room(lane), MOST_AT_ONCE, at_most if 2 * waiting > 3 * at_most else waiting)


def _head_of_queue(lane: Lane, at_most: int) -> list[ManagedTx]:
    """As many as fit, in order; a handler is asked alone, because its bytes don't exist yet."""
    batch: list[ManagedTx] = []
    for tx in lane.queue:
        if len(batch) == at_most or (batch and tx.kind is Kind.HANDLER):
            break
        batch.append(tx)
        if tx.kind is Kind.HANDLER:
            break
    return batch


async def _refuse_what_is_too_late(lane: Lane) -> int:
    late = lane.queue.too_late(lane.clock.now_s())
    if late:
        error = "validUntil passed before the transaction got its turn"
        await lane.commit(
            [lane.change(tx, partial(managed.refused, error=error)) for tx in late], op="expire"
        )
    return len(late)


# ---- what it costs


async def _price(lane: Lane, batch: list[ManagedTx]) -> tuple[list[Priced], int]:
    """Gas and fees for each, and how many would revert: those are refused here, before a nonce is spent.

    Order is kept: the first that can't be priced for a passing reason ends the batch.
    """
    quoted = await attempts.quote(lane)
    estimates = await _all_gas(lane, batch)
    priced: list[Priced] = []
    refusals = []
    for tx, estimate in zip(batch, estimates, strict=True):
        gas = estimate
        fees = tx.intent.fees or quoted
        if isinstance(gas, int) and fees.fee_cap_wei > lane.policy.fee_cap_wei:
            gas = f"the request's fee of {fees.fee_cap_wei} wei a gas is above the cap of {lane.policy.fee_cap_wei}"
        if isinstance(gas, str):
            refusals.append(lane.change(tx, partial(managed.refused, error=gas)))
        elif gas is None:
            lane.hold_allocation_until_s = lane.clock.now_s() + FUNDS_RETRY_S
            lane.observer.note("unfunded", signer=lane.signer, tx=tx.tx_id)
            break
        else:
            priced.append(Priced(tx, gas, fees))
    if refusals:
        await lane.commit(refusals, op="refuse")
    return priced, len(refusals)


def priced_at_once(lane: Lane, quoted: Fees, count: int) -> list[Priced] | None:
    """So many of the queue's head, if nobody need be asked about them; None: somebody must be."""
    if lane.queue.too_late(lane.clock.now_s()):
        return None
    priced: list[Priced] = []
    for tx in islice(lane.queue, max(0, count)):
        gas, fees = tx.intent.gas, tx.intent.fees or quoted
        is_plain = tx.kind is Kind.INTENT and fees.fee_cap_wei <= lane.policy.fee_cap_wei
        if gas is None or not is_plain or _must_ask_for_gas(lane, tx):
            return None
        priced.append(Priced(tx, gas, fees))
    return priced


async def _all_gas(lane: Lane, batch: list[ManagedTx]) -> list[int | str | None]:
    """Of all at once. A failure comes out as it is, not in a group, so that a silent node counts as one."""
    if not any(_must_ask_for_gas(lane, tx) for tx in batch):
        return [tx.intent.gas for tx in batch]
    estimates: list[int | str | None] = []
    for answer in await asyncio.gather(*(_gas(lane, tx) for tx in batch), return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        estimates.append(answer)
    return estimates


async def _gas(lane: Lane, tx: ManagedTx) -> int | str | None:
    """The gas limit; or why it is refused; or None when the account can't pay yet."""
    if not _must_ask_for_gas(lane, tx):
        return tx.intent.gas
    try:
        estimate = await lane.chain.estimate_gas(lane.signer.address, tx.intent.call)
    except WouldRevert as error:
        return f"would revert: {error}"
    except InsufficientFunds:
        return None
    except RpcRefused as error:
        return f"the node refuses to estimate it: {error}"
    return tx.intent.gas or math.ceil(estimate * lane.policy.gas_factor)


def next_comes_at_once(lane: Lane) -> bool:
    """Somebody waits for a nonce, and nobody need be asked about gas or for a signature before it is given."""
    first = lane.queue[0] if lane.queue else next(iter(lane.queue.arrived), None)
    return (
        first is not None
        and not _must_ask_for_gas(lane, first)
        and lane.keys.signs_at_once(lane.signer.address)
    )


def _must_ask_for_gas(lane: Lane, tx: ManagedTx) -> bool:
    return tx.intent.gas is None or lane.policy.refuse_reverting


async def _allocate_for_handler(lane: Lane, cursor: Cursor, tx: ManagedTx) -> int:
    """The nonce first, because the handler needs it; if the handler is gone, the request goes before it costs one."""
    if tx.tx_id not in lane.handlers and tx.valid_until_s is not None and tx.origin != lane.incarnation:
        raise HandlerElsewhere(f"{lane.signer} is wanted by the process that has the next handler")
    if tx.tx_id not in lane.handlers:
        await lane.commit(
            [lane.change(tx, partial(managed.dropped, reason="its handler is gone"))], op="drop"
        )
        return 1
    change = lane.change(tx, partial(managed.allocated, nonce=cursor.next_nonce, attempt=None))
    await lane.commit([change], cursor=cursor.past(1), op="allocate")
    return 1
