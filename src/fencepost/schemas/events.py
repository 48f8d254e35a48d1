"""Define the wire types of events: the query, one event, and a page of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fencepost.domain.states import State
from fencepost.events.types import EventType
from fencepost.schemas.requests import MAX_TAGS, MAX_WAIT_S, AddressText, ChainId, Limit, Tag
from fencepost.schemas.responses import BlockOut, TxOut

AFTER_NOW = "now"


class EventSelection(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Select where to start and which events to read."""

    after: Annotated[
        str,
        Meta(
            max_length=100,
            description="`next` of the previous response, or the id of an event. Empty: from the oldest kept event."
            " `now`: only events from now on.",
        ),
    ] = ""
    types: Annotated[list[EventType], Meta(description="Only events of these types.")] = []
    signer: Annotated[
        list[AddressText], Meta(max_length=50, description="Only events of these signers.")
    ] = []
    chain_id: ChainId | None = None
    tag: Annotated[
        list[Tag],
        Meta(max_length=MAX_TAGS, description="Only events of transactions that have all of these tags."),
    ] = []


class EventsQuery(EventSelection, kw_only=True):
    wait: Annotated[
        float,
        Meta(ge=0, le=MAX_WAIT_S, description="Wait up to this many seconds for the next matching event."),
    ] = 0.0
    limit: Limit = 100


class EventData(msgspec.Struct, rename="camel", kw_only=True):
    """The transaction of an event, and what the event adds. `state` is the state right after the event.

    `tx` is the transaction as `GET /tx` shows it when the event is read: it may have a later state. If `newFork` is true,
    `confirmations` is the full new list and replaces every list received before; if it is false, it has the added blocks.
    """

    state: State | UnsetType = UNSET
    tx: TxOut | UnsetType = UNSET
    new_fork: bool | UnsetType = UNSET
    confirmations: list[BlockOut] | UnsetType = UNSET
    replaced: list[BlockOut] | UnsetType = UNSET  # the blocks that the fork removed
    error: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    hash: str | UnsetType = UNSET  # of the attempt that the event is about
    attempt: int | UnsetType = UNSET
    subscription: str | UnsetType = UNSET  # of `webhook.*`
    node: str | UnsetType = UNSET  # that joined or left
    balance_wei: str | UnsetType = UNSET
    threshold_wei: str | UnsetType = UNSET  # of `signer.low_balance`
    missing_wei: str | UnsetType = UNSET
    block: BlockOut | UnsetType = UNSET  # that is stable, or at which a fork began
    parent_hash: str | UnsetType = UNSET
    depth: int | UnsetType = UNSET


class EventOut(msgspec.Struct, rename="camel", kw_only=True):
    """An event. `id` and `sequence` rise in the order of the log; compare `sequence` as a whole number."""

    id: str
    type: EventType
    timestamp: datetime
    chain_id: int | None
    signer: str | None
    sequence: str
    data: EventData


class EventsOut(msgspec.Struct, rename="camel", kw_only=True):
    """The next events. An empty page is not the end: pass `next` as `after` again."""

    items: list[EventOut]
    next: str


MAX_SOCKET_BATCH = 500
MAX_ACK_TIMEOUT_S = 3_600
MAX_NACK_PAUSE_S = 300


class StartMessage(msgspec.Struct, tag_field="type", tag="start", rename="camel", forbid_unknown_fields=True):
    """The first message of a client. The connection closes if no ack or nack comes within `ackTimeout` seconds."""

    subscription: UUID
    batch_size: Annotated[int, Meta(ge=1, le=MAX_SOCKET_BATCH)] = 50
    ack_timeout: Annotated[float, Meta(ge=1, le=MAX_ACK_TIMEOUT_S)] = 60.0


class AckMessage(msgspec.Struct, tag_field="type", tag="ack", rename="camel", forbid_unknown_fields=True):
    """The batch is processed: its events do not come again."""

    batch_number: int


class NackMessage(msgspec.Struct, tag_field="type", tag="nack", rename="camel", forbid_unknown_fields=True):
    """The batch was not processed: its events come again after `pause` seconds, in a new batch."""

    batch_number: int
    pause: Annotated[float, Meta(ge=0, le=MAX_NACK_PAUSE_S)] = 1.0


class StartedMessage(msgspec.Struct, tag_field="type", tag="started", rename="camel"):
    """This connection gets the batches from now on."""

    subscription: UUID
    checkpoint: str


class WaitingMessage(msgspec.Struct, tag_field="type", tag="waiting", rename="camel"):
    """Another connection gets the batches: this one waits for its lease, and loses nothing."""

    subscription: UUID


class BatchMessage(msgspec.Struct, tag_field="type", tag="batch", rename="camel"):
    """Events in the order of the log. The next batch comes after the ack of this one."""

    batch_number: int
    events: list[EventOut]


class ErrorMessage(msgspec.Struct, tag_field="type", tag="error", rename="camel"):
    """The reason why the server closes the connection."""

    code: str
    detail: str


ClientMessage = StartMessage | AckMessage | NackMessage
ServerMessage = StartedMessage | WaitingMessage | BatchMessage | ErrorMessage
