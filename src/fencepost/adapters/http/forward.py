"""Forward a request over HTTP to the node that holds the signer's lease, with a forward token.

One HTTP client serves all requests. Connections, time and response size are bounded. The holder's URL comes from the
table of nodes; redirects are not followed, and proxies of the environment are not used.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

import aiohttp
from yarl import URL

from fencepost.application.forwarding import (
    FORWARD_TOKEN_HEADER,
    ForwardRequest,
    ForwardResponse,
    ForwardTokens,
    NoForwardResponse,
)

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
RESPONSE_TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
MAX_CONNECTIONS = 512
MAX_IDLE_S = 3.0  # less than a server keeps an idle connection, so that no request goes to a closed one

_RESPONSE_HEADERS = ("location", "retry-after")
_UNAUTHORIZED = 401
_REDIRECTS = range(300, 400)

FindNode = Callable[[str], Awaitable[tuple[str, UUID] | None]]


class HttpForward:
    """Forward requests. `find_node` returns a live node's URL and incarnation by its name, or None if it has no API."""

    def __init__(self, tokens: ForwardTokens, find_node: FindNode) -> None:
        self._tokens = tokens
        self._find_node = find_node
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(
        self, owner: str, request: ForwardRequest, *, caller: str | None, hops: int, wait_s: float
    ) -> ForwardResponse | NoForwardResponse:
        node = await self._find_node(owner)
        if node is None:
            return NoForwardResponse.NOT_EXECUTED
        url, incarnation = node
        token = self._tokens.make(request, to=incarnation, caller=caller, hops=hops)
        try:
            headers = {name: _reencode_header(value) for name, value in request.headers.items()}
            headers |= {FORWARD_TOKEN_HEADER: token, "content-type": "application/json"}
            response = await self._exchange(
                f"{url.rstrip('/')}{request.target}", request, headers, RESPONSE_TIMEOUT_S + wait_s
            )
        # Report only the type of the error: the HTTP client's messages contain the whole URL.
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError) as error:
            _log.warning("cannot connect to node %s (%s)", owner, type(error).__name__)
            return NoForwardResponse.NOT_EXECUTED
        except (aiohttp.ClientError, OSError) as error:
            _log.warning("node %s did not respond (%s)", owner, type(error).__name__)
            return NoForwardResponse.UNKNOWN
        return self._check_response(owner, response)

    async def _exchange(
        self, url: str, request: ForwardRequest, headers: dict[str, str], timeout_s: float
    ) -> ForwardResponse | None:
        """Send the request; return None if the response is too large."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=MAX_IDLE_S)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        async with self._session.request(
            request.method,
            URL(url, encoded=True),  # the digest covers the query as received
            data=request.body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S),
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MAX_RESPONSE_BYTES:
                    return None
            kept_headers = {
                name: response.headers[name] for name in _RESPONSE_HEADERS if name in response.headers
            }
            return ForwardResponse(response.status, bytes(body), response.content_type, kept_headers)

    def _check_response(
        self, owner: str, response: ForwardResponse | None
    ) -> ForwardResponse | NoForwardResponse:
        if response is None:
            _log.warning("the response of node %s exceeds %d bytes", owner, MAX_RESPONSE_BYTES)
            return NoForwardResponse.UNKNOWN
        if (
            response.status == _UNAUTHORIZED
        ):  # this node admitted the caller, so the forward token was rejected
            _log.warning(
                "node %s rejected the forward token: routing.secret and the clocks must be the same on all nodes",
                owner,
            )
            return NoForwardResponse.NOT_EXECUTED
        if response.status in _REDIRECTS or not response.media_type.endswith("json"):
            _log.warning(
                "the URL of node %s does not lead to a Fencepost node (status %d): check node.url there",
                owner,
                response.status,
            )
            return NoForwardResponse.UNKNOWN
        return response


def _reencode_header(value: str) -> str:
    """Convert a header, read as Latin-1, so that writing it as UTF-8 keeps its bytes; raise ValueError if it can't."""
    return value.encode("latin-1").decode()
