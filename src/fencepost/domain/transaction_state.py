"""Define the managed transaction and its transitions: one intent, at most one nonce, one or more attempts, one outcome.

`ManagedTx` is a value. Each function below is one transition: it checks that the transition is legal and returns the
transaction afterwards, together with the journal entries of the same commit. None of them uses a clock, a database or an
endpoint. Times are seconds of the caller's monotonic clock (`due_s`); the database stores durations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any
from uuid import UUID

from fencepost.domain.confirmations import BlockRef, Confirmations
from fencepost.domain.fees import FeeTier
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.send_result import POSSIBLY_SENT, SendCategory, SendResult
from fencepost.domain.states import TERMINAL, IllegalTransition, State, SubState, is_legal
from fencepost.domain.struct import Struct, changed
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType

_NO_DETAIL: Mapping[str, Any] = {}

# Looked up once, because every transaction uses them: in Python 3.11 access to an enumeration member is a function call.
_ALLOCATED, _SUBMITTED, _TRACKING = State.ALLOCATED, State.SUBMITTED, State.TRACKING
_CONFIRMED, _SUSPENDED = State.CONFIRMED, State.SUSPENDED
_SUPERSEDED = SubState.SUPERSEDED
_INSUFFICIENT_FUNDS, _UNFUNDED = SendCategory.INSUFFICIENT_FUNDS, SubState.UNFUNDED
_BELOW_MARKET = SubState.BELOW_MARKET
_PASSES_WHEN_ACCEPTED = frozenset({SubState.BELOW_MARKET, SubState.PENDING_IN_POOL})
_IN_POOL = frozenset({SendCategory.ACCEPTED, SendCategory.ALREADY_KNOWN})
PRICE_SUB_STATES = frozenset({SubState.STUCK, SubState.BELOW_MARKET, SubState.PENDING_IN_POOL})


class Kind(StrEnum):
    INTENT = "intent"  # a payload that Fencepost signs
    HANDLER = "handler"  # a nonce that a caller's function turns into a transaction
    FILLER = "filler"  # consumes a nonce; no caller requested it


class Purpose(StrEnum):
    INTENT = "intent"
    FILLER = "filler"


_FILLER = Purpose.FILLER


class Intent(Struct, frozen=True):
    """The payload of a request in canonical form. Fencepost chooses the fields that are None."""

    call: Call
    gas: int | None = None
    fees: Fees | None = None
    type: TxType = TxType.DYNAMIC_FEE
    tier: FeeTier | None = None  # None: that of the signer


class Attempt(Struct, frozen=True):
    """Signed bytes for the transaction's nonce. Only the counts and results of its sends ever change."""

    number: int
    purpose: Purpose
    type: TxType
    gas: int
    fees: Fees
    signed: SignedTx
    sent_count: int = 0
    last_result: SendCategory | None = None
    last_message: str = ""
    fee_source: str = ""  # where its price came from: request, node, gas_station, cache, fixed, handler


class Receipt(Struct, frozen=True):
    """The receipt of a transaction that is in a block."""

    tx_hash: TxHash
    block: BlockRef
    succeeded: bool
    gas_used: int
    raw: Mapping[str, Any]  # as the endpoint returned it


class JournalEntry(Struct, frozen=True):
    """One entry of the journal: `event` names what happened, `detail` describes it."""

    event: str
    detail: Mapping[str, Any] = _NO_DETAIL
    state: State | None = None  # of the transaction after it


class ManagedTx(Struct, frozen=True):
    tx_id: UUID
    signer: Signer
    seq: int
    kind: Kind
    intent: Intent
    request_id: str | None = None
    origin: UUID | None = None
    version: int = 1
    state: State = State.QUEUED
    sub_state: SubState | None = None
    nonce: int | None = None
    ending: State | None = None
    error: str | None = None
    attempts: tuple[Attempt, ...] = ()
    mined: Receipt | None = None  # of the attempt that is in a block
    lost_at: BlockRef | None = (
        None  # the block whose state showed its nonce consumed by a foreign transaction
    )
    confirmations: tuple[BlockRef, ...] = ()
    submit_count: int = 0
    journal_count: int = 0
    last_submit_s: float | None = None
    resubmit_due_s: float | None = None
    valid_until_s: float | None = None
    received_s: float | None = None  # when it was accepted; loaded only where it is needed
    accepted_at_s: float | None = None  # the same, in Unix time of the database's clock
    age_s: float | None = None  # from then to the read, by the same clock

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def latest(self) -> Attempt:
        """The attempt that is sent: the newest, which has the highest fees."""
        return self.attempts[-1]

    @property
    def hash(self) -> TxHash | None:
        if self.mined is not None:
            return self.mined.tx_hash
        return self.attempts[-1].signed.hash if self.attempts else None

    def attempt_of(self, tx_hash: TxHash) -> Attempt | None:
        for attempt in self.attempts:
            if attempt.signed.hash == tx_hash:
                return attempt
        return None

    def held_nonce(self) -> int:
        if self.nonce is None:
            raise ValueError(f"transaction {self.tx_id} has no nonce")
        return self.nonce


