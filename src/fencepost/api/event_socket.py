"""Deliver a subscription over a WebSocket: `start`, then batches, each of which the client acknowledges.

The messages are in `schemas/events.py`. One batch is in flight, so a client that does not read or does not acknowledge costs
the memory of one batch, and the connection closes when its time is over. The checkpoint moves after the acknowledgement:
`events/batches.py` says what happens if a process dies in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from starlette.types import Message, Receive, Scope, Send

from fencepost.api.auth import Authenticator, Caller
from fencepost.api.context import RequestContext
from fencepost.api.dependencies import Dependencies
from fencepost.api.events import present_events
from fencepost.api.pipeline import EncodedResponse, error_response, problem_of
from fencepost.api.problems import ApiError
from fencepost.api.request import IncomingRequest
from fencepost.application.api_keys import Scope as KeyScope
from fencepost.events.batches import BatchConsumer, BatchUnknown, LeaseLost
from fencepost.events.log import EventsExpired
from fencepost.events.reader import EventFilter
from fencepost.events.subscriptions import Subscription, SubscriptionState, SubscriptionType
from fencepost.schemas.events import (
    AckMessage,
    BatchMessage,
    ClientMessage,
    ErrorMessage,
    NackMessage,
    ServerMessage,
    StartedMessage,
    StartMessage,
    WaitingMessage,
)
from fencepost.schemas.requests import NoQuery

SOCKET_PATH: Final = "/api/v1/events/ws"
START_TIMEOUT_S: Final = 10.0
ACQUIRE_INTERVAL_S: Final = 0.4  # a lease that has expired is found within this time
MAX_UNREAD_MESSAGES: Final = 16  # of a client, before its connection is not read any more

_POLICY_VIOLATION: Final = 1008
_SERVICE_RESTART: Final = 1012
_TRY_AGAIN_LATER: Final = 1013

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)


class _Disconnected(Exception):
    """The client has closed the connection."""


class _Closing(Exception):
    """The server closes the connection and tells the client why."""

    def __init__(self, code: str, detail: str, *, status: int = _POLICY_VIOLATION) -> None:
        super().__init__(detail)
        self.status = status
        self.message = ErrorMessage(code, detail)


async def serve_event_socket(
    services: Dependencies, authenticator: Authenticator, scope: Scope, receive: Receive, send: Send
) -> None:
    """Authenticate a handshake, then deliver a subscription until one side closes the connection."""
    if (await receive())["type"] != "websocket.connect":
        return
    request = IncomingRequest({**scope, "method": "GET"}, receive)
    try:
        caller = await _admit(authenticator, request)
        end = authenticator.open_stream(caller)
    except Exception as error:  # noqa: BLE001 - the edge: every error becomes a response
        await _reject(error_response(error, services), send)
        return
    try:
        await send({"type": "websocket.accept"})
        context = RequestContext(request, services, authenticator, caller, NoQuery(), None)
        async with _inbox(receive) as inbox:
            await _run(context, inbox, send)
    except (_Disconnected, OSError):
        pass  # nothing reads what is sent any more
    finally:
        end()


async def _admit(authenticator: Authenticator, request: IncomingRequest) -> Caller:
    path = request.scope["path"]
    if path != SOCKET_PATH:
        raise ApiError("not_found", f"there is no WebSocket at {path[:200]}")
    caller = await authenticator.admit(request)
    authenticator.charge(caller)
    caller.require(KeyScope.TX_READ)
    return caller


async def _reject(response: EncodedResponse, send: Send) -> None:
    headers = response.encoded_headers()
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.body})


@asynccontextmanager
async def _inbox(receive: Receive) -> AsyncIterator[asyncio.Queue[Message]]:
    """Queue what the client sends, so that a wait for a message can be given up without losing one."""
    inbox: asyncio.Queue[Message] = asyncio.Queue(MAX_UNREAD_MESSAGES)

    async def pump() -> None:
        while (message := await receive())["type"] == "websocket.receive":
            await inbox.put(message)
        await inbox.put(message)

    task = asyncio.get_running_loop().create_task(pump(), name="event-socket")
    try:
        yield inbox
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _run(context: RequestContext, inbox: asyncio.Queue[Message], send: Send) -> None:
    """Run the session, and close the connection with the reason of its end."""
    try:
        session = await _open_session(context, inbox, send)
        try:
            await session.run()
        finally:
            with suppress(Exception):  # a lease that can't be released expires
                await session.consumer.release()
    except _Closing as closing:
        error, status = closing.message, closing.status
    except _Disconnected:
        raise
    except BatchUnknown as unknown:
        error, status = ErrorMessage(unknown.code, str(unknown)), _POLICY_VIOLATION
    except EventsExpired as expired:
        error, status = ErrorMessage(expired.code, str(expired)), _POLICY_VIOLATION
    except Exception as failure:  # noqa: BLE001 - the edge: the client learns why, unforeseen errors are logged
        problem = problem_of(failure, context.services).problem
        status = _POLICY_VIOLATION if isinstance(failure, ApiError) else _TRY_AGAIN_LATER
        error = ErrorMessage(problem.code, problem.detail)
    await _send(send, error)
    await send({"type": "websocket.close", "code": status, "reason": error.code})


async def _send(send: Send, message: ServerMessage) -> None:
    await send({"type": "websocket.send", "text": _encode(message).decode()})


async def _open_session(context: RequestContext, inbox: asyncio.Queue[Message], send: Send) -> _Session:
    start = await _next_message(inbox, START_TIMEOUT_S)
    if not isinstance(start, StartMessage):
        raise _Closing(
            "start_missing", f"the first message must be start, within {START_TIMEOUT_S:g} seconds"
        )
    services = context.services
    consumer = BatchConsumer(
        services.subscriptions,
        services.events_log,
        start.subscription,
        node=services.node.name,
        lease_duration_s=services.settings.lease_duration_s,
        batch_size=start.batch_size,
    )
    return _Session(
        context, consumer, start, inbox, send, renew_interval_s=services.settings.lease_duration_s / 4
    )


async def _next_message(inbox: asyncio.Queue[Message], within_s: float) -> ClientMessage | None:
    """Return the client's next message; None if none comes in time."""
    try:
        async with asyncio.timeout(within_s):
            return _decoded(await inbox.get())
    except TimeoutError:
        return None


