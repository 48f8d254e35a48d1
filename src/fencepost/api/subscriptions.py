"""Handle subscriptions: create, list, pause, resume, delete, rotate the secret, test, replay, list attempts.

A subscription belongs to the API key that made it. Other keys don't see it, except those that administer the node.
"""

from __future__ import annotations

import ipaddress
import secrets
from datetime import UTC, datetime
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import msgspec
from msgspec import UNSET

from fencepost.api.context import RequestContext, Response
from fencepost.api.problems import ApiError
from fencepost.events.log import BEGINNING, MAX_PARTS, EventsExpired, Place, parse_place
from fencepost.events.reader import EventFilter
from fencepost.events.signatures import new_secret, secret_text
from fencepost.events.subscriptions import (
    MAX_PENDING,
    Attempt,
    NewSubscription,
    Retry,
    Subscription,
    SubscriptionType,
    TooManySubscriptions,
)
from fencepost.events.types import Event, EventType
from fencepost.events.webhooks import Access, limited, send_event
from fencepost.schemas.events import EventData, EventOut
from fencepost.schemas.subscriptions import (
    MAX_REPLAYED,
    START_BEGINNING,
    START_NOW,
    DeletedOut,
    DeliveryAttemptOut,
    DeliveryAttemptsOut,
    FilterIn,
    FilterOut,
    ReplayOut,
    SubscriptionIn,
    SubscriptionOut,
    SubscriptionsOut,
)

_CREATED = 201


async def create(call: RequestContext) -> Response:
    """Store a subscription, and respond with its secret, once."""
    body: SubscriptionIn = call.body
    is_webhook = body.type is SubscriptionType.WEBHOOK
    secret = new_secret() if is_webhook else None
    new = NewSubscription(
        id=uuid4(),
        owner=_owner(call),
        type=body.type,
        start=await _start(call, body.start),
        url=_checked_url(body.url, allow_private=call.services.webhooks.allow_private)
        if is_webhook
        else None,
        wanted=_filter(call, body.filter),
        ordered=body.ordered,
        on_error=body.on_error,
        secret=secret,
    )
    if not is_webhook and body.url is not None:
        raise ApiError("field_invalid", "url: a websocket subscription has no url", field="url")
    try:
        made = await call.services.subscriptions.create(new, max_per_owner=call.services.webhooks.max_per_key)
    except TooManySubscriptions as error:
        raise ApiError("too_many_subscriptions", str(error)) from None
    return Response(_out(made, secret), _CREATED)


async def list_all(call: RequestContext) -> Response:
    """Respond with the caller's subscriptions; a node administrator sees those of all keys."""
    found = await call.services.subscriptions.list(_owner(call), everyone=call.caller.is_node_admin)
    return Response(SubscriptionsOut(items=[_out(one) for one in found]))


async def get(call: RequestContext) -> Response:
    """Respond with one subscription."""
    return Response(_out(await existing(call)))


async def delete(call: RequestContext) -> Response:
    """Remove a subscription with its deliveries and attempts."""
    found = await existing(call)
    deleted = await call.services.subscriptions.delete(found.id)
    return Response(DeletedOut(id=str(found.id), deleted=deleted))


async def pause(call: RequestContext) -> Response:
    """Stop the deliveries of a subscription; the log keeps its events."""
    await call.services.subscriptions.pause((await existing(call)).id)
    return Response(_out(await existing(call)))


async def resume(call: RequestContext) -> Response:
    """Start the deliveries again, at the checkpoint or from a new place."""
    start = call.body.start if call.body is not None else None
    place = None if start is None else await _start(call, start)
    await call.services.subscriptions.resume((await existing(call)).id, start=place)
    return Response(_out(await existing(call)))


