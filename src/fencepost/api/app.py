"""The application: every call goes the same way, and every way out is an answer or a problem.

who is it → may it → is it well-formed → the handler, within a bounded time → JSON
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from fencepost.api.bodies import decode, decode_query, read_body
from fencepost.api.calls import Call, ClientGone, Operation
from fencepost.api.docs_page import render
from fencepost.api.elsewhere import asked_of
from fencepost.api.gate import Caller, Gate
from fencepost.api.jsonrpc import rpc_routes
from fencepost.api.metrics import metrics_route
from fencepost.api.openapi import document
from fencepost.api.operations import operations
from fencepost.api.problems import RETRY_AFTER_S, ApiError, foreseen, unforeseen
from fencepost.api.services import Services
from fencepost.api.wire_in import MOST_WAIT_S
from fencepost.application.forwarding import PASS_HEADER

_log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 30.0
NOBODY_LISTENS = 499

_encoder = msgspec.json.Encoder()


def create_app(services: Services) -> Starlette:
    table = operations()
    gate = Gate(services.keys, services.host, services.node.incarnation, services.passes)
    described = document(table, version=services.node.version)
    described_json, page = _encoder.encode(described), render(described)

    async def openapi(_request: Request) -> Response:
        return Response(described_json, media_type="application/json")

    async def docs(_request: Request) -> Response:
        policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(page, headers=policy)

    by_path: dict[str, dict[str, Operation]] = defaultdict(dict)
    for operation in table:
        by_path[operation.path][operation.method] = operation
    routes = [
        Route(path, _endpoint(by_method, services, gate), methods=sorted(by_method))
        for path, by_method in by_path.items()
    ]
    routes += [
        metrics_route(services.metrics),
        Route("/openapi.json", openapi),
        Route("/docs", docs),
        *rpc_routes(services, gate),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _not_routed})


def _endpoint(
    by_method: Mapping[str, Operation], services: Services, gate: Gate
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        operation = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            return await _answer(operation, request, services, gate)
        except ClientGone:
            return Response(status_code=NOBODY_LISTENS)
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a problem, unforeseen ones are logged
            return problem_response(_problem(error, services))

    return endpoint


async def _answer(operation: Operation, request: Request, services: Services, gate: Gate) -> Response:
    waits = "timeout" in operation.query.__struct_fields__
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S + (MOST_WAIT_S if waits else 0)) as bound:
            caller = Caller(None)
            if operation.scopes:
                handed_on = operation.takes_handed_on and PASS_HEADER in request.headers
                caller = await (gate.admit_handed_on(request) if handed_on else gate.admit(request))
                if not operation.charges_itself:
                    gate.charge(caller)
                caller.require(*operation.scopes)
            query = decode_query(request.query_params, operation.query)
            raw = b"" if operation.body is None else await read_body(request, most_bytes=operation.most_bytes)
            if caller.came_with is not None and caller.came_with.digest != asked_of(request, raw).digest:
                raise ApiError("pass_refused", "it is for another call")
            call = Call(
                request=request,
                services=services,
                gate=gate,
                caller=caller,
                query=query,
                body=_body(operation, raw),
                raw=raw,
            )
            reply = await operation.handler(call)
    except TimeoutError:
        if bound.expired():
            raise ApiError("busy", "no answer in time", retry_after_s=RETRY_AFTER_S) from None
        raise
    return Response(
        _encoder.encode(reply.body),
        status_code=reply.status,
        headers=dict(reply.headers),
        media_type=reply.media_type,
    )


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


def problem_response(error: ApiError, more_headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        _encoder.encode(error.problem),
        status_code=error.problem.status,
        headers={**error.headers, **(more_headers or {})},
        media_type="application/problem+json",
    )


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for those
    if error.status_code == 405:  # noqa: PLR2004 - Method Not Allowed
        problem = ApiError("method_not_allowed", f"{request.method} is not for {request.url.path[:200]}")
        return problem_response(problem, error.headers)
    return problem_response(ApiError("not_found", f"{request.url.path[:200]} is not here"))
