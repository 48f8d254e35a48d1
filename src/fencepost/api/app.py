"""The application: every operation at its path, and the answers for paths and methods that are none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fencepost.api.answering import Answer, Answering, told
from fencepost.api.at_once import AtOnce
from fencepost.api.calls import Operation
from fencepost.api.direct import Direct
from fencepost.api.docs_page import render
from fencepost.api.gate import Gate
from fencepost.api.incoming import Incoming
from fencepost.api.jsonrpc import rpc_routes
from fencepost.api.metrics import metrics_route
from fencepost.api.openapi import document
from fencepost.api.operations import operations
from fencepost.api.problems import ApiError
from fencepost.api.services import Services
from fencepost.api.stopping import Stoppable


def create_app(services: Services) -> ASGIApp:
    table = operations()
    gate = Gate(services.keys, services.host, services.node.incarnation, services.passes)

    def is_stopping() -> bool:
        return services.waiting.is_stopped

    direct = Direct(routed(table, services, gate), table, services, gate)
    return Stoppable(direct, is_stopping, AtOnce(table, services, gate, is_stopping))


def routed(table: Sequence[Operation], services: Services, gate: Gate) -> Starlette:
    """Everything there is, by its route."""
    described = document(table, version=services.node.version)
    described_json, page = msgspec.json.encode(described), render(described)

    async def openapi(_request: Request) -> Response:
        return Response(described_json, media_type="application/json")

    async def docs(_request: Request) -> Response:
        policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return HTMLResponse(page, headers=policy)

    by_path: dict[str, dict[str, Answering]] = defaultdict(dict)
    for operation in table:
        by_path[operation.path][operation.method] = Answering(operation, services, gate)
    routes = [
        Route(path, _endpoint(by_method), methods=sorted(by_method)) for path, by_method in by_path.items()
    ]
    routes += [
        metrics_route(services.metrics),
        Route("/openapi.json", openapi),
        Route("/docs", docs),
        *rpc_routes(services, gate),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _not_routed})


def _endpoint(by_method: Mapping[str, Answering]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        answering = by_method["GET" if request.method == "HEAD" else request.method]
        return _response(await answering(Incoming(request.scope, request.receive, request.path_params)))

    return endpoint


def _response(answer: Answer) -> Response:
    return Response(
        answer.body,
        status_code=answer.status,
        headers=dict(answer.headers),
        media_type=answer.media_type,
    )


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for those
    if error.status_code == 405:  # noqa: PLR2004 - Method Not Allowed
        problem = ApiError("method_not_allowed", f"{request.method} is not for {request.url.path[:200]}")
        return _response(told(problem, error.headers))
    return _response(told(ApiError("not_found", f"{request.url.path[:200]} is not here")))
