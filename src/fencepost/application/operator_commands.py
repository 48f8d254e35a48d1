"""Run operator commands: cancel, suspend, resume, resubmit and bump a transaction, pause and protect a signer.

Any node stores a command; the lane runs it under its lease, and marks it done with the outcome in the same commit as
the change. So after a crash a command is either done or run again, never half done.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from fencepost.application.attribution import (
    attribute_ahead,
    attribute_consumed,
    has_unsent,
    may_be_carried_out,
)
from fencepost.application.gap_filling import fillers, find_gap
from fencepost.application.lane import Lane, LeaseUntrusted, StateMoved
from fencepost.application.nonce_sync import start_sequence
from fencepost.application.ports import Command, Cursor, DoneCommand, TxChange, UnreadableRow
from fencepost.application.queries import WITHDRAWN_BY
from fencepost.application.signing import AtFeeCap, next_attempt
from fencepost.domain import transaction_state
from fencepost.domain.states import CursorState, State, SubState
from fencepost.domain.transaction_state import JournalEntry, ManagedTx, Purpose
from fencepost.errors import Fenced, FencepostError, RpcError, RpcRefused, SigningError, SigningRefused

# A command is tried this often, with growing pauses, while an endpoint or the signing service does not answer.
MAX_COMMAND_TRIES = 6
COMMAND_PAUSE_S = 0.5
MAX_OUTCOME_CHARS = 500


async def run_commands(lane: Lane) -> int:
    """Run the signer's open commands in order, and return how many there were."""
    lane.commands.may_wait = False
    commands = await lane.ports.ledger.load_commands(lane.signer)
    lane.commands.tries = {
        command.id: tries
        for command in commands
        if (tries := lane.commands.tries.get(command.id)) is not None
    }
    try:
        if commands:
            await lane.flush_deferred()  # a command applies to the current state, so that is stored first
        for command in await _without_withdrawn(lane, commands):
            lane.require_trust()
            if not await _run_one(lane, command):
                break  # commands run in order: the later ones wait for this one
    except FencepostError:
        lane.commands.may_wait = True  # the next step tries again
        raise
    lane.commands.may_wait |= bool(commands)  # there may be more than one page
    return len(commands)


async def _run_one(lane: Lane, command: Command) -> bool:
    """Run the command, or store why it cannot be done. Return False if it is to be retried.

    It is retried if an endpoint or the signing service is silent.
    """
    try:
        if command.tx_id is None:
            await _run_signer_command(lane, command)
        else:
            await _run_transaction_command(lane, command)
    except (Fenced, StateMoved, LeaseUntrusted):
        raise
    except FencepostError as error:
        lane.ports.observer.note(
            "command_failed", signer=lane.signer, command=command.command, id=command.id, error=str(error)
        )
        tries = lane.commands.tries[command.id] = lane.commands.tries.get(command.id, 0) + 1
        if _is_temporary(error) and tries < MAX_COMMAND_TRIES:
            lane.commands.not_before_s = lane.now_s() + COMMAND_PAUSE_S * float(1 << (tries - 1))
            return False
        await _reject(lane, command, f"not done: {error}"[:MAX_OUTCOME_CHARS])
    return True


def _is_temporary(error: FencepostError) -> bool:
    """Return whether an endpoint or the signing service was silent; a rejection will not change."""
    if isinstance(error, SigningRefused | RpcRefused):
        return False
    return isinstance(error, SigningError | RpcError)


async def _without_withdrawn(lane: Lane, commands: Sequence[Command]) -> list[Command]:
    """Withdraw the commands that operators have withdrawn, and return those that remain to run."""
    withdrawing = [command for command in commands if command.command == "withdraw"]
    if not withdrawing:
        return list(commands)
    open_ids = {command.id for command in commands if command.command != "withdraw"}
    outcomes: dict[int, DoneCommand] = {}
    for command in withdrawing:
        target = command.detail.get("commandId")
        if target in open_ids:
            outcomes[target] = DoneCommand(target, f"{WITHDRAWN_BY}{command.author}", applied=False)
            outcomes[command.id] = DoneCommand(command.id, "withdrawn")
        else:
            text = "withdraw does not apply: the command is done already"
            outcomes[command.id] = DoneCommand(command.id, text, applied=False)
    await lane.commit(done_commands=list(outcomes.values()), op="withdraw")
    return [command for command in commands if command.id not in outcomes]


# ---- one transaction


async def _run_transaction_command(lane: Lane, command: Command) -> None:
    assert command.tx_id is not None  # noqa: S101 - the caller chose those
    if (row := lane.unreadable.get(command.tx_id)) is not None:
        await _drop_unreadable(lane, command, row)
        return
    tx = await _current(lane, command)
    if tx is None:
        await _reject(lane, command, "no such transaction of this signer")
    elif tx.is_terminal:
        await _reject(lane, command, f"it has ended: {tx.state}")
    else:
        change, outcome = await _apply(lane, command, tx)
        changes = [change] if change is not None else []
        done = (command.id, outcome, change is not None)
        await lane.commit(changes, done_commands=[done], op=command.command)
        lane.queue.may_be_longer = True  # a suspended or resumed request is loaded again


