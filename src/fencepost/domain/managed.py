"""The managed transaction: one intent, at most one nonce, one or more signed attempts, one end.

`ManagedTx` is a value. Each function below is one thing that can happen to it; it checks that the step is legal and
gives the transaction as it is afterwards, together with the entries that the journal gets in the same commit. None of
them knows a clock, a database or a node. Times are seconds of the caller's monotonic clock (`due_s`), durations are
what the database stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from uuid import UUID

from fencepost.domain.confirmations import BlockRef, Confirmations
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.send import POSSIBLY_SENT, SendCategory, SendResult
from fencepost.domain.states import TERMINAL, IllegalTransition, State, SubState, is_legal
from fencepost.domain.transaction import Call, Fees, SignedTx, TxType
from fencepost.domain.value import Value, changed

_NO_DETAIL: Mapping[str, Any] = {}

# What every transaction meets. Python 3.11 calls a function to find a member of an enumeration; here it does so once.
_ALLOCATED, _SUBMITTED, _TRACKING = State.ALLOCATED, State.SUBMITTED, State.TRACKING
_CONFIRMED, _SUSPENDED = State.CONFIRMED, State.SUSPENDED
_INSUFFICIENT_FUNDS, _UNFUNDED = SendCategory.INSUFFICIENT_FUNDS, SubState.UNFUNDED


class Kind(StrEnum):
    INTENT = "intent"  # a payload that we sign
    HANDLER = "handler"  # a nonce that a caller's function turns into a transaction
    FILLER = "filler"  # nobody's wish: it consumes a nonce


class Purpose(StrEnum):
    INTENT = "intent"
    FILLER = "filler"


_FILLER = Purpose.FILLER


class Intent(Value, frozen=True):
    """What was asked for, in canonical form. Fields that are None are ours to choose."""

    call: Call
    gas: int | None = None
    fees: Fees | None = None
    type: TxType = TxType.DYNAMIC_FEE


class Attempt(Value, frozen=True):
    """Signed bytes for the transaction's nonce. Everything but the last three fields never changes."""

    number: int
    purpose: Purpose
    type: TxType
    gas: int
    fees: Fees
    signed: SignedTx
    sent_count: int = 0
    last_result: SendCategory | None = None
    last_message: str = ""


class Receipt(Value, frozen=True):
    """What the chain says of a transaction that is in a block."""

    tx_hash: TxHash
    block: BlockRef
    succeeded: bool
    gas_used: int
    raw: Mapping[str, Any]  # as the node gave it


class Entry(Value, frozen=True):
    """One line of the journal: `event` is the action's name, `detail` what a reader may want to know."""

    event: str
    detail: Mapping[str, Any] = _NO_DETAIL
    state: State | None = None  # of the transaction after it


class ManagedTx(Value, frozen=True):
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
    mined: Receipt | None = None  # of whichever attempt is in a block
    confirmations: tuple[BlockRef, ...] = ()
    submit_count: int = 0
    journal_count: int = 0
    last_submit_s: float | None = None
    resubmit_due_s: float | None = None
    valid_until_s: float | None = None
    received_s: float | None = None  # when it was accepted, as far as this was asked for

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def latest(self) -> Attempt:
        """The attempt that is sent: the newest, which pays the most."""
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


class Step(Value, frozen=True):
    """A transaction after something happened, and what the journal says about it."""

    tx: ManagedTx
    entries: tuple[Entry, ...]


def _moved(tx: ManagedTx, after: ManagedTx, event: str, detail: Mapping[str, Any]) -> Step:
    """`after` says what is different, but for what is counted here."""
    state = after.state
    if not is_legal(tx.state, state):
        raise IllegalTransition(tx.state, state)
    counted = changed(after, version=tx.version + 1, journal_count=tx.journal_count + 1)
    return Step(counted, (Entry(event, detail, state),))


def waiting_state(tx: ManagedTx) -> State:
    """The live state that a transaction is in, judged by what it has; what `resume` goes back to."""
    if tx.nonce is None:
        return State.QUEUED
    if tx.mined is not None:
        return State.TRACKING
    return State.SUBMITTED if tx.submit_count else State.ALLOCATED


