"""How a call of the REST API goes through, whichever way it was routed, and every way out is an answer or a problem.

who is it → may it → is it well-formed → the handler, within a bounded time → JSON
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import NamedTuple

import msgspec

from fencepost.api.bodies import decode, decode_query, read_body
from fencepost.api.calls import Call, ClientGone, Operation, Reply
from fencepost.api.elsewhere import asked_of
from fencepost.api.gate import LOCAL, Gate
from fencepost.api.incoming import Incoming
from fencepost.api.problems import RETRY_AFTER_S, ApiError, foreseen, unforeseen
from fencepost.api.services import Services
from fencepost.api.time_bound import OutOfTime, TimeBound
from fencepost.api.wire_in import MOST_WAIT_S
from fencepost.application.forwarding import PASS_HEADER

_log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 30.0
NOBODY_LISTENS = 499

_encode = msgspec.json.Encoder().encode


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    media_type: str | None

    def encoded_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()
        ]
        if self.media_type is not None:
            headers.append((b"content-type", self.media_type.encode("latin-1")))
        return headers


class Answering:
    """One operation, ready to be called."""

    def __init__(self, operation: Operation, services: Services, gate: Gate) -> None:
        self._operation = operation
        self._services = services
        self._gate = gate
        waits = "timeout" in operation.query.__struct_fields__
        self.bound = TimeBound(ANSWER_WITHIN_S + (MOST_WAIT_S if waits else 0))

    async def __call__(self, request: Incoming) -> Answer:
        return await self.within_bounds(self._answer(request))

    async def within_bounds(self, work: Awaitable[Answer]) -> Answer:
        try:
            return await self.bound.run(work)
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a problem, unforeseen ones are logged
            return self.answer_to(error)

    def answer_to(self, error: Exception) -> Answer:
        match error:
            case ClientGone():
                return Answer(NOBODY_LISTENS, {}, b"", None)
            case OutOfTime():
                return told(ApiError("busy", "no answer in time", retry_after_s=RETRY_AFTER_S))
            case _:
                return told(_problem(error, self._services))

    async def _answer(self, request: Incoming) -> Answer:
        return await self.handled(await self.call(request))

    async def handled(self, call: Call) -> Answer:
        return answered(await self._operation.handler(call))

    async def call(self, request: Incoming) -> Call:
        """Who asks for what, once that is known to be allowed and well-formed."""
        operation = self._operation
        caller = LOCAL
        if operation.scopes:
            handed_on = operation.takes_handed_on and PASS_HEADER in request.headers
            caller = await (self._gate.admit_handed_on(request) if handed_on else self._gate.admit(request))
            if caller.key is not None:
                if not operation.charges_itself:
                    self._gate.charge(caller)
                caller.require(*operation.scopes)
        query = decode_query(request, operation.query)
        raw = b"" if operation.body is None else await read_body(request, operation.most_bytes)
        if caller.came_with is not None and caller.came_with.digest != asked_of(request, raw).digest:
            raise ApiError("pass_refused", "it is for another call")
        return Call(request, self._services, self._gate, caller, query, _body(operation, raw), raw)


def answered(reply: Reply) -> Answer:
    return Answer(reply.status, reply.headers, _encode(reply.body), reply.media_type)


def _body(operation: Operation, body: bytes) -> object:
    if operation.body is None or (not body and not operation.body_needed):
        return None
    return body if operation.decodes_itself else decode(body, operation.body)


def _problem(error: Exception, services: Services) -> ApiError:
    known = foreseen(error)
    if known is not None:
        return known
    if services.is_database_failure(error):
        _log.warning("the database does not answer (%s)", type(error).__name__)
        return ApiError("database_unavailable", "try again soon", retry_after_s=RETRY_AFTER_S)
    return unforeseen(error)


def told(error: ApiError, more_headers: Mapping[str, str] | None = None) -> Answer:
    """A problem as the caller gets it."""
    headers = {**error.headers, **(more_headers or {})}
    return Answer(error.problem.status, headers, _encode(error.problem), "application/problem+json")