def _decoded(message: Message) -> ClientMessage:
    if message["type"] != "websocket.receive":
        raise _Disconnected
    try:
        return _decoder.decode(message.get("text") or message.get("bytes") or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Closing("message_invalid", f"the message is not valid: {str(error)[:200]}") from None


@dataclass(slots=True)
class _Session:
    """Deliver to one connection: wait for the lease, send a batch, wait for its acknowledgement, and so on."""

    context: RequestContext
    consumer: BatchConsumer
    start: StartMessage
    inbox: asyncio.Queue[Message]
    send: Send
    renew_interval_s: float
    _renew_at_s: float = 0.0
    _answer_by_s: float = 0.0
    _paused_until_s: float = 0.0

    async def run(self) -> None:
        """Deliver until an exception says how the connection ends."""
        while True:
            wanted = await self._wanted()
            await self._acquire()
            with suppress(LeaseLost):  # it was paused or deleted, or another connection acquired it
                await self._deliver(wanted)

    async def _wanted(self) -> EventFilter:
        """Check the key and the subscription again, and return the events that the caller may have now."""
        context = self.context
        if context.services.events_log.is_stopped():
            raise _Closing("stopping", "this node stops: connect to another node", status=_SERVICE_RESTART)
        caller = await context.authenticator.admit(context.request)
        caller.require(KeyScope.TX_READ)
        self.context = context._replace(caller=caller)
        subscription = await context.services.subscriptions.get(self.start.subscription)
        return _filter_for(caller, _require_usable(subscription, caller))

    async def _acquire(self) -> None:
        """Wait for the lease, and notify the client once that it waits."""
        has_notified = False
        while not await self.consumer.acquire():
            if not has_notified:
                await _send(self.send, WaitingMessage(self.start.subscription))
                has_notified = True
            message = await _next_message(self.inbox, ACQUIRE_INTERVAL_S)
            if message is not None:
                await self._answer(message)
            await self._wanted()
        self._renew_at_s = asyncio.get_running_loop().time() + self.renew_interval_s
        await _send(self.send, StartedMessage(self.start.subscription, self.consumer.checkpoint.id))

    async def _deliver(self, wanted: EventFilter) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            if now_s >= self._renew_at_s or self.context.services.events_log.is_stopped():
                wanted = await self._wanted()
                await self.consumer.store_progress()
                await self.consumer.renew()
                self._renew_at_s = now_s + self.renew_interval_s
            left_s = max(0.0, self._renew_at_s - now_s)
            message: ClientMessage | None
            if self.consumer.in_flight is not None:
                if now_s >= self._answer_by_s:
                    raise _Closing("ack_timeout", f"no ack came within {self.start.ack_timeout:g} seconds")
                message = await _next_message(self.inbox, min(left_s, self._answer_by_s - now_s))
            elif now_s < self._paused_until_s:
                message = await _next_message(self.inbox, min(left_s, self._paused_until_s - now_s))
            else:
                message = await self._send_next(wanted, left_s)
            if message is not None:
                await self._answer(message)

    async def _send_next(self, wanted: EventFilter, wait_s: float) -> ClientMessage | None:
        """Wait for events and send them; a message of the client, such as the end of the connection, ends the wait."""
        waiting = asyncio.ensure_future(self.consumer.next_batch(wanted, wait_s=wait_s))
        listening = asyncio.ensure_future(self.inbox.get())
        try:
            await asyncio.wait({waiting, listening}, return_when=asyncio.FIRST_COMPLETED)
            batch = waiting.result() if waiting.done() else None
            message = _decoded(listening.result()) if listening.done() else None
        finally:
            waiting.cancel()
            listening.cancel()
            await asyncio.gather(waiting, listening, return_exceptions=True)
        if batch is not None:
            events = await present_events(self.context, batch.events)
            await _send(self.send, BatchMessage(batch.number, events))
            self._answer_by_s = asyncio.get_running_loop().time() + self.start.ack_timeout
        return message

    async def _answer(self, message: ClientMessage) -> None:
        match message:
            case AckMessage(number):
                await self.consumer.acknowledge(number)
            case NackMessage(number, pause_s):
                self.consumer.reject(number)
                self._paused_until_s = asyncio.get_running_loop().time() + pause_s
            case StartMessage():
                raise _Closing("start_repeated", "the connection has already started a subscription")


def _require_usable(subscription: Subscription | None, caller: Caller) -> Subscription:
    owner = None if caller.key is None else caller.key.id
    if subscription is None or subscription.owner != owner:
        raise _Closing("subscription_not_found", "this key has no subscription with this id")
    if subscription.type is not SubscriptionType.WEBSOCKET:
        raise _Closing("subscription_type", "the subscription is a webhook: create one of type websocket")
    if subscription.state is not SubscriptionState.ACTIVE:
        raise _Closing("subscription_inactive", f"the subscription is {subscription.state}: resume it first")
    return subscription


def _filter_for(caller: Caller, subscription: Subscription) -> EventFilter:
    """Return the subscription's filter within the signers that the key may see now."""
    wanted, allowed = subscription.wanted, caller.addresses
    if allowed is None:
        return wanted
    own = frozenset(allowed)
    return replace(wanted, addresses=own if wanted.addresses is None else own & wanted.addresses)