class Transition(Struct, frozen=True):
    """A transaction after a change, and the journal entries about it."""

    tx: ManagedTx
    entries: tuple[JournalEntry, ...]


def _transition(tx: ManagedTx, after: ManagedTx, event: str, detail: Mapping[str, Any]) -> Transition:
    """Check that the change is legal, and count it in `version` and `journal_count`."""
    state = after.state
    if not is_legal(tx.state, state):
        raise IllegalTransition(tx.state, state)
    counted = changed(after, version=tx.version + 1, journal_count=tx.journal_count + 1)
    return Transition(counted, (JournalEntry(event, detail, state),))


def live_state(tx: ManagedTx) -> State:
    """Return the live state that the other fields of a transaction imply; `resume` goes back to it."""
    if tx.nonce is None:
        return State.QUEUED
    if tx.mined is not None:
        return State.TRACKING
    return State.SUBMITTED if tx.submit_count else State.ALLOCATED


# ---- before the nonce, and its assignment


def assign_nonce(tx: ManagedTx, nonce: int, attempt: Attempt | None) -> Transition:
    """Assign the nonce, which never changes again. Without an attempt, a handler builds the transaction next."""
    if tx.nonce is not None:
        raise IllegalTransition(tx.state, State.ALLOCATED)
    detail: dict[str, Any] = {"nonce": nonce}
    attempts: tuple[Attempt, ...] = ()
    if attempt is not None:
        detail |= _describe_attempt(attempt)
        attempts = (attempt,)
    after = changed(tx, state=_ALLOCATED, nonce=nonce, attempts=attempts, sub_state=None, error=None)
    return _transition(tx, after, "AssignNonce", detail)


def attach(tx: ManagedTx, nonce: int, attempt: Attempt, *, block: BlockRef, due_s: float) -> Transition:
    """Attach a transaction that is already on the chain to its request: store its bytes as an attempt.

    Nothing is sent, and the receipt decides the outcome. If a fork undoes it, the same bytes are sent at `due_s` or later.
    """
    if tx.is_terminal or tx.mined is not None or tx.nonce not in (None, nonce):
        raise IllegalTransition(tx.state, State.ALLOCATED)
    if attempt.number != len(tx.attempts) + 1:
        raise ValueError(f"attempt {attempt.number} does not follow {len(tx.attempts)}")
    state = State.ALLOCATED if tx.nonce is None else tx.state
    detail = {"nonce": nonce, **_describe_attempt(attempt), "block": block.number, "blockHash": block.hash}
    after = changed(
        tx,
        state=state,
        nonce=nonce,
        attempts=(*tx.attempts, attempt),
        sub_state=None,
        error=tx.error if tx.ending is not None else None,
        resubmit_due_s=due_s,
    )
    return _transition(tx, after, "Attach", detail)


def reject(tx: ManagedTx, error: str) -> Transition:
    """Fail a transaction that has no nonce: nothing was signed, so no nonce is lost."""
    after = changed(tx, state=State.FAILED, error=error, sub_state=None)
    return _transition(tx, after, "Refuse", {"error": error})


def cancel_unsent(tx: ManagedTx, reason: str) -> Transition:
    """Cancel a transaction that has no nonce."""
    after = changed(tx, state=State.CANCELLED, error=reason, sub_state=None)
    return _transition(tx, after, "Cancel", {"reason": reason})


# ---- attempts and sends