async def _drop_unreadable(lane: Lane, command: Command, row: UnreadableRow) -> None:
    """Drop a request whose stored row can't be read, if it has no nonce yet: nothing else can be done with it."""
    if command.command != "cancel" or row.tx.nonce is not None:
        nonce_text = "" if row.tx.nonce is None else f" and it has nonce {row.tx.nonce}"
        await _reject(lane, command, f"{command.command} does not apply: {row}{nonce_text}: restore its row")
        return
    reason = command.reason or f"cancelled by {command.author}"
    dropped = lane.change(row.tx, partial(transaction_state.cancel_unsent, reason=reason))
    outcome = "dropped before it had a nonce; its row could not be read"
    await lane.commit([dropped], done_commands=[(command.id, outcome)], op=command.command)
    del lane.unreadable[row.tx.tx_id]


async def _current(lane: Lane, command: Command) -> ManagedTx | None:
    for tx in chain(lane.in_flight.values(), lane.queue):
        if tx.tx_id == command.tx_id:
            return tx
    assert command.tx_id is not None  # noqa: S101 - the caller chose those
    stored = await lane.ports.ledger.get(command.tx_id)
    return stored if stored is not None and stored.signer == lane.signer else None


async def _apply(lane: Lane, command: Command, tx: ManagedTx) -> tuple[TxChange | None, str]:
    reason = command.reason or f"cancelled by {command.author}"
    match command.command:
        case "cancel" if tx.nonce is None:
            return await _cancel_unsent(lane, tx, reason)
        case "cancel" | "bump" | "resubmit" if lane.is_protected:  # each of them would send bytes
            return None, f"{command.command} does not apply while the signer is protected: decide that first"
        case "cancel" | "bump" | "resubmit" if tx.sub_state is SubState.SUPERSEDED:
            return None, f"{command.command} does not apply: a transaction that is not ours has its nonce"
        case "cancel":
            return await _cancel_with_nonce(lane, tx, reason, command.author)
        case "suspend" if tx.state is State.SUSPENDED:
            return None, "it is suspended already"
        case "suspend":
            return lane.change(tx, partial(transaction_state.suspend, by=command.author)), "suspended"
        case "resume" if tx.state is State.SUSPENDED:
            resume = partial(transaction_state.resume, by=command.author)
            return lane.change(tx, resume, partial(transaction_state.postpone, due_s=lane.now_s())), "resumed"
        case "resubmit" if tx.attempts and tx.mined is None and tx.state is not State.SUSPENDED:
            return lane.change(
                tx, partial(transaction_state.postpone, due_s=lane.now_s())
            ), "it goes out again"
        case "bump" if tx.attempts and tx.mined is None and tx.state is not State.SUSPENDED:
            return await _bump(lane, tx)
        case _:
            return None, f"{command.command} does not apply to a transaction that is {tx.state}"


async def _cancel_unsent(lane: Lane, tx: ManagedTx, reason: str) -> tuple[TxChange | None, str]:
    """Drop a request without a nonce, unless an older copy of the database only looks as if it had none."""
    doubt = await may_be_carried_out(lane, tx)
    if doubt is not None:
        then = "decide about the signer first" if lane.is_protected else "it is being attributed"
        return None, f"cancel does not apply: {doubt}; {then}"
    change = lane.change(tx, partial(transaction_state.cancel_unsent, reason=reason))
    return change, "dropped before it had a nonce"


async def _cancel_with_nonce(
    lane: Lane, tx: ManagedTx, reason: str, author: str
) -> tuple[TxChange | None, str]:
    """Send a filler at the same nonce. If the original is mined first, it is confirmed as if there were no command."""
    if tx.mined is not None:
        return None, "it is mined already"
    if tx.ending is not None:
        return None, "it is being cancelled already"
    try:
        attempt = await next_attempt(lane, tx, purpose=Purpose.FILLER)
    except AtFeeCap as error:
        return None, str(error)
    steps = [
        partial(transaction_state.give_up, ending=State.CANCELLED, error=reason),
        partial(transaction_state.add_attempt, attempt=attempt, event="Fill"),
    ]
    if tx.state is State.SUSPENDED:
        steps.insert(0, partial(transaction_state.resume, by=author))
    return lane.change(tx, *steps), "a filler goes for its nonce"


