"""Yield the newest head of a chain whenever it changes.

Contract
- `watch_heads` yields the first head, then each one that differs from the last: never a backlog. A reader that was busy
  for ten blocks gets the tenth. Numbers may decrease: that is a reorg, which the reader handles.
- Heads always come from `head()`. A WebSocket only decides *when* to poll; it may fail, lie or be slow without harm.
  While it is down the head is polled every `poll_interval_s`, and the connection is retried after 0.5 s, doubling to
  30 s. While it is up but silent the head is still polled, less often.
- `block_expected` is set if a block is likely soon (a transaction was just sent): without a WebSocket the head is then
  polled at short, growing intervals, until it changes or the usual interval is reached.
- A failed `head()` is retried; its first failure, a changed reason and its recovery are logged. `on_failure` gets each error.
  The iterator ends only by cancellation or `aclose()`. Use it under `contextlib.aclosing`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
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
MAX_RETRY_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 2.0
_HEARTBEAT_S: Final = 15.0
_QUIET_POLLS: Final = 10  # with a WebSocket up, poll this many times more rarely
_MAX_MESSAGE_BYTES: Final = 1024 * 1024
_MAX_DOUBLINGS: Final = 16

_log = logging.getLogger(__name__)


class HeadSource(Protocol):
    async def head(self) -> Header: ...


async def watch_heads(
    source: HeadSource,
    *,
    poll_interval_s: float,
    ws_url: str | None = None,
    block_expected: asyncio.Event | None = None,
    on_failure: Callable[[RpcError], None] = lambda _error: None,
) -> AsyncGenerator[Header, None]:
    last: Header | None = None
    failure = ""
    block_expected = block_expected or asyncio.Event()
    async with _PollSchedule(
        poll_interval_s=poll_interval_s, ws_url=ws_url, block_expected=block_expected
    ) as schedule:
        while True:
            try:
                head = await source.head()
            except RpcError as error:
                if str(error) != failure:
                    failure = str(error)
                    _log.warning("cannot read the head of the chain, retrying: %s", failure)
                on_failure(error)
            else:
                if failure:
                    failure = ""
                    _log.warning("the head of the chain can be read again")
                if last is None or head.hash != last.hash:
                    last = head
                    schedule.stop_quick_polls()
                    yield head
            await schedule.wait()


class _PollSchedule:
    """Decide when to read the head again."""

    def __init__(self, *, poll_interval_s: float, ws_url: str | None, block_expected: asyncio.Event) -> None:
        self._poll_interval_s = poll_interval_s
        self._block_expected = block_expected
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
            await self._wait_for_notification(self._socket)
        elif self._session is not None and self._ws_url is not None and time.monotonic() >= self._retry_at_s:
            # The head is read right after the subscription, so changes before it are not missed.
            await self._subscribe(self._session, self._ws_url)
        else:
            await self._poll()

    def stop_quick_polls(self) -> None:
        self._quick_s = None

    async def _poll(self) -> None:
        if self._quick_s is not None and self._quick_s < self._poll_interval_s:
            await asyncio.sleep(self._quick_s)
            self._quick_s *= 2
            return
        self._quick_s = None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll_interval_s):
                await self._block_expected.wait()
                self._block_expected.clear()
                self._quick_s = _QUICK_FIRST_S

    async def _subscribe(self, session: aiohttp.ClientSession, ws_url: str) -> None:
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                socket = await session.ws_connect(
                    ws_url, heartbeat=_HEARTBEAT_S, max_msg_size=_MAX_MESSAGE_BYTES
                )
                self._socket = socket
                await socket.send_json(
                    {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newHeads"]}
                )
                response = _decode(await socket.receive())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            await self._close_socket(type(error).__name__)
            return
        if not isinstance(response.get("result"), str):
            await self._close_socket("the endpoint rejects the subscription to newHeads")
            return
        self._failures = 0

    async def _wait_for_notification(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            message = await socket.receive(timeout=_QUIET_POLLS * self._poll_interval_s)
        except TimeoutError:
            return  # silent but open: the heartbeat detects a broken connection
        if message.type is not aiohttp.WSMsgType.TEXT:
            await self._close_socket("closed")

    async def _close_socket(self, reason: str) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
        retry_in_s = min(RETRY_MIN_S * 2 ** min(self._failures, _MAX_DOUBLINGS), MAX_RETRY_S)
        self._failures += 1
        self._retry_at_s = time.monotonic() + retry_in_s
        _log.warning(
            "no WebSocket notifications from %s (%s): polling for heads, reconnecting in %.1f s",
            masked(self._ws_url or ""),
            reason,
            retry_in_s,
        )


def _decode(message: aiohttp.WSMessage) -> dict[str, object]:
    if message.type is not aiohttp.WSMsgType.TEXT:
        return {}
    answer: object = bounded_json.decode(message.data.encode())
    return answer if isinstance(answer, dict) else {}