def add_attempt(tx: ManagedTx, attempt: Attempt, event: str) -> Transition:
    """Add signed bytes for the same nonce: from the handler, a bump, or a filler."""
    if tx.nonce is None or tx.is_terminal:
        raise IllegalTransition(tx.state, tx.state)
    if attempt.number != len(tx.attempts) + 1:
        raise ValueError(f"attempt {attempt.number} does not follow {len(tx.attempts)}")
    after = changed(
        tx,
        attempts=(*tx.attempts, attempt),
        sub_state=None if tx.sub_state in PRICE_SUB_STATES else tx.sub_state,
        error=_ending_error(tx) if tx.sub_state in PRICE_SUB_STATES else tx.error,
        resubmit_due_s=None,
    )
    return _transition(tx, after, event, _describe_attempt(attempt))


def give_up(tx: ManagedTx, *, ending: State, error: str) -> Transition:
    """Give up the intent: from now on a filler is sent to consume its nonce."""
    if ending not in (State.FAILED, State.CANCELLED) or tx.nonce is None or tx.sub_state is _SUPERSEDED:
        raise IllegalTransition(tx.state, ending)
    sub_state = SubState.REFUSED if ending is State.FAILED else tx.sub_state
    after = changed(tx, ending=ending, error=error, sub_state=sub_state)
    return _transition(tx, after, "GiveUp", {"ending": ending.value, "error": error})


def claim_send(tx: ManagedTx, *, due_s: float, resubmit: bool) -> Transition:
    """Count the next send before it happens, so that crashes and take-overs can't cause a storm of sends."""
    event = "Resubmit" if resubmit else "SubmitTransaction"
    after = changed(tx, submit_count=tx.submit_count + 1, resubmit_due_s=due_s)
    return _transition(tx, after, event, {"count": after.submit_count})


def postpone(tx: ManagedTx, *, due_s: float) -> Transition:
    return Transition(changed(tx, resubmit_due_s=due_s, version=tx.version + 1), ())


def record_send(
    tx: ManagedTx, attempt_number: int, result: SendResult, *, now_s: float, due_s: float | None
) -> Transition:
    """Record the endpoint's answer to a send. The state changes if the bytes may have been sent."""
    category = result.category
    out = category in POSSIBLY_SENT
    state = _SUBMITTED if out and tx.state is _ALLOCATED else tx.state
    sub_state = tx.sub_state
    error = tx.error
    if category is _INSUFFICIENT_FUNDS:
        sub_state, error = _UNFUNDED, _ending_error(tx) or result.message or tx.error
    elif out and sub_state is _UNFUNDED:
        sub_state, error = None, _ending_error(tx)
    if (sub_state is _BELOW_MARKET and category is SendCategory.ACCEPTED) or (
        sub_state is SubState.STUCK and category in _IN_POOL and _was_rejected(tx, attempt_number)
    ):  # the market price fell
        sub_state, error = None, _ending_error(tx)
    detail: dict[str, Any] = {"attempt": attempt_number, "result": category}
    if result.message:
        detail["message"] = result.message
    after = changed(
        tx,
        state=state,
        attempts=tuple([_with_result(a, result) if a.number == attempt_number else a for a in tx.attempts]),
        sub_state=sub_state,
        error=error,
        # `claim_send` may have counted this send already.
        submit_count=max(tx.submit_count, 1 + sum(attempt.sent_count for attempt in tx.attempts)),
        last_submit_s=now_s,
        resubmit_due_s=due_s,
    )
    return _transition(tx, after, "SendResult", detail)


def _was_rejected(tx: ManagedTx, attempt_number: int) -> bool:
    """Return whether the previous send was rejected. If this one is accepted, the transaction is no longer stuck."""
    return tx.attempts[attempt_number - 1].last_result not in _IN_POOL


def _with_result(attempt: Attempt, result: SendResult) -> Attempt:
    return changed(
        attempt,
        sent_count=attempt.sent_count + 1,
        last_result=result.category,
        last_message=result.message,
    )


def mark_unfunded(tx: ManagedTx, reason: str, detail: Mapping[str, Any]) -> Transition:
    """Record that the account can't pay yet. The transaction waits without a nonce."""
    if tx.nonce is not None:
        raise IllegalTransition(tx.state, tx.state)
    return _transition(
        tx, changed(tx, sub_state=_UNFUNDED, error=reason), "Unfunded", {**detail, "reason": reason}
    )


_MISSING = re.compile(r"; (\d{1,80}) wei are missing;")


