"""The short way to the calls that come by the thousand: taking a transaction, taking many, looking at one.

What they do is the same as everywhere (`answering`); what is left out is the search through the routes and the layers
between. Whatever is not exactly one of these calls goes the usual way.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from fencepost.api.answering import Answer, Answering
from fencepost.api.calls import Operation
from fencepost.api.gate import Gate
from fencepost.api.incoming import Incoming
from fencepost.api.services import Services

TAKES_ONE, TAKES_MANY, LOOKS = "submitTx", "submitBatch", "getTx"

_TX_ID_PARAM = "{tx_id}"
_TX_ID_CHARS = 36  # no other name under the same path is so long


class Direct:
    """An ASGI application in front of the one that has all the routes."""

    def __init__(self, app: ASGIApp, table: Iterable[Operation], services: Services, gate: Gate) -> None:
        named = {operation.name: operation for operation in table}
        self._app = app
        self._fixed = {
            (operation.method, operation.path): Answering(operation, services, gate)
            for operation in (named[TAKES_ONE], named[TAKES_MANY])
        }
        look = named[LOOKS]
        self._look = Answering(look, services, gate)
        self._look_method = look.method
        self._look_prefix = look.path.removesuffix(_TX_ID_PARAM)
        self._look_chars = len(self._look_prefix) + _TX_ID_CHARS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        method, path = scope["method"], scope["path"]
        answering = self._fixed.get((method, path))
        if answering is not None:
            return await send_answer(await answering(Incoming(scope, receive)), send)
        if len(path) == self._look_chars and method == self._look_method:
            prefix, tx_id = path[:-_TX_ID_CHARS], path[-_TX_ID_CHARS:]
            if prefix == self._look_prefix and "/" not in tx_id:
                return await send_answer(await self._look(Incoming(scope, receive, {"tx_id": tx_id})), send)
        return await self._app(scope, receive, send)


async def send_answer(answer: Answer, send: Send) -> None:
    headers = answer.encoded_headers()
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
