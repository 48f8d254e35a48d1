"""The newest head of the chain, as it changes.

Contract
- `watch_heads` yields the head it finds first and then each that differs from the last one: never a backlog. A reader
  that was busy for ten blocks gets the tenth. Numbers may go down: that is a reorg, and the reader's business.
- What is yielded always comes from `head()`. A WebSocket, where one is configured, only says *when* to ask; it may die,
  lie or be slow without harm. While it is down the head is polled every `poll_interval_s`, and the connection is tried
  again after 0.5 s, doubling to 30 s. While it is up but silent the head is polled all the same, if seldom.
- A set `nudge` says that a block is likely soon (something was just sent): without a WebSocket the head is then asked
  for at short, growing intervals, until it changes or the usual interval is reached.
- A failed `head()` is asked again; why is logged when it begins or changes, and so is its end. The iterator ends only by
  cancellation or `aclose()`. Use it under `contextlib.aclosing`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self

import aiohttp

from fencepost import bounded_json
from fencepost.adapters.evm.rpc import masked
from fencepost.application.ports import Header
from fencepost.errors import RpcError

_QUICK_FIRST_S: Final = 0.02
RETRY_MIN_S: Final = 0.5
RETRY_MAX_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 2.0
_HEARTBEAT_S: Final = 15.0
_QUIET_POLLS: Final = 10  # with a WebSocket up, poll this many times more rarely
_MESSAGE_BYTES_MAX: Final = 1024 * 1024
_DOUBLINGS_MAX: Final = 16

_log = logging.getLogger(__name__)


class HeadSource(Protocol):
    async def head(self) -> Header: ...


async def watch_heads(
    source: HeadSource,
    *,
    poll_interval_s: float,
    ws_url: str | None = None,
    nudge: asyncio.Event | None = None,
) -> AsyncGenerator[Header, None]:
    last: Header | None = None
    why_unknown = ""
    nudge = nudge or asyncio.Event()
    async with _Hints(poll_interval_s=poll_interval_s, ws_url=ws_url, nudge=nudge) as hints:
        while True:
            try:
                head = await source.head()
            except RpcError as error:
                if str(error) != why_unknown:
                    why_unknown = str(error)
                    _log.warning("the head is unknown: %s", why_unknown)
            else:
                if why_unknown:
                    why_unknown = ""
                    _log.warning("the head is known again")
                if last is None or head.hash != last.hash:
                    last = head
                    hints.calm_down()
                    yield head
            await hints.wait()


class _Hints:
    """When to ask for the head again."""

    def __init__(self, *, poll_interval_s: float, ws_url: str | None, nudge: asyncio.Event) -> None:
        self._poll_interval_s = poll_interval_s
        self._nudge = nudge
        self._quick_s: float | None = None  # the next short interval, while a block is expected
        self._ws_url = ws_url
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._failures = 0
        self._retry_at_s = 0.0

    async def __aenter__(self) -> Self:
        if self._ws_url is not None:
            self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            await self._socket.close()
        if self._session is not None:
            await self._session.close()

    async def wait(self) -> None:
        if self._socket is not None:
            await self._notified(self._socket)
        elif self._session is not None and self._ws_url is not None and time.monotonic() >= self._retry_at_s:
            # Whatever happened while there was no subscription is found by asking right after it.
            await self._subscribe(self._session, self._ws_url)
        else:
            await self._poll()

    def calm_down(self) -> None:
        self._quick_s = None

    async def _poll(self) -> None:
        if self._quick_s is not None and self._quick_s < self._poll_interval_s:
            await asyncio.sleep(self._quick_s)
            self._quick_s *= 2
            return
        self._quick_s = None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll_interval_s):
                await self._nudge.wait()
                self._nudge.clear()
                self._quick_s = _QUICK_FIRST_S

    async def _subscribe(self, session: aiohttp.ClientSession, ws_url: str) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                socket = await session.ws_connect(
                    ws_url, heartbeat=_HEARTBEAT_S, max_msg_size=_MESSAGE_BYTES_MAX
                )
                self._socket = socket
                await socket.send_json(
                    {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
                )
                granted = _decoded(await socket.receive())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            await self._lost(type(error).__name__)
            return
        if not isinstance(granted.get("result"), str):
            await self._lost("the node grants no subscription to newHeads")
            return
        self._failures = 0

    async def _notified(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            message = await socket.receive(timeout=_QUIET_POLLS * self._poll_interval_s)
        except TimeoutError:
            return  # silent, not broken: the heartbeat would have noticed
        if message.type is not aiohttp.WSMsgType.TEXT:
            await self._lost("closed")

    async def _lost(self, why: str) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        retry_in_s = min(RETRY_MIN_S * 2 ** min(self._failures, _DOUBLINGS_MAX), RETRY_MAX_S)
        self._failures += 1
        self._retry_at_s = time.monotonic() + retry_in_s
        _log.warning(
            "no new heads from %s (%s): polling, next try in %.1f s",
            masked(self._ws_url or ""),
            why,
            retry_in_s,
        )


def _decoded(message: aiohttp.WSMessage) -> dict[str, object]:
    if message.type is not aiohttp.WSMsgType.TEXT:
        return {}
    answer: object = bounded_json.decode(message.data.encode())
    return answer if isinstance(answer, dict) else {}