def missing_wei(tx: ManagedTx) -> int | None:
    """Return how much was missing according to the text of `mark_unfunded`; None if the text has no amount."""
    found = _MISSING.search(tx.error or "")
    return int(found[1]) if found else None


def mark_stuck(tx: ManagedTx, reason: str) -> Transition:
    return _transition(tx, changed(tx, sub_state=SubState.STUCK, error=reason), "Stuck", {"reason": reason})


def unmark_stuck(tx: ManagedTx) -> Transition:
    """Record that the reason for STUCK no longer applies."""
    after = changed(tx, sub_state=None, error=_ending_error(tx))
    return _transition(tx, after, "Unstuck", {})


def mark_below_market(tx: ManagedTx, reason: str) -> Transition:
    """Record that the price is too low and that the limits allow no higher one.

    If the transaction is given up, the reason for that stays its error.
    """
    after = changed(tx, sub_state=_BELOW_MARKET, error=_ending_error(tx) or reason)
    return _transition(tx, after, "BelowMarket", {"reason": reason})


def mark_pending_in_pool(tx: ManagedTx, reason: str) -> Transition:
    """Record that the endpoint has it in its pool and that blocks with room did not include it."""
    after = changed(tx, sub_state=SubState.PENDING_IN_POOL, error=_ending_error(tx) or reason)
    return _transition(tx, after, "PendingInPool", {"reason": reason})


def _ending_error(tx: ManagedTx) -> str | None:
    """Return the error with which the transaction will end, if that is decided. Other errors end with their sub-state."""
    return tx.error if tx.ending is not None else None


def mark_stale(tx: ManagedTx) -> Transition:
    return _transition(tx, changed(tx, sub_state=SubState.STALE), "Stale", {})


# ---- the chain


def record_receipt(tx: ManagedTx, receipt: Receipt) -> Transition:
    """Record the receipt of one of the attempts. Which attempt it is matters only when it is final."""
    if tx.attempt_of(receipt.tx_hash) is None:
        raise ValueError(f"{receipt.tx_hash} is no attempt of transaction {tx.tx_id}")
    detail = {
        "hash": receipt.tx_hash,
        "block": receipt.block.number,
        "blockHash": receipt.block.hash,
        "succeeded": receipt.succeeded,
    }
    after = changed(
        tx,
        state=tx.state if tx.state is _SUSPENDED else _TRACKING,
        mined=receipt,
        confirmations=(),
        sub_state=None,
        error=None if tx.sub_state is _SUPERSEDED else tx.error,
        resubmit_due_s=None,
        submit_count=tx.submit_count or 1,
    )
    return _transition(tx, after, "ReceiveReceipt", detail)


def record_confirmations(tx: ManagedTx, confirmations: Confirmations) -> Transition:
    """Record the confirmations. With `newFork` a consumer replaces the list that it had."""
    detail: dict[str, Any] = _describe_confirmations(tx, confirmations)
    if confirmations.new_fork:
        standing = set(confirmations.blocks)
        detail["replaced"] = _block_list([block for block in tx.confirmations if block not in standing])
    event = "Fork" if confirmations.new_fork else "Confirm"
    return _transition(tx, changed(tx, confirmations=confirmations.blocks), event, detail)


def _describe_confirmations(tx: ManagedTx, confirmations: Confirmations) -> dict[str, Any]:
    """Describe the confirmations: all blocks after a fork, else only the new ones."""
    known = 0 if confirmations.new_fork else len(tx.confirmations)
    return {
        "newFork": confirmations.new_fork,
        "count": len(confirmations.blocks),
        "blocks": _block_list(confirmations.blocks[known:]),
    }


def _block_list(blocks: Sequence[BlockRef]) -> list[list[Any]]:
    return [[block.number, block.hash] for block in blocks]


