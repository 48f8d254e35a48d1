"""Send what was committed, lowest nonce first, and act on what the nodes say.

Only bytes that the ledger holds go out, so a late sender is harmless and a crash loses nothing. The answer is a value;
no answer means that the bytes may be out. What follows from each answer stands in `domain/decide.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from fencepost.application import attempts
from fencepost.application.attempts import AtFeeCap
from fencepost.application.hooks import NonceContext
from fencepost.application.lane import Lane
from fencepost.application.ports import TxChange
from fencepost.application.protect import protect
from fencepost.domain import managed
from fencepost.domain.decide import Action, decide
from fencepost.domain.managed import Attempt, Kind, ManagedTx, Purpose
from fencepost.domain.send import SendResult
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import SignedTx, UnsignedTx

# One step may answer a node's refusal with new bytes this often; after that the lane comes back later.
MOST_ROUNDS = 6

FIRST_BACK_OFF_S = 0.25
MOST_BACK_OFF_S = 30.0
FUNDS_RETRY_S = 5.0
HANDLER_TIMEOUT_S = 30.0

# What every send meets; Python 3.11 calls a function to find a member of an enumeration.
_TRACK, _FILLER = Action.TRACK, Purpose.FILLER

_SENDABLE = frozenset({State.ALLOCATED, State.SUBMITTED})


async def broadcast(lane: Lane) -> int:
    """How many sends were made."""
    count = 0
    for _ in range(MOST_ROUNDS):
        if lane.is_protected:
            break
        unbuilt = [tx for tx in lane.unmined if not tx.attempts and tx.kind is Kind.HANDLER]
        if unbuilt:
            await _ask_handlers(lane, unbuilt)
        waiting = waiting_to_be_sent(lane)
        if not waiting:
            break
        lane.require_trust()
        count += len(waiting)
        if await send(lane, waiting):
            break
    return count


def waiting_to_be_sent(lane: Lane) -> list[ManagedTx]:
    return [tx for tx in lane.in_flight.values() if is_waiting_to_be_sent(tx)]


def is_sendable(tx: ManagedTx) -> bool:
    """It has bytes, and nothing says that they must stay here."""
    return tx.state in _SENDABLE and tx.mined is None and bool(tx.attempts)


def is_waiting_to_be_sent(tx: ManagedTx) -> bool:
    """It has bytes that never went out, as far as we know."""
    return tx.resubmit_due_s is None and is_sendable(tx) and tx.latest.sent_count == 0


async def send(lane: Lane, txs: list[ManagedTx]) -> bool:
    """The stored bytes of each, in one batch. Whether all went well, so that nothing follows from the answers."""
    return await take_answers(lane, txs, await lane.chain.send([tx.latest.signed for tx in txs]))


async def take_answers(lane: Lane, txs: Sequence[ManagedTx], results: Sequence[SendResult]) -> bool:
    """One commit for all that was answered, and only then an alarm. Whether all went well.

    If all went well, the commit can wait: should it never come, the next owner sends the same bytes again.
    An alarm comes before all else that follows from the answers: nothing may keep it back, and no bytes come after it.
    """
    actions = [_action(*answered) for answered in zip(txs, results, strict=True)]
    if actions.count(_TRACK) == len(actions):
        hold_answers(lane, txs, results)
        return True
    stored = await lane.commit(_told_by_answers(lane, txs, results, actions), op="send_result")
    answered = list(zip(stored, actions, results, strict=True))
    for tx, action, result in sorted(answered, key=_alarms_first):
        await _follow_up(lane, tx, action, result)
    return False


def hold_answers(lane: Lane, txs: Sequence[ManagedTx], results: Sequence[SendResult]) -> None:
    """All went well."""
    changes = _told_by_answers(lane, txs, results, [_TRACK] * len(txs))
    lane.hold(changes, for_s=lane.policy.record_within_s)


def _told_by_answers(
    lane: Lane, txs: Sequence[ManagedTx], results: Sequence[SendResult], actions: Sequence[Action]
) -> list[TxChange]:
    if not (lane.policy.fetch_receipt_upon_entry and lane.mines_at_once):  # then the lane looks for itself
        lane.watch.block_expected.set()
    now_s = lane.clock.now_s()
    changes = []
    for tx, result, action in zip(txs, results, actions, strict=True):
        due_s = _due_s(lane, tx, action, now_s)
        number = tx.latest.number
        sent = partial(managed.sent, attempt_number=number, result=result, now_s=now_s, due_s=due_s)
        changes.append(lane.change(tx, sent))
    lane.observer.note(
        "sent",
        signer=lane.signer,
        token=lane.term.token,
        txs=[tx.tx_id for tx in txs],
        results=[result.category for result in results],
        again=len([tx for tx in txs if tx.latest.sent_count > 0]),
    )
    return changes


def _alarms_first(answered: tuple[ManagedTx, Action, SendResult]) -> bool:
    return answered[1] is not Action.PROTECT


def went_well(tx: ManagedTx, result: SendResult) -> bool:
    """Nothing follows from the answer."""
    return _action(tx, result) is _TRACK


def _action(tx: ManagedTx, result: SendResult) -> Action:
    return decide(result.category, attempts_at_nonce=len(tx.attempts), is_filler=tx.latest.purpose is _FILLER)


def _due_s(lane: Lane, tx: ManagedTx, action: Action, now_s: float) -> float | None:
    """When the bytes go out again if nothing else happens."""
    if action is _TRACK:
        return now_s + lane.policy.resubmit_interval_s if lane.policy.resubmit_enabled else None
    if action is Action.WAIT_FOR_FUNDS:
        return now_s + FUNDS_RETRY_S
    return now_s + min(MOST_BACK_OFF_S, FIRST_BACK_OFF_S * float(1 << min(tx.latest.sent_count, 10)))


async def _follow_up(lane: Lane, tx: ManagedTx, action: Action, result: SendResult) -> None:
    match action:
        case Action.LOOK_UP:
            lane.must_look_up = True
        case Action.SEND_LOWER_FIRST:
            lane.hold_allocation_until_s = lane.clock.now_s() + FIRST_BACK_OFF_S
            lane.must_look_up = True
            _make_lower_ones_due(lane, tx)
        case Action.SHRINK_WINDOW:
            lane.window_limit = 1
        case Action.WAIT_FOR_FUNDS:
            lane.hold_allocation_until_s = lane.clock.now_s() + FUNDS_RETRY_S
        case Action.PROTECT:
            await protect(
                lane,
                f"a transaction that is not ours waits at nonce {tx.nonce} ({result.message or 'underpriced'})",
            )
        case Action.OUTBID | Action.REQUOTE | Action.FILL if lane.is_protected:
            pass  # it goes out again when a person has decided, and is answered then
        case Action.OUTBID | Action.REQUOTE:
            await replace_attempt(lane, tx)
        case Action.FILL:
            await fill(lane, tx, ending=State.FAILED, error=result.message or result.category.value)
        case Action.TRACK | Action.SEND_AGAIN:
            pass


def _make_lower_ones_due(lane: Lane, tx: ManagedTx) -> None:
    """A node sees a gap below: what went out earlier may have been evicted. The claim is written when it is sent."""
    now_s = lane.clock.now_s()
    for nonce, lower in lane.in_flight.items():
        went_out_earlier = (
            lower.mined is None
            and lower.last_submit_s is not None
            and tx.last_submit_s is not None
            and lower.last_submit_s < tx.last_submit_s
        )
        if nonce < tx.held_nonce() and went_out_earlier:
            lane.in_flight[nonce] = lower.changed(resubmit_due_s=now_s)


async def replace_attempt(lane: Lane, tx: ManagedTx) -> None:
    """The same wish at a higher price. At the cap it is stuck, and says so."""
    try:
        attempt = await attempts.next_attempt(lane, tx, purpose=tx.latest.purpose)
    except AtFeeCap as error:
        await _mark_stuck(lane, tx, str(error))
        return
    await lane.commit([lane.change(tx, partial(managed.attempted, attempt=attempt, event="Bump"))], op="bump")


async def fill(lane: Lane, tx: ManagedTx, *, ending: State, error: str) -> None:
    """The wish is given up; a transfer of nothing to oneself goes for its nonce, so that no hole is left."""
    give_up = [] if tx.ending is ending else [partial(managed.given_up, ending=ending, error=error)]
    try:
        attempt = await attempts.next_attempt(lane, tx, purpose=Purpose.FILLER)
    except AtFeeCap as cap:
        await _mark_stuck(lane, tx, str(cap), *give_up)
        return
    add = partial(managed.attempted, attempt=attempt, event="Fill")
    await lane.commit([lane.change(tx, *give_up, add)], op="fill")


async def _mark_stuck(lane: Lane, tx: ManagedTx, reason: str, *first: partial[managed.Step]) -> None:
    """It says so once: a refusal that comes back every half minute must not fill the journal."""
    if tx.sub_state is SubState.STUCK and not first:
        return
    lane.observer.note("stuck", signer=lane.signer, tx=tx.tx_id, reason=reason)
    await lane.commit([lane.change(tx, *first, partial(managed.stuck, reason=reason))], op="stuck")


# ---- transactions that a caller's function builds


async def _ask_handlers(lane: Lane, unbuilt: list[ManagedTx]) -> None:
    for tx in unbuilt:
        lane.require_trust()
        fees = await attempts.quote(lane)  # before the handler is taken: a silent node must not cost it
        handler = lane.handlers.pop(tx.tx_id, None)
        if handler is None:
            await fill(lane, tx, ending=State.FAILED, error="its handler is gone")
            continue
        context = NonceContext(signer=lane.signer, nonce=tx.held_nonce(), tx_id=tx.tx_id, fees=fees)
        try:
            async with asyncio.timeout(HANDLER_TIMEOUT_S):
                built = await handler(context)
            attempt = await _handlers_attempt(lane, tx, built)
        except Exception as error:  # noqa: BLE001 - whatever a caller's code does, the nonce must be consumed
            lane.observer.note("handler_failed", signer=lane.signer, tx=tx.tx_id, error=type(error).__name__)
            await fill(
                lane,
                tx,
                ending=State.FAILED,
                error=f"the handler failed: {type(error).__name__}: {error}"[:500],
            )
            continue
        await lane.commit(
            [lane.change(tx, partial(managed.attempted, attempt=attempt, event="Sign"))], op="sign"
        )


async def _handlers_attempt(lane: Lane, tx: ManagedTx, built: UnsignedTx | bytes) -> Attempt:
    if isinstance(built, UnsignedTx):
        _require_own_nonce(lane, tx, built)
        return (await attempts.sign(lane, [built], numbers=[1], purpose=Purpose.INTENT))[0]
    sender, said, tx_hash = lane.decode(built)
    if sender != lane.signer.address:
        raise ValueError(f"the handler's transaction is signed by {sender}, not by {lane.signer.address}")
    _require_own_nonce(lane, tx, said)
    signed = SignedTx(raw=built, hash=tx_hash)
    return Attempt(
        number=1, purpose=Purpose.INTENT, type=said.type, gas=said.gas, fees=said.fees, signed=signed
    )


def _require_own_nonce(lane: Lane, tx: ManagedTx, built: UnsignedTx) -> None:
    if built.nonce != tx.nonce or built.chain_id != lane.signer.chain_id:
        raise ValueError(
            f"the handler built nonce {built.nonce} on chain {built.chain_id},"
            f" but was given nonce {tx.nonce} on chain {lane.signer.chain_id}"
        )