async def _bump(lane: Lane, tx: ManagedTx) -> tuple[TxChange | None, str]:
    try:
        attempt = await next_attempt(lane, tx, purpose=tx.latest.purpose)
    except AtFeeCap as error:
        return None, str(error)
    change = lane.change(tx, partial(transaction_state.add_attempt, attempt=attempt, event="Bump"))
    return change, f"attempt {attempt.number} pays {attempt.fees.fee_cap_wei} wei per gas"


# ---- the signer


async def _run_signer_command(lane: Lane, command: Command) -> None:
    if lane.cursor is None:
        await start_sequence(lane)  # a command must not decide where the sequence starts
    cursor = lane.cursor
    if cursor is None:
        raise StateMoved(f"{lane.signer} has no cursor")
    details = {"by": command.author, "reason": command.reason}
    match command.command:
        case "pause" if cursor.pause is None:
            paused = cursor.changed(pause=command.reason or "")
            await _move_cursor(lane, command, paused, JournalEntry("Pause", details), "paused")
        case "unpause" if cursor.pause is not None:
            resumed = cursor.changed(pause=None)
            await _move_cursor(
                lane, command, resumed, JournalEntry("Unpause", details), resumed.state.lower()
            )
        case "pause" | "unpause":
            paused_or_not = "paused already" if command.command == "pause" else "not paused"
            await _reject(lane, command, f"{command.command} does not apply: the signer is {paused_or_not}")
        case "protect" if cursor.state is not CursorState.PROTECT:
            reason = command.reason or f"protected by {command.author}"
            held = cursor.changed(state=CursorState.PROTECT, reason=reason)
            await _move_cursor(lane, command, held, JournalEntry("Protect", details), "protected")
        case "unprotect" if cursor.state is CursorState.PROTECT:
            await _unprotect(lane, command, cursor, details)
        case _:
            await _reject(lane, command, f"{command.command} does not apply: the signer is {cursor.state}")


async def _unprotect(lane: Lane, command: Command, cursor: Cursor, details: dict[str, str | None]) -> None:
    """Apply an operator's decision.

    `adopt` continues from the chain's nonce, `keep` from the cursor; `fill` too, and fills the nonce gap below it.
    """
    decision = command.detail.get("decision")
    if lane.unreadable:
        row = next(iter(lane.unreadable.values()))
        await _reject(lane, command, f"unprotect does not apply: {row}: cancel it or restore its row first")
        return
    if decision == "fill":
        await _fill_gap(lane, command, cursor, details)
    elif decision == "adopt":
        await _adopt(lane, command, details)
    elif decision == "keep":
        did = (
            f"the next nonce stays {cursor.next_nonce}; {len(lane.unmined)} transactions in flight are sent again, and"
            " PROTECT returns if the chain still differs"
        )
        await _reactivate(lane, command, cursor, details, [], did=did)
    else:
        await _reject(
            lane,
            command,
            'unprotect needs a decision: "adopt" the chain\'s nonce, "keep" the cursor, or "fill" the nonce gap below it',
        )


async def _adopt(lane: Lane, command: Command, details: dict[str, str | None]) -> None:
    """Continue behind foreign transactions, but send nothing that the chain has carried out already.

    So the consumed nonces are attributed first (`attribution.py`): requests that are on the chain are attached. Managed
    transactions whose nonce a foreign one consumed are superseded: they fail when that one is final
    (`supersession.py`), and the journal says why. If a nonce cannot be attributed, a waiting request might be sent a
    second time: then the signer stays in PROTECT, and the outcome says why.
    """
    latest = await lane.ports.chain.nonce(lane.signer.address, "latest")
    pending = max(latest, await lane.ports.chain.nonce(lane.signer.address, "pending"))
    obstacle = await attribute_ahead(lane, latest, skips_foreign=True)
    consumed = await attribute_consumed(lane, await _consumed_by_others(lane, latest))
    cursor = lane.cursor
    if cursor is None:
        raise StateMoved(f"{lane.signer} has no cursor")
    problem = None if obstacle is None else obstacle.reason
    if problem is None and pending > max(latest, cursor.next_nonce):
        problem = f"transactions that are not in the database wait in the pool up to nonce {pending - 1}: wait until they are mined"
    if consumed.conflicts:
        problem = "; ".join(consumed.conflicts[:5])
    if problem is not None and await has_unsent(lane):
        outcome = f"still protected, because a waiting request might be carried out twice: {problem[:1500]}"
        await _reject(
            lane, command, f"{outcome}. Solve that, or cancel the waiting requests, and adopt again"
        )
        return
    next_nonce = max(cursor.next_nonce, pending)
    if cursor.next_nonce == cursor.start_nonce:  # nothing was ever allocated: the sequence begins here
        cursor = cursor.changed(start_nonce=next_nonce)
    if consumed.attached:  # the database lost commits: more signed bytes may have been sent
        cursor = cursor.changed(is_doubted=True)
    changes = [_superseded(lane, tx, by=command.author) for tx in consumed.lost]
    did = (
        f"the next nonce is {next_nonce}, it was {cursor.next_nonce}; {len(consumed.attached)} requests were found on the"
        f" chain and attached, {len(changes)} transactions lost their nonce and fail when that is final"
    )
    adopted = cursor.changed(next_nonce=next_nonce)
    await _reactivate(lane, command, adopted, details, [*consumed.attached, *changes], did=did)


