"""Run one request: authenticate, check scopes, parse, run the handler within a time limit, encode.

Every request passes through here, and every error becomes a response.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from fencepost.api.auth import LOCAL, Authenticator, Caller
from fencepost.api.context import ClientDisconnected, Operation, RequestContext, Response, StreamResponse
from fencepost.api.deadline import DeadlineExceeded, DeadlineTimer
from fencepost.api.dependencies import Dependencies
from fencepost.api.forwarding import forward_request
from fencepost.api.parsing import decode, decode_query, read_body
from fencepost.api.problems import RETRY_AFTER_S, ApiError, expected_problem, unexpected_problem
from fencepost.api.request import IncomingRequest
from fencepost.application.forwarding import FORWARD_TOKEN_HEADER
from fencepost.schemas.requests import MAX_WAIT_S

_log = logging.getLogger(__name__)

RESPONSE_TIMEOUT_S = 30.0
CLIENT_CLOSED_REQUEST = 499  # as in nginx

_encode = msgspec.json.Encoder().encode


class EncodedResponse(NamedTuple):
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


class RequestPipeline:
    """The steps of one operation, from an incoming request to an encoded response."""

    def __init__(self, operation: Operation, services: Dependencies, authenticator: Authenticator) -> None:
        self._operation = operation
        self._services = services
        self._authenticator = authenticator
        waits = not {"timeout", "wait"}.isdisjoint(operation.query.__struct_fields__)
        self._deadline = DeadlineTimer(RESPONSE_TIMEOUT_S + (MAX_WAIT_S if waits else 0))

    async def __call__(self, request: IncomingRequest) -> EncodedResponse | StreamResponse:
        try:
            if not self._operation.bounds_itself:
                return await self._deadline.run(self._respond(request))
            call = await self._deadline.run(self._build_context(request))
            return _encoded(await self._operation.handler(call))
        except ClientDisconnected:
            return EncodedResponse(CLIENT_CLOSED_REQUEST, {}, b"", None)
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a response, unforeseen ones are logged
            if self._operation.present_error is not None:
                return encode_response(self._operation.present_error(error, self._services))
            return error_response(error, self._services)

    async def _respond(self, request: IncomingRequest) -> EncodedResponse | StreamResponse:
        return _encoded(await self._operation.handler(await self._build_context(request)))

    async def _build_context(self, request: IncomingRequest) -> RequestContext:
        """Authenticate, check scopes and parse; return the context for the handler."""
        operation = self._operation
        caller = await self._admit(request)
        query = operation.query() if operation.ignores_query else decode_query(request, operation.query)
        raw = b""
        if operation.body is not None:
            raw = await read_body(request, operation.max_bytes, max_values=operation.max_values)
        if (
            caller.forward_token is not None
            and caller.forward_token.digest != forward_request(request, raw).digest
        ):
            raise ApiError("pass_refused", "the forward token is for another request")
        return RequestContext(
            request, self._services, self._authenticator, caller, query, _body(operation, raw), raw
        )

    async def _admit(self, request: IncomingRequest) -> Caller:
        operation, authenticator = self._operation, self._authenticator
        if operation.admit is not None:
            return await operation.admit(authenticator, request)
        if not operation.scopes:
            return LOCAL
        if operation.accepts_forwarded and FORWARD_TOKEN_HEADER in request.headers:
            caller = await authenticator.admit_forwarded(request)
        else:
            caller = await authenticator.admit(request)
        if caller.key is not None:
            if not operation.charges_itself:
                authenticator.charge(caller)
            caller.require(*operation.scopes)
        return caller


def _encoded(reply: Response | StreamResponse) -> EncodedResponse | StreamResponse:
    return encode_response(reply) if isinstance(reply, Response) else reply


def encode_response(reply: Response) -> EncodedResponse:
    return EncodedResponse(reply.status, reply.headers, _encode(reply.body), reply.media_type)


def _body(operation: Operation, body: bytes) -> object:
    if operation.body is None or (not body and not operation.body_needed):
        return None
    return body if operation.decodes_itself else decode(body, operation.body)


def problem_of(error: Exception, services: Dependencies) -> ApiError:
    """Return the problem for an error; unexpected errors are logged."""
    if isinstance(error, DeadlineExceeded):
        return ApiError("busy", "the request was not completed in time", retry_after_s=RETRY_AFTER_S)
    known = expected_problem(error)
    if known is not None:
        return known
    if services.node.is_database_failure(error):
        is_slow = isinstance(error, TimeoutError)
        _log.warning("the database %s (%s)", "is slow" if is_slow else "is unavailable", type(error).__name__)
        detail = "the database is slow; retry soon" if is_slow else "the database is unavailable; retry soon"
        return ApiError("database_unavailable", detail, retry_after_s=RETRY_AFTER_S)
    return unexpected_problem(error)


def error_response(error: Exception, services: Dependencies) -> EncodedResponse:
    """Return the problem response for an error; unexpected errors are logged."""
    problem = problem_of(error, services)
    body = _encode(problem.problem)
    return EncodedResponse(problem.problem.status, problem.headers, body, "application/problem+json")
