"""Wrap an ASGI request with little overhead.

Query and disconnect state are evaluated on demand: most requests only need a few headers and the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.types import Receive, Scope

_NO_PARAMS: Mapping[str, Any] = MappingProxyType({})


class IncomingRequest:
    """An ASGI request. `headers` has lower-case names, and the first value of a repeated header."""

    __slots__ = ("_watched", "headers", "method", "path_params", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive, path_params: Mapping[str, Any] = _NO_PARAMS) -> None:
        self.scope = scope
        self.receive = receive
        self.method: str = scope["method"]
        self.path_params = path_params
        self.headers: dict[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])
        }
        self._watched: Request | None = None

    @property
    def query_params(self) -> QueryParams:
        return QueryParams(self.scope["query_string"])

    async def is_disconnected(self) -> bool:
        """Return whether the client has disconnected; call it only after the body has been read."""
        if self._watched is None:
            self._watched = Request(self.scope, self.receive)
        return await self._watched.is_disconnected()
