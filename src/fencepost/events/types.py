"""Map journal entries to events: a pure function, so that every reader of the log sees the same events.

An entry may yield no event (bookkeeping that a caller can't act on), or two: a price above the limits concerns the
transaction, which waits, and the signer, whose limit was reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from fencepost.domain.confirmations import BlockRef
from fencepost.domain.ids import Address, BlockHash
from fencepost.domain.send_result import POSSIBLY_SENT, SendCategory
from fencepost.domain.states import TERMINAL, State
from fencepost.events.log import LogEntry, Place


class EventType(StrEnum):
    """Name the events that callers can receive."""

    TX_QUEUED = "tx.queued"
    TX_ALLOCATED = "tx.allocated"
    TX_SUBMITTED = "tx.submitted"
    TX_REPLACED = "tx.replaced"
    TX_MINED = "tx.mined"
    TX_CONFIRMING = "tx.confirming"
    TX_CONFIRMED = "tx.confirmed"
    TX_FAILED = "tx.failed"
    TX_CANCELLED = "tx.cancelled"
    TX_REOPENED = "tx.reopened"
    TX_STUCK = "tx.stuck"
    TX_WAITING = "tx.waiting"
    TX_NEW_FORK = "tx.new_fork"
    SIGNER_PROTECTED = "signer.protected"
    SIGNER_UNPROTECTED = "signer.unprotected"
    SIGNER_UNFUNDED = "signer.unfunded"
    SIGNER_LOW_BALANCE = "signer.low_balance"
    SIGNER_FEE_CAP_REACHED = "signer.fee_cap_reached"
    SIGNER_PAUSED = "signer.paused"
    SIGNER_RESUMED = "signer.resumed"
    WEBHOOK_DISABLED = "webhook.disabled"
    WEBHOOK_TEST = "webhook.test"
    NODE_JOINED = "node.joined"
    NODE_LEFT = "node.left"
    BLOCK_STABLE = "block.stable"
    BLOCK_REORG = "block.reorg"


MEANINGS: Final[Mapping[EventType, str]] = {
    EventType.TX_QUEUED: "The request is stored.",
    EventType.TX_ALLOCATED: "The transaction has its nonce.",
    EventType.TX_SUBMITTED: "Signed bytes were sent, or may have been. Repeated for every recorded send.",
    EventType.TX_REPLACED: "New bytes for the same nonce were signed: a higher fee, or a filler.",
    EventType.TX_MINED: "The transaction is in a block.",
    EventType.TX_CONFIRMING: "More blocks confirm it; `confirmations` has the added blocks.",
    EventType.TX_CONFIRMED: "The transaction succeeded and has the required confirmations.",
    EventType.TX_FAILED: "The transaction failed; `error` says why.",
    EventType.TX_CANCELLED: "The transaction was cancelled.",
    EventType.TX_REOPENED: "A fork undid the end of the transaction: it is live again.",
    EventType.TX_STUCK: "Fencepost sends nothing more for the transaction until an operator decides.",
    EventType.TX_WAITING: "The transaction can't proceed; `reason` says why.",
    EventType.TX_NEW_FORK: "A fork replaced blocks: `confirmations` replaces every list received before.",
    EventType.SIGNER_PROTECTED: "The signer is in PROTECT: an operator has to decide.",
    EventType.SIGNER_UNPROTECTED: "An operator ended PROTECT.",
    EventType.SIGNER_UNFUNDED: "The signer can't pay for a transaction.",
    EventType.SIGNER_LOW_BALANCE: "The balance of the signer is below the threshold. Sent again after it has recovered.",
    EventType.SIGNER_FEE_CAP_REACHED: "The fee limits allow no higher price for a transaction.",
    EventType.SIGNER_PAUSED: "An operator paused the signer.",
    EventType.SIGNER_RESUMED: "An operator resumed the signer.",
    EventType.WEBHOOK_DISABLED: "Fencepost delivers nothing more to a webhook; `reason` says why.",
    EventType.WEBHOOK_TEST: "A test event, which its owner requested. It is not in the log.",
    EventType.NODE_JOINED: "A node has joined the cluster.",
    EventType.NODE_LEFT: "A node has left the cluster; `reason` says how.",
    EventType.BLOCK_STABLE: "A block has the depth `stable_depth` of its chain; `parentHash` is the stable block before it.",
    EventType.BLOCK_REORG: "A fork removed stable blocks: `block` is the last common one, `replaced` has those that are gone.",
}

_SIMPLE: Final[Mapping[str, tuple[EventType, ...]]] = {
    "Receive": (EventType.TX_QUEUED,),
    "AssignNonce": (EventType.TX_ALLOCATED,),
    "Bump": (EventType.TX_REPLACED,),
    "Fill": (EventType.TX_REPLACED,),
    "Retype": (EventType.TX_REPLACED,),
    "ReceiveReceipt": (EventType.TX_MINED,),
    "Confirm": (EventType.TX_CONFIRMING,),
    "Refuse": (EventType.TX_FAILED,),
    "Lose": (EventType.TX_FAILED,),
    "Cancel": (EventType.TX_CANCELLED,),
    "Reopen": (EventType.TX_REOPENED,),
    "Stuck": (EventType.TX_STUCK,),
    "Stale": (EventType.TX_WAITING,),
    "Suspend": (EventType.TX_WAITING,),
    "Supersede": (EventType.TX_WAITING,),
    "PendingInPool": (EventType.TX_WAITING,),
    "BelowMarket": (EventType.TX_WAITING, EventType.SIGNER_FEE_CAP_REACHED),
    "Unfunded": (EventType.TX_WAITING, EventType.SIGNER_UNFUNDED),
    "Protect": (EventType.SIGNER_PROTECTED,),
    "Unprotect": (EventType.SIGNER_UNPROTECTED,),
    "Pause": (EventType.SIGNER_PAUSED,),
    "Unpause": (EventType.SIGNER_RESUMED,),
    "WebhookDisabled": (EventType.WEBHOOK_DISABLED,),
    "LowBalance": (EventType.SIGNER_LOW_BALANCE,),
    "NodeJoined": (EventType.NODE_JOINED,),
    "NodeLeft": (EventType.NODE_LEFT,),
    "BlockStable": (EventType.BLOCK_STABLE,),
    "BlockReorg": (EventType.BLOCK_REORG,),
}
# Bookkeeping, or the step before an entry that is an event.
SILENT: Final = frozenset(
    {
        "AdoptChainNonce",
        "BeginSequence",
        "FillDoubt",
        "GiveUp",
        "Reclaim",
        "Resubmit",
        "Resume",
        "Sign",
        "SubmitTransaction",
        "Unstuck",
    }
)
_ENDS: Final = {
    State.CONFIRMED: EventType.TX_CONFIRMED,
    State.FAILED: EventType.TX_FAILED,
    State.CANCELLED: EventType.TX_CANCELLED,
}
_REASONS: Final = {"Stale": "the block has it, but its receipt is not available"}


@dataclass(frozen=True, slots=True)
class Event:
    """Describe one event. `state` is the transaction's state right after it."""

    place: Place
    type: EventType
    at: datetime
    chain_id: int | None  # None: the event concerns no chain
    address: Address | None
    tx_id: UUID | None
    state: State | None
    new_fork: bool | None = None  # True: `confirmations` replaces all earlier lists; None: no confirmations
    confirmations: tuple[BlockRef, ...] = ()
    replaced: tuple[BlockRef, ...] = ()
    error: str | None = None
    reason: str | None = None
    tx_hash: str | None = None
    attempt: int | None = None
    subscription: str | None = None
    node: str | None = None
    balance_wei: str | None = None  # decimal text, as every amount of wei
    threshold_wei: str | None = None
    missing_wei: str | None = None
    block: BlockRef | None = None  # of an event about blocks
    parent_hash: str | None = None
    depth: int | None = None

    @property
    def id(self) -> str:
        """Return the event id; ids sort as text in the order of the log."""
        return self.place.id

    @property
    def sequence(self) -> str:
        """Return a whole number in decimal text that rises with each event of a signer."""
        return self.place.sequence


