"""What people ask of a lane: cancel, suspend, resume, resubmit, bump, and the signer's own pause and protect.

Any node stores the wish; the lane carries it out under its lease, and marks it done with the outcome in the same
commit as the change, so that a crash repeats it or has finished it, never half.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from fencepost.application.attempts import AtFeeCap, next_attempt
from fencepost.application.holes import fillers, find_hole
from fencepost.application.lane import Lane, StateMoved
from fencepost.application.ports import Command, Cursor, TxChange
from fencepost.application.sequence import begin_sequence
from fencepost.domain import managed
from fencepost.domain.managed import Entry, ManagedTx, Purpose
from fencepost.domain.states import CursorState, State
from fencepost.errors import FencepostError


async def intervene(lane: Lane) -> int:
    """How many wishes were carried out or answered."""
    lane.commands_may_wait = False
    commands = await lane.ledger.load_commands(lane.signer)
    try:
        if commands:
            await lane.write_held()  # a person decides about what is, not about what was
        for command in commands:
            lane.require_trust()
            if command.tx_id is None:
                await _about_signer(lane, command)
            else:
                await _about_transaction(lane, command)
    except FencepostError:
        lane.commands_may_wait = True  # what could not be done now is still wanted
        raise
    lane.commands_may_wait |= bool(commands)  # there may be more than one answer holds
    return len(commands)


# ---- one transaction


async def _about_transaction(lane: Lane, command: Command) -> None:
    assert command.tx_id is not None  # noqa: S101 - the caller chose those
    tx = await _current(lane, command)
    if tx is None:
        await _answer(lane, command, "no such transaction of this signer")
    elif tx.is_terminal:
        await _answer(lane, command, f"it has ended: {tx.state}")
    else:
        change, outcome = await _carry_out(lane, command, tx)
        changes = [change] if change is not None else []
        await lane.commit(changes, done_commands=[(command.id, outcome)], op=command.command)
        lane.queue_may_have_more = True  # what was suspended or resumed is read anew


async def _current(lane: Lane, command: Command) -> ManagedTx | None:
    for tx in chain(lane.in_flight.values(), lane.queue):
        if tx.tx_id == command.tx_id:
            return tx
    assert command.tx_id is not None  # noqa: S101 - the caller chose those
    stored = await lane.ledger.get(command.tx_id)
    return stored if stored is not None and stored.signer == lane.signer else None


async def _carry_out(lane: Lane, command: Command, tx: ManagedTx) -> tuple[TxChange | None, str]:
    reason = command.reason or f"cancelled by {command.asked_by}"
    match command.command:
        case "cancel" if tx.nonce is None:
            return lane.change(tx, partial(managed.dropped, reason=reason)), "dropped before it had a nonce"
        case "cancel" | "bump" | "resubmit" if lane.is_protected:  # each would make bytes go out
            return None, f"{command.command} does not apply while the signer is protected: decide that first"
        case "cancel":
            return await _cancel_with_nonce(lane, tx, reason, command.asked_by)
        case "suspend" if tx.state is State.SUSPENDED:
            return None, "it is suspended already"
        case "suspend":
            return lane.change(tx, partial(managed.suspended, by=command.asked_by)), "suspended"
        case "resume" if tx.state is State.SUSPENDED:
            resume = partial(managed.resumed, by=command.asked_by)
            return lane.change(tx, resume, partial(managed.postponed, due_s=lane.clock.now_s())), "resumed"
        case "resubmit" if tx.attempts and tx.mined is None and tx.state is not State.SUSPENDED:
            return lane.change(tx, partial(managed.postponed, due_s=lane.clock.now_s())), "it goes out again"
        case "bump" if tx.attempts and tx.mined is None and tx.state is not State.SUSPENDED:
            return await _bump(lane, tx)
        case _:
            return None, f"{command.command} does not apply to a transaction that is {tx.state}"


async def _cancel_with_nonce(
    lane: Lane, tx: ManagedTx, reason: str, asked_by: str
) -> tuple[TxChange | None, str]:
    """A replacement at the same nonce. If the original wins the race it is confirmed as if nothing had been asked."""
    if tx.mined is not None:
        return None, "it is mined already"
    if tx.ending is not None:
        return None, "it is being cancelled already"
    try:
        attempt = await next_attempt(lane, tx, purpose=Purpose.FILLER)
    except AtFeeCap as error:
        return None, str(error)
    steps = [
        partial(managed.given_up, ending=State.CANCELLED, error=reason),
        partial(managed.attempted, attempt=attempt, event="Fill"),
    ]
    if tx.state is State.SUSPENDED:
        steps.insert(0, partial(managed.resumed, by=asked_by))
    return lane.change(tx, *steps), "a filler goes for its nonce"


async def _bump(lane: Lane, tx: ManagedTx) -> tuple[TxChange | None, str]:
    try:
        attempt = await next_attempt(lane, tx, purpose=tx.latest.purpose)
    except AtFeeCap as error:
        return None, str(error)
    change = lane.change(tx, partial(managed.attempted, attempt=attempt, event="Bump"))
    return change, f"attempt {attempt.number} pays {attempt.fees.fee_cap_wei} wei a gas"


# ---- the signer


async def _about_signer(lane: Lane, command: Command) -> None:
    if lane.cursor is None:
        await begin_sequence(lane)  # a wish must not invent where the sequence starts
    cursor = lane.cursor
    if cursor is None:
        raise StateMoved(f"{lane.signer} has no cursor")
    who = {"by": command.asked_by, "reason": command.reason}
    match command.command:
        case "pause" if cursor.state is CursorState.ACTIVE:
            paused = cursor.changed(state=CursorState.PAUSED, reason=command.reason)
            await _move_cursor(lane, command, paused, Entry("Pause", who), "paused")
        case "unpause" if cursor.state is CursorState.PAUSED:
            active = cursor.changed(state=CursorState.ACTIVE, reason=None)
            await _move_cursor(lane, command, active, Entry("Unpause", who), "active")
        case "protect" if cursor.state is not CursorState.PROTECT:
            reason = command.reason or f"protected by {command.asked_by}"
            held = cursor.changed(state=CursorState.PROTECT, reason=reason)
            await _move_cursor(lane, command, held, Entry("Protect", who), "protected")
        case "unprotect" if cursor.state is CursorState.PROTECT:
            await _unprotect(lane, command, cursor, who)
        case _:
            await _answer(lane, command, f"{command.command} does not apply: the signer is {cursor.state}")


async def _unprotect(lane: Lane, command: Command, cursor: Cursor, who: dict[str, str | None]) -> None:
    """A person decided. `adopt` goes on from the chain's nonce; `keep` from ours; `fill` too, and leaves no hole below.

    With `adopt`, transactions of ours whose nonce a stranger consumed are lost: they fail, and the journal says why.
    """
    decision = command.detail.get("decision")
    if decision == "fill":
        await _fill_hole(lane, command, cursor, who)
        return
    if decision not in ("adopt", "keep"):
        await _answer(
            lane,
            command,
            'unprotect needs a decision: "adopt" the chain\'s nonce, "keep" ours, or "fill" the hole below it',
        )
        return
    active = cursor.changed(state=CursorState.ACTIVE, reason=None)
    changes: list[TxChange] = []
    if decision == "adopt":
        latest = await lane.chain.nonce(lane.signer.address, "latest")
        pending = max(latest, await lane.chain.nonce(lane.signer.address, "pending"))
        if cursor.next_nonce == cursor.start_nonce:  # nothing was ever allocated: the sequence begins here
            active = active.changed(start_nonce=max(cursor.next_nonce, pending))
        active = active.changed(next_nonce=max(cursor.next_nonce, pending))
        error = "its nonce was consumed by a transaction that is not ours"
        consumed = await _let_go(lane, await _consumed_by_others(lane, latest), by=command.asked_by)
        changes = [lane.change(tx, partial(managed.lost, error=error)) for tx in consumed]
    entry = Entry("Unprotect", {**who, "decision": decision, "next": active.next_nonce})
    await lane.commit(
        changes,
        cursor=active,
        entries=[entry],
        done_commands=[(command.id, f"active, {decision}")],
        op="unprotect",
    )
    _begin_anew(lane)


async def _fill_hole(lane: Lane, command: Command, cursor: Cursor, who: dict[str, str | None]) -> None:
    """Fillers for the nonces that nobody has; the cursor stays where it is. Without a hole nothing is decided."""
    hole = await find_hole(lane, cursor)
    if not hole.nonces:
        outcome = f"fill does not apply: the chain's nonce is {hole.on_chain}, ours is {cursor.next_nonce}, no hole between"
        await _answer(lane, command, outcome)
        return
    made = await fillers(lane, hole.nonces)
    outcome = f"active, fill: fillers take {len(made)} nonces, {hole.nonces[0]} to {hole.nonces[-1]}"
    if hole.left:
        outcome += f"; {hole.left} more are missing: protect and fill again when these are mined"
    start_nonce = min(cursor.start_nonce, hole.nonces[0])
    active = cursor.changed(state=CursorState.ACTIVE, reason=None, start_nonce=start_nonce)
    detail = {"decision": "fill", "next": active.next_nonce, "filled": len(made), "left": hole.left}
    lane.require_trust()
    await lane.commit(
        cursor=active,
        entries=[Entry("Unprotect", {**who, **detail})],
        done_commands=[(command.id, outcome)],
        fillers=made,
        op="unprotect",
    )
    _begin_anew(lane)


def _begin_anew(lane: Lane) -> None:
    lane.suspicions.clear()
    lane.ahead_looked_s = None  # a person has looked, and decided
    lane.reconciled = False  # what the chain says is read again before anything goes out


async def _consumed_by_others(lane: Lane, latest: int) -> list[ManagedTx]:
    """Below the chain's nonce, in no block and in no pool: one of ours that was mined a moment ago is not lost.

    A node may know the nonce before it has the receipt. Whatever it still knows of stays in flight, and is judged again.
    """
    below = [tx for tx in lane.unmined if tx.held_nonce() < latest]
    hashes = [attempt.signed.hash for tx in below for attempt in tx.attempts]
    if not hashes:
        return below
    receipts = await lane.chain.receipts(hashes)
    known = await lane.chain.knows(hashes)
    ours = {
        tx_hash
        for tx_hash, receipt, is_known in zip(hashes, receipts, known, strict=True)
        if receipt is not None or is_known
    }
    return [tx for tx in below if not any(attempt.signed.hash in ours for attempt in tx.attempts)]


async def _let_go(lane: Lane, txs: list[ManagedTx], *, by: str) -> list[ManagedTx]:
    """What a person holds back can't end: it is resumed first. Nothing goes out, because the signer is protected."""
    held = [tx for tx in txs if tx.state is State.SUSPENDED]
    if held:
        await lane.commit([lane.change(tx, partial(managed.resumed, by=by)) for tx in held], op="resume")
    return [lane.in_flight[tx.held_nonce()] for tx in txs]


async def _move_cursor(lane: Lane, command: Command, cursor: Cursor, entry: Entry, outcome: str) -> None:
    await lane.commit(
        cursor=cursor, entries=[entry], done_commands=[(command.id, outcome)], op=command.command
    )
    lane.observer.note(command.command, signer=lane.signer, token=lane.term.token, by=command.asked_by)


async def _answer(lane: Lane, command: Command, outcome: str) -> None:
    await lane.commit(done_commands=[(command.id, outcome)], op=command.command)