async def _reactivate(
    lane: Lane,
    command: Command,
    cursor: Cursor,
    details: dict[str, str | None],
    changes: Sequence[TxChange],
    *,
    did: str,
) -> None:
    """Make the signer active again, in the same commit as all changes of the decision. `did` says what it does."""
    decision = command.detail["decision"]
    active = cursor.changed(state=CursorState.ACTIVE, reason=None)
    await lane.commit(
        changes,
        cursor=active,
        entries=[JournalEntry("Unprotect", {**details, "decision": decision, "next": active.next_nonce})],
        done_commands=[(command.id, _outcome(active, f"active, {decision}: {did}"))],
        op="unprotect",
    )
    _restart_sequence(lane)


async def _fill_gap(lane: Lane, command: Command, cursor: Cursor, details: dict[str, str | None]) -> None:
    """Fill the nonces below the cursor that no transaction holds. Without a nonce gap the signer stays in PROTECT."""
    gap = await find_gap(lane, cursor)
    if not gap.nonces:
        outcome = (
            f"fill does not apply: the chain's nonce is {gap.on_chain}, the cursor is {cursor.next_nonce},"
            " and there is no nonce gap between them"
        )
        await _reject(lane, command, outcome)
        return
    txs = await fillers(lane, gap.nonces)
    outcome = f"active, fill: fillers take {len(txs)} nonces, {gap.nonces[0]} to {gap.nonces[-1]}"
    if gap.left:
        outcome += f"; {gap.left} more are missing: protect and fill again when these are mined"
    start_nonce = min(cursor.start_nonce, gap.nonces[0])
    active = cursor.changed(state=CursorState.ACTIVE, reason=None, start_nonce=start_nonce)
    detail = {"decision": "fill", "next": active.next_nonce, "filled": len(txs), "left": gap.left}
    lane.require_trust()
    await lane.commit(
        cursor=active,
        entries=[JournalEntry("Unprotect", {**details, **detail})],
        done_commands=[(command.id, _outcome(active, outcome))],
        fillers=txs,
        op="unprotect",
    )
    _restart_sequence(lane)


def _outcome(cursor: Cursor, text: str) -> str:
    """Add that a pause outlasts PROTECT."""
    return text if cursor.pause is None else f"{text}; the signer is still paused"


def _restart_sequence(lane: Lane) -> None:
    lane.suspicion.consumed_counts.clear()
    lane.suspicion.ahead.clear()  # the operator has decided
    lane.reconciled = False  # the chain is read again before anything is sent


async def _consumed_by_others(lane: Lane, latest: int) -> list[ManagedTx]:
    """Return transactions below the chain's nonce that are in no block and in no pool.

    An endpoint may know the nonce before it has the receipt. A transaction that it still knows stays in flight, and is
    judged again.
    """
    below = [tx for tx in lane.unmined if tx.held_nonce() < latest]
    hashes = [attempt.signed.hash for tx in below for attempt in tx.attempts]
    if not hashes:
        return below
    receipts = await lane.ports.chain.receipts(hashes)
    known = await lane.ports.chain.knows(hashes)
    ours = {
        tx_hash
        for tx_hash, receipt, is_known in zip(hashes, receipts, known, strict=True)
        if receipt is not None or is_known
    }
    return [tx for tx in below if not any(attempt.signed.hash in ours for attempt in tx.attempts)]


def _superseded(lane: Lane, tx: ManagedTx, *, by: str) -> TxChange:
    """Mark the transaction; resume it first if it is suspended, because a suspended transaction cannot end."""
    resume = [partial(transaction_state.resume, by=by)] if tx.state is State.SUSPENDED else []
    error = "its nonce was consumed by a transaction that is not ours"
    return lane.change(tx, *resume, partial(transaction_state.supersede, error=error))


async def _move_cursor(
    lane: Lane, command: Command, cursor: Cursor, entry: JournalEntry, outcome: str
) -> None:
    await lane.commit(
        cursor=cursor, entries=[entry], done_commands=[(command.id, outcome)], op=command.command
    )
    lane.ports.observer.note(command.command, signer=lane.signer, token=lane.term.token, by=command.author)


async def _reject(lane: Lane, command: Command, outcome: str) -> None:
    """Say why nothing was done."""
    await lane.commit(done_commands=[(command.id, outcome, False)], op=command.command)