async def rotate_secret(call: RequestContext) -> Response:
    """Respond with a new secret, once. The former one signs for a while too."""
    found, secret = await existing(call), new_secret()
    overlap_s = call.services.webhooks.secret_overlap_s
    if not await call.services.subscriptions.rotate_secret(found.id, secret, overlap_s=overlap_s):
        raise ApiError("refused", "a websocket subscription has no secret")
    return Response(_out(await existing(call), secret))


async def test(call: RequestContext) -> Response:
    """Send a test event now, and respond with what the endpoint answered."""
    found = await existing(call)
    if found.type is not SubscriptionType.WEBHOOK:
        raise ApiError("refused", "only a webhook subscription can be tested")
    now = datetime.now(UTC)
    place = Place(int(now.timestamp() * 1000), secrets.randbits(62), secrets.randbits(62), 0)
    event = EventOut(
        id=place.id,
        type=EventType.WEBHOOK_TEST,
        timestamp=now,
        chain_id=call.services.chains.default_id,
        signer=None,
        sequence=place.sequence,
        data=EventData(subscription=str(found.id)),
    )
    attempt, _ = await send_event(
        call.services.webhooks.send, found, place.id, msgspec.json.encode(event), attempt=1
    )
    await call.services.subscriptions.record_attempt(found.id, attempt)
    return Response(_attempt_out(attempt))


async def attempts(call: RequestContext) -> Response:
    """Respond with the newest attempts."""
    found = await existing(call)
    listed = await call.services.subscriptions.attempts(
        found.id, only_failed=call.query.failed, limit=call.query.limit
    )
    return Response(DeliveryAttemptsOut(items=[_attempt_out(one) for one in listed]))


async def replay(call: RequestContext) -> Response:
    """Queue one event, a range of events, or everything that was given up since a time, to be sent again."""
    found, body = await existing(call), call.body
    if found.type is not SubscriptionType.WEBHOOK:
        raise ApiError("refused", "only webhooks are replayed; a WebSocket subscriber resumes with a start")
    given = [
        body.event is not None,
        body.after is not None or body.until is not None,
        body.failed_since is not None,
    ]
    if sum(given) != 1:
        raise ApiError("field_invalid", "give one of event, after with until, or failedSince", field="event")
    room = min(MAX_REPLAYED, 2 * MAX_PENDING - found.pending)
    if room <= 0:
        raise ApiError("refused", f"{found.pending} events wait for this endpoint already: repeat it later")
    store = call.services.subscriptions
    if body.failed_since is not None:
        if body.failed_since.tzinfo is None:
            raise ApiError("field_invalid", "failedSince: the time zone is missing", field="failedSince")
        return Response(
            ReplayOut(
                queued=await store.redeliver_failed(found.id, since=body.failed_since, limit=room), next=None
            )
        )
    if body.event is not None:
        place = _place(body.event, "event")
        events, following = await _matching(call, found, _before(place), place, limit=1)
        if not events:
            raise ApiError("event_not_found", "the event is not in the log, or does not match", field="event")
    else:
        after = BEGINNING if body.after is None else _place(body.after, "after")
        until = Place(2**48 - 1, 0, 0) if body.until is None else _place(body.until, "until")
        events, following = await _matching(call, found, after, until, limit=room)
    queued = [Retry(event.place, event.chain_id or 0, event.address, 0, 0.0) for event in events]
    return Response(ReplayOut(queued=await store.redeliver(found.id, queued), next=following))


# ---- parts


async def existing(call: RequestContext) -> Subscription:
    """Return the subscription of the path, if the caller may see it."""
    text = call.path_text("subscription_id")
    try:
        found = await call.services.subscriptions.get(UUID(text))
    except ValueError:
        found = None
    if found is None or not (found.owner == _owner(call) or call.caller.is_node_admin):
        raise ApiError("subscription_not_found", f"{text[:60]!r} is not the id of a subscription of this key")
    return found


def _owner(call: RequestContext) -> str | None:
    return None if call.caller.key is None else call.caller.key.id


async def _start(call: RequestContext, text: str) -> Place:
    if text == START_NOW:
        return await call.services.events_log.log.newest()
    return BEGINNING if text == START_BEGINNING else _place(text, "start")