# ---- before and at the nonce


def allocated(tx: ManagedTx, nonce: int, attempt: Attempt | None) -> Step:
    """The nonce is fixed for ever. Without an attempt a handler is about to be asked for the transaction."""
    if tx.nonce is not None:
        raise IllegalTransition(tx.state, State.ALLOCATED)
    detail: dict[str, Any] = {"nonce": nonce}
    attempts: tuple[Attempt, ...] = ()
    if attempt is not None:
        detail |= _described(attempt)
        attempts = (attempt,)
    after = changed(tx, state=_ALLOCATED, nonce=nonce, attempts=attempts, sub_state=None, error=None)
    return _moved(tx, after, "AssignNonce", detail)


def refused(tx: ManagedTx, error: str) -> Step:
    """It fails before it has a nonce: nothing was signed, nothing is lost."""
    after = changed(tx, state=State.FAILED, error=error, sub_state=None)
    return _moved(tx, after, "Refuse", {"error": error})


def dropped(tx: ManagedTx, reason: str) -> Step:
    """It is cancelled before it has a nonce."""
    after = changed(tx, state=State.CANCELLED, error=reason, sub_state=None)
    return _moved(tx, after, "Cancel", {"reason": reason})


# ---- attempts and sends


def attempted(tx: ManagedTx, attempt: Attempt, event: str) -> Step:
    """One more set of bytes for the same nonce: the handler's, a bump, or a filler."""
    if tx.nonce is None or tx.is_terminal:
        raise IllegalTransition(tx.state, tx.state)
    if attempt.number != len(tx.attempts) + 1:
        raise ValueError(f"attempt {attempt.number} does not follow {len(tx.attempts)}")
    after = changed(
        tx,
        attempts=(*tx.attempts, attempt),
        sub_state=None if tx.sub_state is SubState.STUCK else tx.sub_state,
        resubmit_due_s=None,
    )
    return _moved(tx, after, event, _described(attempt))


def given_up(tx: ManagedTx, *, ending: State, error: str) -> Step:
    """The intent will not be carried out: from here on a filler goes for its nonce."""
    if ending not in (State.FAILED, State.CANCELLED) or tx.nonce is None:
        raise IllegalTransition(tx.state, ending)
    sub_state = SubState.REFUSED if ending is State.FAILED else tx.sub_state
    after = changed(tx, ending=ending, error=error, sub_state=sub_state)
    return _moved(tx, after, "GiveUp", {"ending": ending.value, "error": error})


def claimed(tx: ManagedTx, *, due_s: float, resubmit: bool) -> Step:
    """The next send is claimed before it happens, so that a crash or a second node can't make it a storm."""
    event = "Resubmit" if resubmit else "SubmitTransaction"
    after = changed(tx, submit_count=tx.submit_count + 1, resubmit_due_s=due_s)
    return _moved(tx, after, event, {"count": after.submit_count})


def postponed(tx: ManagedTx, *, due_s: float) -> Step:
    return Step(changed(tx, resubmit_due_s=due_s, version=tx.version + 1), ())


def sent(
    tx: ManagedTx, attempt_number: int, result: SendResult, *, now_s: float, due_s: float | None
) -> Step:
    """What the node said is recorded; the state moves when the bytes may be out."""
    category = result.category
    out = category in POSSIBLY_SENT
    state = _SUBMITTED if out and tx.state is _ALLOCATED else tx.state
    sub_state = tx.sub_state
    if category is _INSUFFICIENT_FUNDS:
        sub_state = _UNFUNDED
    elif out and sub_state is _UNFUNDED:
        sub_state = None
    detail: dict[str, Any] = {"attempt": attempt_number, "result": category}
    if result.message:
        detail["message"] = result.message
    after = changed(
        tx,
        state=state,
        attempts=tuple([_answered(a, result) if a.number == attempt_number else a for a in tx.attempts]),
        sub_state=sub_state,
        submit_count=tx.submit_count or 1,
        last_submit_s=now_s,
        resubmit_due_s=due_s,
    )
    return _moved(tx, after, "SendResult", detail)


def _answered(attempt: Attempt, result: SendResult) -> Attempt:
    return changed(
        attempt,
        sent_count=attempt.sent_count + 1,
        last_result=result.category,
        last_message=result.message,
    )