def finish(tx: ManagedTx, confirmations: Confirmations, *, revert_reason: str | None) -> Transition:
    """End the transaction at the required depth: the attempt that was mined decides the outcome."""
    if tx.mined is None or not confirmations.is_final:
        raise IllegalTransition(tx.state, State.CONFIRMED)
    attempt = tx.attempt_of(tx.mined.tx_hash)
    assert attempt is not None  # noqa: S101 - `record_receipt` rejects other hashes
    error: str | None = None
    if attempt.purpose is _FILLER and tx.kind is not Kind.FILLER:
        state, error = tx.ending or State.CANCELLED, tx.error
    elif tx.mined.succeeded:
        state = _CONFIRMED
    else:
        state, error = State.FAILED, f"reverted: {revert_reason or 'no reason given'}"
    detail = {**_describe_confirmations(tx, confirmations), "error": error}
    after = changed(
        tx,
        state=state,
        confirmations=confirmations.blocks,
        error=error,
        sub_state=None,
        resubmit_due_s=None,
    )
    return _transition(tx, after, "Finish", detail)


def orphan(tx: ManagedTx, *, due_s: float) -> Transition:
    """Clear the receipt, because its block left the chain. The stored bytes are sent again at `due_s`."""
    if tx.mined is None:
        raise IllegalTransition(tx.state, State.SUBMITTED)
    state = State.SUSPENDED if tx.state is State.SUSPENDED else State.SUBMITTED
    detail = {
        "newFork": True,
        "block": tx.mined.block.number,
        "blockHash": tx.mined.block.hash,
        "was": tx.state.value,
        "replaced": _block_list((tx.mined.block, *tx.confirmations)),
    }
    after = changed(tx, state=state, mined=None, confirmations=(), sub_state=None, resubmit_due_s=due_s)
    return _transition(tx, after, "Fork", detail)


def supersede(tx: ManagedTx, error: str) -> Transition:
    """Record that a foreign transaction has the nonce and that an operator decided to continue.

    The transaction is not sent any more. It fails when the foreign transaction is final (`fail_superseded`), and continues
    when a reorg frees the nonce (`reclaim`).
    """
    if tx.nonce is None or tx.mined is not None:
        raise IllegalTransition(tx.state, tx.state)
    after = changed(tx, sub_state=_SUPERSEDED, error=error, resubmit_due_s=None)
    return _transition(tx, after, "Supersede", {"error": error})


def reclaim(tx: ManagedTx, *, due_s: float) -> Transition:
    """Continue after a reorg freed the nonce: the stored bytes are sent again at `due_s`."""
    if tx.sub_state is not _SUPERSEDED:
        raise IllegalTransition(tx.state, tx.state)
    after = changed(tx, sub_state=None, error=None, resubmit_due_s=due_s)
    return _transition(tx, after, "Reclaim", {})


def fail_superseded(tx: ManagedTx, seen_at: BlockRef) -> Transition:
    """Fail with the error that `supersede` recorded: the foreign transaction that has the nonce is final.

    `seen_at` is the block whose state showed the nonce consumed: if a fork removes it, the end is checked again.
    """
    if tx.sub_state is not _SUPERSEDED:
        raise IllegalTransition(tx.state, State.FAILED)
    after = changed(tx, state=State.FAILED, sub_state=None, resubmit_due_s=None, lost_at=seen_at)
    detail = {"error": tx.error, "seenAt": seen_at.number, "seenAtHash": seen_at.hash}
    return _transition(tx, after, "Lose", detail)


def reopen(tx: ManagedTx) -> Transition:
    """Reopen a transaction that `fail_superseded` ended: a fork removed the evidence, or its own bytes were mined."""
    if tx.state is not State.FAILED or tx.nonce is None or tx.mined is not None:
        raise IllegalTransition(tx.state, State.SUBMITTED)
    after = changed(tx, state=State.SUBMITTED, sub_state=_SUPERSEDED, lost_at=None)
    return _transition(tx, after, "Reopen", {"newFork": True, "was": tx.state.value})


# ---- operator commands


def suspend(tx: ManagedTx, by: str) -> Transition:
    return _transition(tx, changed(tx, state=State.SUSPENDED), "Suspend", {"by": by})


def resume(tx: ManagedTx, by: str) -> Transition:
    if tx.state is not State.SUSPENDED:
        raise IllegalTransition(tx.state, live_state(tx))
    after = changed(tx, state=live_state(tx), resubmit_due_s=None)
    return _transition(tx, after, "Resume", {"by": by})


def _describe_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "purpose": attempt.purpose,
        "hash": attempt.signed.hash,
        "gas": attempt.gas,
        "feeCapWei": str(attempt.fees.fee_cap_wei),
        "tipWei": str(attempt.fees.tip_wei),
        **({"feeSource": attempt.fee_source} if attempt.fee_source else {}),
    }
