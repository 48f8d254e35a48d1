"""Handing a call on to the node that owns its signer, over HTTP, with a pass.

One client stays open for all of them. Everything is bounded: connections, time, and the size of the answer. Where the
owner is comes from the table of nodes; redirects are not followed, and no proxy of the environment is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

import aiohttp
from yarl import URL

from fencepost.application.forwarding import PASS_HEADER, Answered, Asked, NoAnswer, Passes

_log = logging.getLogger(__name__)

CONNECT_WITHIN_S = 2.0
ANSWER_WITHIN_S = 10.0
MOST_ANSWER_BYTES = 32 * 1024 * 1024
MOST_CONNECTIONS = 512
IDLE_S = 3.0  # less than a server keeps an idle connection: what it has just closed is not written to

_TOLD = ("location", "retry-after")
_UNAUTHORIZED = 401
_REDIRECTS = range(300, 400)

Find = Callable[[str], Awaitable[tuple[str, UUID] | None]]


class HttpForward:
    """`find` gives a live node's URL and incarnation by its name; None is a node that can't be reached."""

    def __init__(self, passes: Passes, find: Find) -> None:
        self._passes = passes
        self._find = find
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def __call__(
        self, owner: str, asked: Asked, *, caller: str | None, hops: int, wait_s: float
    ) -> Answered | NoAnswer:
        found = await self._find(owner)
        if found is None:
            return NoAnswer.NOT_TAKEN
        url, incarnation = found
        token = self._passes.make(asked, to=incarnation, caller=caller, hops=hops)
        try:
            headers = {name: _as_it_came(value) for name, value in asked.headers.items()}
            headers |= {PASS_HEADER: token, "content-type": "application/json"}
            answered = await self._exchange(
                f"{url.rstrip('/')}{asked.target}", asked, headers, ANSWER_WITHIN_S + wait_s
            )
        # Nothing of the error is told but its kind: the client's own messages name the whole URL.
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ValueError) as error:
            _log.warning("node %s can't be reached (%s)", owner, type(error).__name__)
            return NoAnswer.NOT_TAKEN
        except (aiohttp.ClientError, OSError) as error:
            _log.warning("node %s did not answer (%s)", owner, type(error).__name__)
            return NoAnswer.UNKNOWN
        return self._judged(owner, answered)

    async def _exchange(
        self, url: str, asked: Asked, headers: dict[str, str], timeout_s: float
    ) -> Answered | None:
        """None: the answer was too large."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=IDLE_S)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        async with self._session.request(
            asked.method,
            URL(url, encoded=True),  # the digest is of the query as it came
            data=asked.body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_WITHIN_S),
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > MOST_ANSWER_BYTES:
                    return None
            told = {name: response.headers[name] for name in _TOLD if name in response.headers}
            return Answered(response.status, bytes(body), response.content_type, told)

    def _judged(self, owner: str, answered: Answered | None) -> Answered | NoAnswer:
        if answered is None:
            _log.warning("node %s answered with more than %d bytes", owner, MOST_ANSWER_BYTES)
            return NoAnswer.UNKNOWN
        if answered.status == _UNAUTHORIZED:  # the caller was let in here: it is our pass that was not
            _log.warning(
                "node %s refuses our passes: routing.secret and the clocks of all nodes must agree", owner
            )
            return NoAnswer.NOT_TAKEN
        if answered.status in _REDIRECTS or not answered.media_type.endswith("json"):
            _log.warning("what answers for node %s is no node of ours (status %d)", owner, answered.status)
            return NoAnswer.UNKNOWN
        return answered


def _as_it_came(value: str) -> str:
    """A header is read as Latin-1 and written as UTF-8: this keeps its bytes. Raises ValueError if it can't."""
    return value.encode("latin-1").decode()
