"""A call on its way: what it is (`Operation`), what came with it (`Call`), what goes back (`Reply`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast
from uuid import UUID

import msgspec

from fencepost.api.bodies import MOST_BODY_BYTES, preferred_wait_s
from fencepost.api.gate import Caller, Gate
from fencepost.api.incoming import Incoming
from fencepost.api.problems import ApiError
from fencepost.api.services import Services
from fencepost.api.wire_in import MOST_WAIT_S, NoQuery
from fencepost.application.api_keys import Scope
from fencepost.domain.ids import Address, Signer, TxHash, parse_tx_hash

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Reply(NamedTuple):
    body: msgspec.Struct | msgspec.Raw  # raw: JSON already
    status: int = 200
    headers: Mapping[str, str] = _NO_HEADERS
    media_type: str = "application/json"


class Call(NamedTuple):
    request: Incoming
    services: Services
    gate: Gate
    caller: Caller
    query: Any  # of the operation's query type
    body: Any  # of the operation's body type; bytes where it decodes by itself
    raw: bytes = b""  # the body as it came, where there is one

    @property
    def shows_nonce(self) -> bool:
        return self.services.expose_nonce or self.caller.allows(Scope.OPERATOR)

    def wait_s(self, default_s: float) -> float:
        """How long the caller wants to wait: the query, else `Prefer`, else the default."""
        asked = self.query.timeout
        if asked is None:
            asked = preferred_wait_s(self.request.headers)
        return default_s if asked is None else min(asked, float(MOST_WAIT_S))

    def path_text(self, name: str) -> str:
        return str(self.request.path_params[name])

    def tx_id(self) -> UUID:
        text = self.path_text("tx_id")
        try:
            return UUID(text)
        except ValueError:
            raise ApiError("tx_not_found", f"{text[:60]!r} is no transaction id", field="txId") from None

    def tx_hash(self) -> TxHash:
        try:
            return parse_tx_hash(self.path_text("hash"))
        except ValueError as error:
            raise ApiError("field_invalid", f"hash: {error}", field="hash") from None

    def address(self, text: str, field_name: str) -> Address:
        try:
            return self.services.parse_address(text)
        except ValueError as error:
            raise ApiError("address_invalid", f"{field_name}: {error}", field=field_name) from None

    def chain_id(self, asked: int | None) -> int:
        if asked is None:
            return self.services.default_chain_id
        if asked not in self.services.chains:
            known = ", ".join(str(chain_id) for chain_id in sorted(self.services.chains))
            raise ApiError(
                "chain_unknown", f"chainId: {asked} is not served here, {known} is", field="chainId"
            )
        return asked

    def signer(self, text: str, chain_id: int | None, field_name: str) -> Signer:
        chain_id = self.services.default_chain_id if chain_id is None else self.chain_id(chain_id)
        return Signer(chain_id, self.address(text, field_name))

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something slow, but not for a caller that hung up."""
        failures: list[Exception] = []

        async def guarded() -> T | None:
            try:
                return await work
            except Exception as error:  # noqa: BLE001 - raised again below, outside of the group
                failures.append(error)
                return None

        async with asyncio.TaskGroup() as group:
            task = group.create_task(guarded())
            watch = group.create_task(self._cancel_when_gone(task))
            task.add_done_callback(lambda _: watch.cancel())
        if task.cancelled():
            raise ClientGone
        if failures:
            raise failures[0]
        return cast("T", task.result())

    async def _cancel_when_gone(self, task: asyncio.Task[Any]) -> None:
        while not await self.request.is_disconnected():  # noqa: ASYNC110 - there is no event for it, only this question
            await asyncio.sleep(GONE_POLL_S)
        task.cancel()


GONE_POLL_S = 0.5

Handler = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the API: routes, checks and the OpenAPI document all come from it."""

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    answers: Mapping[int, type[msgspec.Struct]]
    group: str
    scopes: tuple[Scope, ...] = ()  # any of them; none: open to everybody
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | None = None
    body_needed: bool = True
    most_bytes: int = MOST_BODY_BYTES
    decodes_itself: bool = False
    charges_itself: bool = False
    takes_handed_on: bool = False  # from another node, with a pass
    problems: tuple[str, ...] = ()
