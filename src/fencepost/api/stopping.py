"""Nobody is cut off when a node stops: a call that the server gives up is answered with a problem that says why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from fencepost.api.problems import foreseen
from fencepost.errors import Stopping
from fencepost.exchange import Offer

UNKNOWN = "this node is stopping; what came of the call is not known"


class Stoppable:
    """An ASGI application whose calls may be cancelled while the node stops."""

    def __init__(self, app: ASGIApp, is_stopping: Callable[[], bool], begin: Offer | None = None) -> None:
        self.begin = begin
        self._app = app
        self._is_stopping = is_stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or scope["type"] != "http" or not self._is_stopping():
                raise
            task.uncancel()
            with suppress(RuntimeError):  # it had begun to answer
                await _send_refusal(send)


async def _send_refusal(send: Send) -> None:
    refusal = foreseen(Stopping(UNKNOWN))
    assert refusal is not None  # noqa: S101 - the table has it
    body = msgspec.json.encode(refusal.problem)
    headers = {
        "content-type": "application/problem+json",
        "content-length": str(len(body)),
        **refusal.headers,
    }
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.problem.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
