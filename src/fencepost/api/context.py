"""Define what handlers work with: `Operation`, `RequestContext`, `Response` and `StreamResponse`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

import msgspec

from fencepost.api.auth import Authenticator, Caller
from fencepost.api.dependencies import Dependencies
from fencepost.api.parsing import MAX_BODY_BYTES, MAX_VALUES, preferred_wait_s
from fencepost.api.problems import ApiError
from fencepost.api.request import IncomingRequest
from fencepost.application.api_keys import Scope
from fencepost.domain.ids import Address, Signer, TxHash, parse_tx_hash
from fencepost.schemas.requests import MAX_WAIT_S, NoQuery

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client has disconnected before the response."""


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Response(NamedTuple):
    body: msgspec.Struct | msgspec.Raw  # Raw: already encoded
    status: int = 200
    headers: Mapping[str, str] = _NO_HEADERS
    media_type: str | None = "application/json"


class StreamResponse(NamedTuple):
    """Send a response in parts, until they end or the client disconnects; then call `on_end`, in any case."""

    parts: AsyncGenerator[bytes, None]
    on_end: Callable[[], object]
    headers: Mapping[str, str]
    media_type: str


class RequestContext(NamedTuple):
    request: IncomingRequest
    services: Dependencies
    authenticator: Authenticator
    caller: Caller
    query: Any  # of the operation's query type
    body: Any  # of the operation's body type; bytes if the operation decodes it itself
    raw: bytes = b""  # the body as received; empty if the operation has none

    @property
    def shows_nonce(self) -> bool:
        """Return whether this caller sees nonces: every caller if they are exposed, else keys with the scope operator."""
        is_operator = self.caller.key is not None and self.caller.allows(Scope.OPERATOR)
        return self.services.settings.expose_nonce or is_operator

    def wait_s(self, default_s: float) -> float:
        """Return how long the caller wants to wait: from the query, else from `Prefer`, else the default."""
        requested = self.query.timeout
        if requested is None:
            requested = preferred_wait_s(self.request.headers)
        return default_s if requested is None else min(requested, float(MAX_WAIT_S))

    def path_text(self, name: str) -> str:
        return str(self.request.path_params[name])

    def tx_id(self) -> UUID:
        text = self.path_text("tx_id")
        try:
            return UUID(text)
        except ValueError:
            raise ApiError("tx_not_found", f"{text[:60]!r} is not a transaction id", field="txId") from None

    def tx_hash(self) -> TxHash:
        try:
            return parse_tx_hash(self.path_text("hash"))
        except ValueError as error:
            raise ApiError("field_invalid", f"hash: {error}", field="hash") from None

    def address(self, text: str, field_name: str) -> Address:
        try:
            return self.services.codec.parse_address(text)
        except ValueError as error:
            raise ApiError("address_invalid", f"{field_name}: {error}", field=field_name) from None

    def chain_id(self, requested: int | None) -> int:
        if requested is None:
            return self.services.chains.default_id
        if requested not in self.services.chains.by_id:
            known = ", ".join(str(chain_id) for chain_id in sorted(self.services.chains.by_id))
            raise ApiError(
                "chain_unknown",
                f"chainId: {requested} is not configured; this node serves {known}",
                field="chainId",
            )
        return requested

    def signer(self, text: str, chain_id: int | None, field_name: str) -> Signer:
        chain_id = self.services.chains.default_id if chain_id is None else self.chain_id(chain_id)
        return Signer(chain_id, self.address(text, field_name))

    async def cancel_on_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for slow work, and cancel it when the client disconnects; then raise `ClientDisconnected`."""
        failures: list[Exception] = []

        async def guarded() -> T | None:
            try:
                return await work
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
                failures.append(error)
                return None

        async with asyncio.TaskGroup() as group:
            task = group.create_task(guarded())
            watcher = group.create_task(self._cancel_after_disconnect(task))
            task.add_done_callback(lambda _: watcher.cancel())
        if task.cancelled():
            raise ClientDisconnected
        if failures:
            raise failures[0]
        return cast("T", task.result())

    async def _cancel_after_disconnect(self, task: asyncio.Task[Any]) -> None:
        while not await self.request.is_disconnected():  # noqa: ASYNC110 - ASGI has no event for it
            await asyncio.sleep(DISCONNECT_POLL_S)
        task.cancel()


DISCONNECT_POLL_S = 0.5

Handler = Callable[[RequestContext], Awaitable[Response]]
StreamHandler = Callable[[RequestContext], Awaitable[StreamResponse]]
Admit = Callable[[Authenticator, IncomingRequest], Awaitable[Caller]]
PresentError = Callable[[Exception, Dependencies], Response]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the API. Routes, checks and the OpenAPI document are built from it."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler | StreamHandler
    answers: Mapping[int, type[msgspec.Struct]]
    group: str
    scopes: tuple[Scope, ...] = ()  # one of them is enough; empty: no authentication
    admit: Admit | None = None  # authenticates and checks scopes in place of `scopes`
    query: type[msgspec.Struct] = NoQuery
    ignores_query: bool = False  # unknown parameters are no error
    body: type[msgspec.Struct] | None = None
    body_needed: bool = True
    max_bytes: int = MAX_BODY_BYTES
    max_values: int = MAX_VALUES
    decodes_itself: bool = False  # the handler decodes the body
    charges_itself: bool = False  # the handler takes tokens from the rate limit
    bounds_itself: bool = False  # the handler bounds its own time
    present_error: PresentError | None = None  # in place of a problem
    accepts_forwarded: bool = False  # from another node, with a forward token
    problems: tuple[str, ...] = ()
    media_type: str = "application/json"  # of its successful response