def _place(text: str, field: str) -> Place:
    place = parse_place(text)
    if place is None:
        raise ApiError("cursor_invalid", f"{field}: not the id of an event of this API", field=field)
    return place


def _before(place: Place) -> Place:
    """Return a place before an event and after the one that precedes it."""
    if place.part:
        return place._replace(part=place.part - 1)
    return place._replace(entry=max(0, place.entry - 1), part=MAX_PARTS - 1)


def _filter(call: RequestContext, given: FilterIn) -> EventFilter:
    addresses = None
    if given.signers is not None:
        addresses = frozenset(call.address(text, "filter.signers") for text in given.signers)
        for address in addresses:
            call.caller.require_signer(address)
    return EventFilter(
        types=None if given.types is None else frozenset(given.types),
        addresses=addresses,
        chain_id=None if given.chain_id is None else call.chain_id(given.chain_id),
        tags=tuple(given.tags),
    )


def _checked_url(url: str | None, *, allow_private: bool) -> str:
    """Check the form of a URL. Its addresses are checked at every connection, because a name may change."""

    def reject(problem: str) -> ApiError:
        return ApiError("field_invalid", f"url: {problem}", field="url")

    if url is None:
        raise ApiError("field_missing", "url: a webhook needs one", field="url")
    if not url.isascii() or any(character <= " " for character in url):
        raise reject("must be ASCII without spaces")
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise reject("is not a URL") from None
    if parts.scheme not in ("https", "http") or not host:
        raise reject("must begin with https:// and name a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise reject("must have no user, password or fragment")
    if not allow_private:
        if parts.scheme != "https":
            raise reject("must begin with https:// unless events.webhook.allow_private is on")
        if _is_private(host):
            raise reject("is a private address, which events.webhook.allow_private forbids")
    return url


def _is_private(host: str) -> bool:
    """Return whether a host is a private address. The addresses of a name are checked when it is resolved."""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host == "localhost"


async def _matching(
    call: RequestContext, found: Subscription, after: Place, until: Place, *, limit: int
) -> tuple[list[Event], str | None]:
    """Return the events between two places that the subscription selects, and where to continue if there are more."""
    key = await call.services.keys.find(found.owner) if found.owner is not None else None
    signers = None if key is None else key[0].signers
    wanted = limited(found.wanted, Access(signers, shows_nonce=False))
    events: list[Event] = []
    while True:
        try:
            page = await call.services.events_log.page(after, wanted, limit=limit - len(events))
        except EventsExpired as error:
            raise ApiError("events_expired", str(error), field="after") from None
        events += [event for event in page.events if event.place <= until]
        if page.next == after or page.next >= until:
            return events, None
        if len(events) >= limit:
            return events, page.next.id
        after = page.next


def _out(one: Subscription, secret: bytes | None = None) -> SubscriptionOut:
    wanted = one.wanted
    return SubscriptionOut(
        id=str(one.id),
        type=one.type,
        url=one.url,
        filter=FilterOut(
            types=None if wanted.types is None else sorted(wanted.types),
            signers=None if wanted.addresses is None else sorted(wanted.addresses),
            tags=list(wanted.tags),
            chain_id=wanted.chain_id,
        ),
        ordered=one.ordered,
        on_error=one.on_error,
        state=one.state,
        reason=one.reason,
        created_at=one.created_at,
        checkpoint=one.checkpoint.id,
        failing_since=one.failing_since,
        pending=one.pending,
        secret=UNSET if secret is None else secret_text(secret),
    )


def _attempt_out(one: Attempt) -> DeliveryAttemptOut:
    return DeliveryAttemptOut(
        event_id=one.event_id,
        attempt=one.attempt,
        at=one.at,
        duration_ms=round(one.duration_s * 1000),
        status=one.status,
        error=one.error,
        answer=one.answer,
    )