def events_of(entry: LogEntry) -> list[Event]:
    """Return the events of a journal entry, in order."""
    return [_event(entry, Place(*entry.place[:3], part), kind) for part, kind in enumerate(types_of(entry))]


def types_of(entry: LogEntry) -> Sequence[EventType]:
    """Return the types of an entry's events. An entry that this version does not know has none."""
    detail = entry.detail
    match entry.event:
        case "Finish":
            return (_ENDS[entry.state],) if entry.state in _ENDS else ()
        case "Fork":
            was = detail.get("was")
            undone = was is not None and State(was) in TERMINAL
            return (EventType.TX_NEW_FORK, EventType.TX_REOPENED) if undone else (EventType.TX_NEW_FORK,)
        case "Attach":
            return (EventType.TX_ALLOCATED,) if entry.state is State.ALLOCATED else ()
        case "SendResult":
            return _types_of_send(str(detail.get("result", "")))
        case _:
            return _SIMPLE.get(entry.event, ())


def _types_of_send(result: str) -> Sequence[EventType]:
    if result == SendCategory.INSUFFICIENT_FUNDS:
        return (EventType.TX_WAITING, EventType.SIGNER_UNFUNDED)
    return (EventType.TX_SUBMITTED,) if result in POSSIBLY_SENT else ()


def _event(entry: LogEntry, place: Place, kind: EventType) -> Event:
    detail = entry.detail
    of_confirmations = "newFork" in detail
    return Event(
        place=place,
        type=kind,
        at=entry.at,
        chain_id=entry.chain_id or None,
        address=entry.address,
        tx_id=entry.tx_id,
        state=entry.state,
        new_fork=bool(detail["newFork"]) if of_confirmations else None,
        confirmations=_blocks(detail.get("blocks", ())),
        replaced=_blocks(detail.get("replaced", ())),
        error=detail.get("error"),
        reason=_reason(entry),
        tx_hash=detail.get("hash"),
        attempt=detail.get("attempt"),
        subscription=detail.get("subscription"),
        node=detail.get("node"),
        balance_wei=detail.get("balanceWei"),
        threshold_wei=detail.get("thresholdWei"),
        missing_wei=detail.get("missingWei"),
        block=_blocks([detail["at"]])[0] if "at" in detail else None,
        parent_hash=detail.get("parent"),
        depth=detail.get("depth"),
    )


def _reason(entry: LogEntry) -> str | None:
    detail = entry.detail
    if entry.event == "Suspend":
        return f"suspended by {detail.get('by')}"
    if entry.event == "SendResult":
        return detail.get("message") or detail.get("result")
    if entry.event == "Supersede":
        return detail.get("error")
    return detail.get("reason") or _REASONS.get(entry.event)


def _blocks(listed: Sequence[Sequence[Any]]) -> tuple[BlockRef, ...]:
    return tuple(BlockRef(number, BlockHash(block_hash)) for number, block_hash in listed)
