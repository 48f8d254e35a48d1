"""`GET /metrics`: the figures of this node, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH = "/metrics"
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_route(render: Callable[[], bytes]) -> Route:
    async def metrics(_request: Request) -> Response:
        return Response(render(), media_type=MEDIA_TYPE)

    return Route(PATH, metrics, methods=["GET"])
