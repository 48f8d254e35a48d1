"""Build the ASGI application: one router for REST, /rpc, /metrics, /docs and /openapi.json, one pipeline per operation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.types import Receive, Scope, Send

from fencepost.api.auth import Authenticator
from fencepost.api.context import Operation, RequestContext, Response, StreamResponse
from fencepost.api.dependencies import Dependencies
from fencepost.api.docs_page import render
from fencepost.api.event_socket import serve_event_socket
from fencepost.api.jsonrpc.endpoint import rpc_operations
from fencepost.api.openapi import document
from fencepost.api.operations import operations
from fencepost.api.pipeline import EncodedResponse, RequestPipeline, error_response
from fencepost.api.request import IncomingRequest
from fencepost.api.router import Router
from fencepost.api.streaming import send_stream
from fencepost.errors import Stopping

METRICS_PATH = "/metrics"
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUTCOME_UNKNOWN = "this node is stopping; the outcome of the request is unknown"


def create_app(services: Dependencies) -> Api:
    return Api([*operations(), *rpc_operations(), *page_operations(services)], services)


class Api:
    """The ASGI application: find the operation of a request, run its pipeline, send the response."""

    def __init__(self, table: Sequence[Operation], services: Dependencies) -> None:
        self._services = services
        self._router = Router()
        authenticator = self._authenticator = build_authenticator(services)
        for operation in table:
            pipeline = RequestPipeline(operation, services, authenticator)
            self._router.add(operation.method, operation.path, pipeline)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await serve_event_socket(self._services, self._authenticator, scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"the API does not serve {scope['type']}")
        try:
            response = await self._respond(scope, receive)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not self._services.tx_waiter.is_stopped:
                raise
            task.uncancel()  # the server cancels requests that are still running when its time to stop is over
            response = error_response(Stopping(OUTCOME_UNKNOWN), self._services)
        if isinstance(response, StreamResponse):
            await send_stream(response, scope, receive, send)
            return
        headers = response.encoded_headers()
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": response.body})

    async def _respond(self, scope: Scope, receive: Receive) -> EncodedResponse | StreamResponse:
        try:
            endpoint, path_params = self._router.find(scope["method"], scope["path"])
        except Exception as error:  # noqa: BLE001 - the edge: every error becomes a problem
            return error_response(error, self._services)
        return await endpoint(IncomingRequest(scope, receive, path_params))


def build_authenticator(services: Dependencies) -> Authenticator:
    return Authenticator(
        services.keys,
        services.settings.host,
        services.node.incarnation,
        services.cluster.forward_tokens,
        auth=services.settings.auth,
        max_waits_per_key=services.settings.max_waits_per_key,
        max_streams_per_key=services.settings.max_streams_per_key,
    )


def page_operations(services: Dependencies) -> list[Operation]:
    """List the operations that are not in the OpenAPI document: the document itself, /docs and /metrics."""
    openapi = document(operations(), version=services.node.version)
    openapi_response = Response(msgspec.Raw(msgspec.json.encode(openapi)))
    docs_response = Response(
        msgspec.Raw(render(openapi).encode()),
        headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"},
        media_type="text/html; charset=utf-8",
    )

    async def metrics(call: RequestContext) -> Response:
        return Response(msgspec.Raw(call.services.node.metrics()), media_type=METRICS_MEDIA_TYPE)

    async def fixed(response: Response, _call: RequestContext) -> Response:
        return response

    page = partial(Operation, "GET", answers={}, group="Node", ignores_query=True)
    return [
        page("/openapi.json", "openapi", "Get the OpenAPI document.", partial(fixed, openapi_response)),
        page("/docs", "docs", "Read the API reference.", partial(fixed, docs_response)),
        page(METRICS_PATH, "metrics", "Get the metrics.", metrics, admit=Authenticator.admit_metrics),
    ]
