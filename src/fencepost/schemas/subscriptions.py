"""Define the wire types of subscriptions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fencepost.events.subscriptions import OnError, Ordered, SubscriptionState, SubscriptionType
from fencepost.events.types import EventType
from fencepost.schemas.requests import MAX_TAGS, AddressText, ChainId, Limit, Tag

MAX_URL_CHARS = 2048
MAX_REPLAYED = 1_000  # events per request

START_NOW, START_BEGINNING = "now", "beginning"
Start = Annotated[
    str,
    Meta(
        max_length=100,
        description="`now`, `beginning` (the oldest kept event), or the id of the last event that was processed.",
    ),
]
EventId = Annotated[str, Meta(max_length=100, description="The id of an event.")]


class FilterIn(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Select events that match all given fields. A field that is left out selects everything that the key may see."""

    types: Annotated[list[EventType], Meta(max_length=100)] | None = None
    signers: Annotated[list[AddressText], Meta(max_length=1_000)] | None = None
    tags: Annotated[
        list[Tag],
        Meta(max_length=MAX_TAGS, description="Only events of transactions that have all of these tags."),
    ] = []
    chain_id: ChainId | None = None


class SubscriptionIn(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    type: SubscriptionType
    url: (
        Annotated[
            str,
            Meta(
                max_length=MAX_URL_CHARS,
                description="Where a webhook is sent: https. http and private addresses need `events.webhook.allow_private`.",
            ),
        ]
        | None
    ) = None
    filter: FilterIn = msgspec.field(default_factory=FilterIn)
    start: Start = START_NOW
    ordered: Annotated[
        Ordered, Meta(description="`signer`: the events of each signer arrive in the order of the log.")
    ] = Ordered.NONE
    on_error: Annotated[
        OnError,
        Meta(
            description="With `ordered: signer`: whether an event that fails blocks the later ones of its signer until it is"
            " accepted, or is skipped after `events.webhook.skip_after` attempts."
        ),
    ] = OnError.BLOCK


class ResumeIn(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    start: Start | None = None


class ReplayIn(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Name what to send again: one event, the events after one up to another, or all that were given up since a time."""

    event: EventId | None = None
    after: EventId | None = None
    until: EventId | None = None
    failed_since: datetime | None = None


class AttemptsQuery(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    failed: Annotated[bool, Meta(description="Only attempts that failed.")] = False
    limit: Limit = 100


class FilterOut(msgspec.Struct, rename="camel", kw_only=True):
    types: list[EventType] | None
    signers: list[str] | None
    tags: list[str]
    chain_id: int | None


class SubscriptionOut(msgspec.Struct, rename="camel", kw_only=True):
    """A subscription. `secret` is in the response to its creation or rotation only; it can't be read later."""

    id: str
    type: SubscriptionType
    url: str | None
    filter: FilterOut
    ordered: Ordered
    on_error: OnError
    state: SubscriptionState
    reason: str | None
    created_at: datetime
    checkpoint: (
        str  # the last event that needs no further delivery, or whose retries are counted by `pending`
    )
    failing_since: datetime | None
    pending: int  # events that wait for a retry
    secret: str | UnsetType = UNSET


class SubscriptionsOut(msgspec.Struct, rename="camel", kw_only=True):
    items: list[SubscriptionOut]


class DeletedOut(msgspec.Struct, rename="camel", kw_only=True):
    id: str
    deleted: bool


class DeliveryAttemptOut(msgspec.Struct, rename="camel", kw_only=True):
    """An attempt to deliver an event. `error` is null if the endpoint accepted it; `answer` is the first KB of the body."""

    event_id: str
    attempt: int
    at: datetime
    duration_ms: int
    status: int | None
    error: str | None
    answer: str


class DeliveryAttemptsOut(msgspec.Struct, rename="camel", kw_only=True):
    items: list[DeliveryAttemptOut]


class ReplayOut(msgspec.Struct, rename="camel", kw_only=True):
    """How many events will be sent again. If `next` is not null, there are more: repeat the request with it as `after`."""

    queued: int
    next: str | None