def stuck(tx: ManagedTx, reason: str) -> Step:
    return _moved(tx, changed(tx, sub_state=SubState.STUCK, error=reason), "Stuck", {"reason": reason})


def stale(tx: ManagedTx) -> Step:
    return _moved(tx, changed(tx, sub_state=SubState.STALE), "Stale", {})


# ---- the chain


def mined(tx: ManagedTx, receipt: Receipt) -> Step:
    """An attempt of ours is in a block. Which of them does not matter until the depth is reached."""
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
        resubmit_due_s=None,
        submit_count=tx.submit_count or 1,
    )
    return _moved(tx, after, "ReceiveReceipt", detail)


def confirmed_further(tx: ManagedTx, confirmations: Confirmations) -> Step:
    """More blocks on top, or other ones: `newFork` tells a reader to replace what it had."""
    known = 0 if confirmations.new_fork else len(tx.confirmations)
    detail = {
        "newFork": confirmations.new_fork,
        "count": len(confirmations.blocks),
        "blocks": [[block.number, block.hash] for block in confirmations.blocks[known:]],
    }
    event = "Fork" if confirmations.new_fork else "Confirm"
    return _moved(tx, changed(tx, confirmations=confirmations.blocks), event, detail)


def finished(tx: ManagedTx, confirmations: Confirmations, *, revert_reason: str | None) -> Step:
    """The depth is reached: what mined decides how it ends."""
    if tx.mined is None or not confirmations.is_final:
        raise IllegalTransition(tx.state, State.CONFIRMED)
    attempt = tx.attempt_of(tx.mined.tx_hash)
    assert attempt is not None  # noqa: S101 - `mined` let no other hash in
    error: str | None = None
    if attempt.purpose is _FILLER and tx.kind is not Kind.FILLER:
        state, error = tx.ending or State.CANCELLED, tx.error
    elif tx.mined.succeeded:
        state = _CONFIRMED
    else:
        state, error = State.FAILED, f"reverted: {revert_reason or 'no reason given'}"
    detail = {"newFork": confirmations.new_fork, "count": len(confirmations.blocks), "error": error}
    after = changed(
        tx,
        state=state,
        confirmations=confirmations.blocks,
        error=error,
        sub_state=None,
        resubmit_due_s=None,
    )
    return _moved(tx, after, "Finish", detail)


def orphaned(tx: ManagedTx, *, due_s: float) -> Step:
    """Its block left the chain: the receipt is void, the stored bytes go out again at `due_s`."""
    if tx.mined is None:
        raise IllegalTransition(tx.state, State.SUBMITTED)
    state = State.SUSPENDED if tx.state is State.SUSPENDED else State.SUBMITTED
    detail = {
        "newFork": True,
        "block": tx.mined.block.number,
        "blockHash": tx.mined.block.hash,
        "was": tx.state.value,
    }
    after = changed(tx, state=state, mined=None, confirmations=(), sub_state=None, resubmit_due_s=due_s)
    return _moved(tx, after, "Fork", detail)


def lost(tx: ManagedTx, error: str) -> Step:
    """A stranger's transaction has the nonce, and a person decided to go on without this one."""
    after = changed(tx, state=State.FAILED, error=error, sub_state=None, resubmit_due_s=None)
    return _moved(tx, after, "Lose", {"error": error})


# ---- people


def suspended(tx: ManagedTx, by: str) -> Step:
    return _moved(tx, changed(tx, state=State.SUSPENDED), "Suspend", {"by": by})


def resumed(tx: ManagedTx, by: str) -> Step:
    if tx.state is not State.SUSPENDED:
        raise IllegalTransition(tx.state, waiting_state(tx))
    after = changed(tx, state=waiting_state(tx), resubmit_due_s=None)
    return _moved(tx, after, "Resume", {"by": by})


def _described(attempt: Attempt) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "purpose": attempt.purpose,
        "hash": attempt.signed.hash,
        "gas": attempt.gas,
        "feeCapWei": str(attempt.fees.fee_cap_wei),
        "tipWei": str(attempt.fees.tip_wei),
    }
