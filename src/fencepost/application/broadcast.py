"""Send committed bytes, lowest nonce first, and act on the endpoints' answers.

Only bytes that the ledger holds are sent, so a late sender is harmless and a crash loses nothing. The answer is a value; no
answer means that the bytes may have been sent. `domain/send_policy.py` maps each answer to an action.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from itertools import islice

from fencepost.application import signing
from fencepost.application.hooks import NonceContext
from fencepost.application.lane import Lane, protect
from fencepost.application.lane_set import LaneSet
from fencepost.application.ports import TxChange
from fencepost.application.signing import AtFeeCap
from fencepost.domain import transaction_state
from fencepost.domain.ids import Signer
from fencepost.domain.send_policy import Action, decide
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Attempt, Kind, ManagedTx, Purpose
from fencepost.errors import RpcError, SigningRefused

# How often one step may sign new bytes after a rejection; then the lane continues in a later step.
MAX_ROUNDS = 6

FIRST_BACK_OFF_S = 0.25
MAX_BACK_OFF_S = 30.0
FUNDS_RETRY_S = 5.0
DELEGATED_RETRY_S = 1.0
HANDLER_TIMEOUT_S = 30.0

# Looked up once: in Python 3.11 access to an enumeration member is a function call.
_TRACK, _FILLER = Action.TRACK, Purpose.FILLER

# After so many equal rejections in a row the transaction is STUCK. With the growing pauses between sends that takes about
# half a minute.
MAX_SAME_REJECTIONS = 8
_SENT_AGAIN = frozenset({Action.SEND_AGAIN, Action.SEND_LOWER_FIRST})
_DIGITS = re.compile(r"\d+")

# The endpoint examined the bytes and requires a higher price.
_PRICE_REJECTED = frozenset({SendCategory.UNDERPRICED, SendCategory.REPLACEMENT_UNDERPRICED})

_SENDABLE = frozenset({State.ALLOCATED, State.SUBMITTED})


async def broadcast(lanes: LaneSet) -> set[Signer]:
    """Send all bytes that were never sent, those of all lanes in one call; return the signers that sent some.

    A lone lane also sends the bytes that it signs because of a rejection. In a larger set, a lane with a rejected or
    unanswered send leaves, and sends the same bytes again in its own round.
    """
    sent: set[Signer] = set()
    for _ in range(MAX_ROUNDS):
        waiting: list[tuple[Lane, list[ManagedTx]]] = []
        for lane in lanes:
            with lanes.guard(lane):
                if txs := await _waiting_after_handlers(lanes, lane):
                    lane.require_trust()
                    waiting.append((lane, txs))
        if not waiting:
            break
        sent.update(lane.signer for lane, _ in waiting)
        if await _send_each(lanes, waiting) or not lanes.is_lone:
            break
    return sent


async def _waiting_after_handlers(lanes: LaneSet, lane: Lane) -> list[ManagedTx]:
    """Return the transactions that wait to be sent; those of handlers get their bytes first."""
    if lane.is_protected:
        return []
    unbuilt = [tx for tx in lane.in_flight.values() if not tx.attempts and _is_unbuilt(tx)]
    if unbuilt and not await lanes.apart(lane, _run_handlers, unbuilt):
        return []
    return waiting_to_be_sent(lane)


def _is_unbuilt(tx: ManagedTx) -> bool:
    return tx.kind is Kind.HANDLER and tx.mined is None and tx.sub_state is not SubState.SUPERSEDED


async def _send_each(lanes: LaneSet, waiting: Sequence[tuple[Lane, list[ManagedTx]]]) -> bool:
    """Send the stored bytes of all lanes in one call; return whether all were accepted and nothing else is to be done."""
    results: Sequence[SendResult] = ()
    with lanes.guard(*[lane for lane, _ in waiting]):
        results = await lanes.ports.chain.send([tx.latest.signed for _, txs in waiting for tx in txs])
    answers, are_accepted = iter(results), True
    for lane, txs in waiting:
        if lane not in lanes:  # the call failed
            return True
        lane_results = list(islice(answers, len(txs)))
        with lanes.guard(lane):
            if all(map(_needs_no_follow_up, txs, lane_results)):
                _defer_results(lane, txs, lane_results)
            else:
                are_accepted = False
                await lanes.apart(lane, record_send_results, txs, lane_results)
    return are_accepted


def waiting_to_be_sent(lane: Lane) -> list[ManagedTx]:
    return [tx for tx in lane.in_flight.values() if is_waiting_to_be_sent(tx)]


def is_sendable(tx: ManagedTx) -> bool:
    """Return whether the transaction has bytes that may be sent."""
    return (
        tx.state in _SENDABLE
        and tx.mined is None
        and tx.sub_state is not SubState.SUPERSEDED
        and bool(tx.attempts)
    )


def is_waiting_to_be_sent(tx: ManagedTx) -> bool:
    """Return whether the transaction has bytes that were never sent, according to the ledger."""
    return tx.resubmit_due_s is None and is_sendable(tx) and tx.latest.sent_count == 0


async def send(lane: Lane, txs: list[ManagedTx]) -> None:
    """Send the stored bytes of one lane again, and record and act on the results."""
    results = await lane.ports.chain.send([tx.latest.signed for tx in txs])
    if all(map(_needs_no_follow_up, txs, results)):
        _defer_results(lane, txs, results)
    else:
        await record_send_results(lane, txs, results)


def _defer_results(lane: Lane, txs: Sequence[ManagedTx], results: Sequence[SendResult]) -> None:
    """Defer the write of accepted sends: if it is lost, the next lease holder sends the same bytes again."""
    changes = _changes_from_results(lane, txs, results, [_TRACK] * len(txs))
    lane.defer(changes, for_s=lane.settings.record_within_s)


async def record_send_results(lane: Lane, txs: Sequence[ManagedTx], results: Sequence[SendResult]) -> None:
    """Record all results in one commit, then act on them.

    An alarm is handled before the other results: nothing may delay it, and no bytes may be signed after it.
    """
    actions = [_action(*answered) for answered in zip(txs, results, strict=True)]
    stored = await lane.commit(_changes_from_results(lane, txs, results, actions), op="send_result")
    answered = list(zip(stored, actions, results, strict=True))
    for tx, action, result in sorted(answered, key=_alarms_first):
        await _follow_up(lane, tx, action, result)


def _changes_from_results(
    lane: Lane, txs: Sequence[ManagedTx], results: Sequence[SendResult], actions: Sequence[Action]
) -> list[TxChange]:
    if not (
        lane.settings.fetch_receipt_upon_entry and lane.blocks.mines_instantly
    ):  # else the lane fetches the receipt itself
        lane.ports.chain_view.block_expected.set()
    now_s = lane.now_s()
    changes = []
    for tx, result, action in zip(txs, results, actions, strict=True):
        due_s = _due_s(lane, tx, action, now_s)
        number = tx.latest.number
        sent = partial(
            transaction_state.record_send, attempt_number=number, result=result, now_s=now_s, due_s=due_s
        )
        reason = _repeated_refusal(lane, tx, result, action)
        steps = [sent] if reason is None else [sent, partial(transaction_state.mark_stuck, reason=reason)]
        changes.append(lane.change(tx, *steps))
    lane.ports.observer.note(
        "sent",
        signer=lane.signer,
        token=lane.term.token,
        txs=[tx.tx_id for tx in txs],
        results=[result.category for result in results],
        again=len([tx for tx in txs if tx.latest.sent_count > 0]),
    )
    return changes


def _repeated_refusal(lane: Lane, tx: ManagedTx, result: SendResult, action: Action) -> str | None:
    """Count equal rejections; return the reason for STUCK after `MAX_SAME_REJECTIONS` of them.

    The bytes are still sent again. The meaning of the endpoint's text is unknown, so nothing else follows from it.
    """
    sending = lane.sending
    if action not in _SENT_AGAIN or not result.message:
        if sending.refusals:
            sending.refusals.pop(tx.tx_id, None)
        return None
    text = _DIGITS.sub("#", result.message)
    before, count = sending.refusals.get(tx.tx_id, (text, 0))
    count = count + 1 if before == text else 1
    sending.refusals[tx.tx_id] = (text, count)
    if count < MAX_SAME_REJECTIONS:
        return None
    reason = (
        f"endpoints rejected it {MAX_SAME_REJECTIONS} times or more with the same error: {result.message}"
    )
    if (
        tx.sub_state is SubState.STUCK
        and tx.error is not None
        and _DIGITS.sub("#", tx.error) == _DIGITS.sub("#", reason)
    ):
        return None
    lane.ports.observer.note("stuck", signer=lane.signer, tx=tx.tx_id, reason=reason)
    return reason


def is_rejected_repeatedly(lane: Lane, tx: ManagedTx) -> bool:
    """Return whether endpoints keep rejecting it with the same error: then a higher price does not help."""
    return lane.sending.refusals.get(tx.tx_id, ("", 0))[1] >= MAX_SAME_REJECTIONS


def _alarms_first(answered: tuple[ManagedTx, Action, SendResult]) -> bool:
    return answered[1] is not Action.PROTECT


def _needs_no_follow_up(tx: ManagedTx, result: SendResult) -> bool:
    """Return whether the result needs no action except tracking."""
    return _action(tx, result) is _TRACK


def _action(tx: ManagedTx, result: SendResult) -> Action:
    return decide(result.category, attempts_at_nonce=len(tx.attempts), is_filler=tx.latest.purpose is _FILLER)


def _due_s(lane: Lane, tx: ManagedTx, action: Action, now_s: float) -> float | None:
    """Return when the bytes are sent again if nothing else happens."""
    if action is _TRACK:
        return now_s + lane.settings.resubmit_interval_s if lane.settings.resubmit_enabled else None
    if action is Action.WAIT_FOR_FUNDS:
        return now_s + FUNDS_RETRY_S
    if action is Action.SHRINK_WINDOW and tx.tx_id == lane.sending.delegated_next:
        return now_s + DELEGATED_RETRY_S
    return now_s + min(MAX_BACK_OFF_S, FIRST_BACK_OFF_S * float(1 << min(tx.latest.sent_count, 10)))


async def _follow_up(lane: Lane, tx: ManagedTx, action: Action, result: SendResult) -> None:
    sending = lane.sending
    match action:
        case Action.FETCH_RECEIPTS:
            lane.blocks.must_fetch_receipts = True
        case Action.SEND_LOWER_FIRST:
            sending.allocation_paused_until_s = lane.now_s() + FIRST_BACK_OFF_S
            lane.blocks.must_fetch_receipts = True
            _make_lower_ones_due(lane, tx)
        case Action.SHRINK_WINDOW:
            sending.window_limit = 1
        case Action.WAIT_FOR_FUNDS:
            sending.allocation_paused_until_s = lane.now_s() + FUNDS_RETRY_S
        case Action.PROTECT:
            await protect(
                lane,
                f"a transaction that is not ours is pending at nonce {tx.nonce} ({result.message or 'underpriced'})",
            )
        case Action.OUTBID | Action.REQUOTE | Action.RETYPE | Action.FILL if lane.is_protected:
            pass  # it is sent again after an operator has decided
        case Action.OUTBID | Action.REQUOTE | Action.RETYPE:
            await _sign_again(lane, tx, action, result)
        case Action.FILL:
            await fill(lane, tx, ending=State.FAILED, error=result.message or result.category.value)
        case Action.TRACK | Action.SEND_AGAIN:
            pass


def _make_lower_ones_due(lane: Lane, tx: ManagedTx) -> None:
    """Send lower nonces again: the endpoint sees a nonce gap, so it may have evicted them. The send writes its claim."""
    now_s = lane.now_s()
    for nonce, lower in lane.in_flight.items():
        went_out_earlier = (
            lower.mined is None
            and lower.last_submit_s is not None
            and tx.last_submit_s is not None
            and lower.last_submit_s < tx.last_submit_s
        )
        if nonce < tx.held_nonce() and went_out_earlier:
            lane.in_flight[nonce] = lower.changed(resubmit_due_s=now_s)


async def _sign_again(lane: Lane, tx: ManagedTx, action: Action, result: SendResult) -> None:
    """Sign again with a higher price, if that is allowed, or with another type.

    Outbidding an earlier attempt completes the bump that created the newer one, so it does not need `fees.bump`.
    """
    if action is Action.RETYPE:
        await _retype(lane, tx, result)
    elif action is Action.REQUOTE and not signing.may_reprice(lane, tx):
        await _mark_below_market(lane, tx, _repricing_obstacle(lane))
    else:
        await replace_attempt(lane, tx)


async def _retype(lane: Lane, tx: ManagedTx, result: SendResult) -> None:
    """Sign again as type 0. If type 0 is rejected too, a filler replaces it; a filler itself is only sent again."""
    attempt = await signing.retyped_attempt(lane, tx)
    if attempt is not None:
        add = partial(transaction_state.add_attempt, attempt=attempt, event="Retype")
        await lane.commit([lane.change(tx, add)], op="retype")
    elif tx.latest.purpose is not _FILLER:
        await fill(lane, tx, ending=State.FAILED, error=result.message or result.category.value)


async def replace_attempt(lane: Lane, tx: ManagedTx) -> bool:
    """Sign the same intent at a higher price; return whether the limits allowed it.

    At the limit a transaction that endpoints reject is BELOW_MARKET, and one in their pool that is not mined is STUCK.
    """
    try:
        attempt = await signing.next_attempt(lane, tx, purpose=tx.latest.purpose)
    except AtFeeCap as error:
        if tx.latest.last_result in _PRICE_REJECTED:
            await _mark_below_market(lane, tx, str(error))
        else:
            await _mark_stuck(lane, tx, str(error))
        return False
    except SigningRefused as error:
        await _mark_stuck(lane, tx, f"the key store rejected its replacement: {error}")
        return False
    await lane.commit(
        [lane.change(tx, partial(transaction_state.add_attempt, attempt=attempt, event="Bump"))], op="bump"
    )
    return True


async def fill(lane: Lane, tx: ManagedTx, *, ending: State, error: str) -> bool:
    """Give up the intent and sign a filler for its nonce; return whether the limits allowed the filler."""
    give_up = [] if tx.ending is ending else [partial(transaction_state.give_up, ending=ending, error=error)]
    try:
        attempt = await signing.next_attempt(lane, tx, purpose=Purpose.FILLER)
    except AtFeeCap as cap:
        await _mark_stuck(lane, tx, str(cap), *give_up)
        return False
    except SigningRefused as error_:
        await _mark_stuck(lane, tx, f"the key store rejected its filler: {error_}", *give_up)
        return False
    add = partial(transaction_state.add_attempt, attempt=attempt, event="Fill")
    await lane.commit([lane.change(tx, *give_up, add)], op="fill")
    return True


def _repricing_obstacle(lane: Lane) -> str:
    if lane.settings.fixed_fees is not None:
        return "fees.source is fixed, so no higher price is signed"
    return "fees.bump.enabled is off, so no higher price is signed"


async def _mark_below_market(lane: Lane, tx: ManagedTx, reason: str) -> None:
    """Record once that the price is too low. The same bytes are sent again until the market falls."""
    if tx.sub_state is SubState.BELOW_MARKET:
        return
    offered = tx.latest.fees
    try:
        suggested = await signing.market(lane)
        needed = f"endpoints suggest {suggested.fee_cap_wei} wei with a tip of {suggested.tip_wei} wei"
    except RpcError:
        needed = f"the endpoint answered: {tx.latest.last_message or 'underpriced'}"
    text = (
        f"below the market: it offers {offered.fee_cap_wei} wei per gas with a tip of {offered.tip_wei} wei;"
        f" {needed}; {reason}; the same bytes are sent again until the market falls"
    )
    lane.ports.observer.note("below_market", signer=lane.signer, tx=tx.tx_id, reason=text)
    await lane.commit(
        [lane.change(tx, partial(transaction_state.mark_below_market, reason=text))], op="below_market"
    )


async def _mark_stuck(
    lane: Lane, tx: ManagedTx, reason: str, *first: partial[transaction_state.Transition]
) -> None:
    """Mark the transaction STUCK once: a rejection every half minute must not fill the journal."""
    if tx.sub_state is SubState.STUCK and not first:
        return
    lane.ports.observer.note("stuck", signer=lane.signer, tx=tx.tx_id, reason=reason)
    await lane.commit(
        [lane.change(tx, *first, partial(transaction_state.mark_stuck, reason=reason))], op="stuck"
    )


# ---- transactions that a caller's function builds


async def _run_handlers(lane: Lane, unbuilt: list[ManagedTx]) -> None:
    for tx in unbuilt:
        lane.require_trust()
        fees = await signing.quote(
            lane
        )  # before the handler is removed: an endpoint's silence must not lose it
        handler = lane.ports.handlers.pop(tx.tx_id, None)
        if handler is None:
            await fill(lane, tx, ending=State.FAILED, error="the process that had its handler has ended")
            continue
        context = NonceContext(signer=lane.signer, nonce=tx.held_nonce(), tx_id=tx.tx_id, fees=fees)
        try:
            async with asyncio.timeout(HANDLER_TIMEOUT_S):
                built = await handler(context)
            attempt = await _attempt_from_handler(lane, tx, built)
        except Exception as error:  # noqa: BLE001 - a caller's code may raise anything, and the nonce must be consumed
            lane.ports.observer.note(
                "handler_failed", signer=lane.signer, tx=tx.tx_id, error=type(error).__name__
            )
            await fill(
                lane,
                tx,
                ending=State.FAILED,
                error=f"the handler failed: {type(error).__name__}: {error}"[:500],
            )
            continue
        await lane.commit(
            [lane.change(tx, partial(transaction_state.add_attempt, attempt=attempt, event="Sign"))],
            op="sign",
        )


async def _attempt_from_handler(lane: Lane, tx: ManagedTx, built: UnsignedTx | bytes) -> Attempt:
    if isinstance(built, UnsignedTx):
        _require_own_nonce(lane, tx, built)
        return (await signing.sign(signing.Batch(lane, [tx], [built])))[0]
    sender, decoded, tx_hash = lane.ports.decode(built)
    if sender != lane.signer.address:
        raise ValueError(f"the handler's transaction is signed by {sender}, not by {lane.signer.address}")
    _require_own_nonce(lane, tx, decoded)
    return await signing.handler_attempt(lane, tx, decoded, SignedTx(raw=built, hash=tx_hash))


def _require_own_nonce(lane: Lane, tx: ManagedTx, built: UnsignedTx) -> None:
    if built.nonce != tx.nonce or built.chain_id != lane.signer.chain_id:
        raise ValueError(
            f"the handler built nonce {built.nonce} on chain {built.chain_id},"
            f" but was given nonce {tx.nonce} on chain {lane.signer.chain_id}"
        )
