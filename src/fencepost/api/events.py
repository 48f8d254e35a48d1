"""Read events over HTTP: pages of the log, a long poll, and a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from msgspec import UNSET

from fencepost.api.context import RequestContext, Response, StreamResponse
from fencepost.api.pipeline import problem_of
from fencepost.api.presenters import blocks_out, tx_out
from fencepost.api.problems import ApiError
from fencepost.application.api_keys import Scope
from fencepost.application.queries import Reader, TxView
from fencepost.domain.ids import Address
from fencepost.events.log import BEGINNING, EventsExpired, Place, parse_place
from fencepost.events.reader import EventFilter, EventPage
from fencepost.events.types import Event
from fencepost.schemas.events import AFTER_NOW, EventData, EventOut, EventsOut

# Proxies close connections that are silent for a minute, and a heartbeat also moves the reader's place.
HEARTBEAT_INTERVAL_S: Final = 15.0
MAX_STREAMED_EVENTS: Final = (
    100  # per part: all that is in memory for a stream, beside what the connection buffers
)
RECONNECT_MS: Final = 1_000
STREAM_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

_encode = msgspec.json.Encoder().encode


async def page(call: RequestContext) -> Response:
    """Respond with the next events, as soon as there are any or when the wait is over."""
    wanted = _filter(call)
    after = await _start_place(call, call.query.after)
    try:
        found = await _read(call, after, wanted)
    except EventsExpired as error:
        raise ApiError("events_expired", str(error), field="after") from None
    return Response(EventsOut(items=await present_events(call, found.events), next=found.next.id))


async def stream(call: RequestContext) -> StreamResponse:
    """Stream the events after a place as server-sent events, until the client disconnects or the node stops.

    The first page is read before the response begins, so that an expired place is a problem response.
    """
    given = call.request.headers.get("last-event-id")
    after = await _start_place(call, call.query.after if given is None else given)
    end = call.authenticator.open_stream(call.caller)
    try:
        first = await call.services.events_log.page(after, _filter(call), limit=MAX_STREAMED_EVENTS)
    except EventsExpired as error:
        end()
        raise ApiError("events_expired", str(error), field="after") from None
    except BaseException:
        end()
        raise
    return StreamResponse(_parts(call, first), end, STREAM_HEADERS, "text/event-stream")


async def _parts(call: RequestContext, found: EventPage) -> AsyncGenerator[bytes, None]:
    """Yield each page as one part. A page is read after the client has taken the one before: nothing is buffered."""
    reader = call.services.events_log
    yield b"retry: %d\n\n" % RECONNECT_MS
    try:
        while True:
            yield _encode_page(await present_events(call, found.events), found.next)
            if reader.is_stopped():
                return
            call = await _with_valid_key(call)
            found = await reader.wait(
                found.next, _filter(call), limit=MAX_STREAMED_EVENTS, timeout_s=HEARTBEAT_INTERVAL_S
            )
            call = await _with_valid_key(call)
    except EventsExpired as error:
        yield _encode_problem(ApiError("events_expired", str(error), field="after"))
    except Exception as error:  # noqa: BLE001 - the edge: the client learns why the stream ends, and reconnects
        yield _encode_problem(problem_of(error, call.services))


async def _with_valid_key(call: RequestContext) -> RequestContext:
    """Authenticate again: a stream outlives a revocation of its key, or a change of the key's signers, by seconds only."""
    caller = await call.authenticator.admit(call.request)
    caller.require(Scope.TX_READ)
    return call._replace(caller=caller)


def _encode_page(events: Sequence[EventOut], after: Place) -> bytes:
    """Encode events, and the place after them. A block without data moves the client's place and is no event there."""
    blocks = [b"id: %b\ndata: %b\n\n" % (event.id.encode(), _encode(event)) for event in events]
    if not events or events[-1].id != after.id:
        blocks.append(b": heartbeat\nid: %b\n\n" % after.id.encode())
    return b"".join(blocks)


def _encode_problem(problem: ApiError) -> bytes:
    return b"event: problem\ndata: %b\n\n" % _encode(problem.problem)


async def _read(call: RequestContext, after: Place, wanted: EventFilter) -> EventPage:
    reader, query = call.services.events_log, call.query
    if not query.wait:
        return await reader.page(after, wanted, limit=query.limit)
    with call.authenticator.waiting(call.caller):
        waiting = reader.wait(after, wanted, limit=query.limit, timeout_s=query.wait)
        return await call.cancel_on_disconnect(waiting)


def _filter(call: RequestContext) -> EventFilter:
    query, allowed = call.query, call.caller.addresses
    addresses: frozenset[Address] | None = None if allowed is None else frozenset(allowed)
    if query.signer:
        requested = frozenset(call.address(text, "signer") for text in query.signer)
        addresses = requested if addresses is None else requested & addresses
    return EventFilter(
        types=frozenset(query.types) or None,
        addresses=addresses,
        chain_id=None if query.chain_id is None else call.chain_id(query.chain_id),
        tags=tuple(query.tag),
    )


async def _start_place(call: RequestContext, text: str) -> Place:
    if not text:
        return BEGINNING
    if text == AFTER_NOW:
        return await call.services.events_log.log.newest()
    place = parse_place(text)
    if place is None:
        raise ApiError("cursor_invalid", "after: not the id of an event of this API", field="after")
    return place


async def present_events(call: RequestContext, events: Sequence[Event]) -> list[EventOut]:
    """Build the responses for events that the caller may see, with their transactions."""
    services = call.services
    return await build_events(
        events,
        services.reader,
        shows_nonce=call.shows_nonce,
        required=services.settings.required_confirmations,
    )


async def build_events(
    events: Sequence[Event], reader: Reader, *, shows_nonce: bool, required: int | str
) -> list[EventOut]:
    """Build the wire form of events, with their transactions as `GET /tx` shows them."""
    ids = {event.tx_id for event in events if event.tx_id is not None}
    views: Mapping[UUID, TxView] = (
        {view.tx_id: view for view in await reader.get_many(list(ids))} if ids else {}
    )
    return [_event_out(event, views, shows_nonce=shows_nonce, required=required) for event in events]


def _event_out(
    event: Event, views: Mapping[UUID, TxView], *, shows_nonce: bool, required: int | str
) -> EventOut:
    view = None if event.tx_id is None else views.get(event.tx_id)
    tx = (
        UNSET if view is None else tx_out(view, parts=frozenset(), shows_nonce=shows_nonce, required=required)
    )
    has_blocks = event.new_fork is not None
    return EventOut(
        id=event.id,
        type=event.type,
        timestamp=event.at,
        chain_id=event.chain_id,
        signer=event.address,
        sequence=event.sequence,
        data=EventData(
            state=event.state or UNSET,
            tx=tx,
            new_fork=UNSET if event.new_fork is None else event.new_fork,
            confirmations=blocks_out(event.confirmations) if has_blocks else UNSET,
            replaced=blocks_out(event.replaced) if event.new_fork or event.replaced else UNSET,
            error=event.error or UNSET,
            reason=event.reason or UNSET,
            hash=event.tx_hash or UNSET,
            attempt=event.attempt or UNSET,
            subscription=event.subscription or UNSET,
            node=event.node or UNSET,
            balance_wei=event.balance_wei or UNSET,
            threshold_wei=event.threshold_wei or UNSET,
            missing_wei=event.missing_wei or UNSET,
            block=UNSET if event.block is None else blocks_out([event.block])[0],
            parent_hash=event.parent_hash or UNSET,
            depth=event.depth or UNSET,
        ),
    )
