"""`AsyncClient`: walks through the steps with aiohttp, in the caller's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import aiohttp
from yarl import URL

from fencepost.client.calls import Calls
from fencepost.client.exchange import DEFAULT_URL, Exchange
from fencepost.client.steps import (
    CONNECT_WITHIN_S,
    MOST_ANSWER_BYTES,
    Answer,
    NoAnswer,
    Pages,
    Pause,
    Send,
    Steps,
    told,
)

P = ParamSpec("P")
T = TypeVar("T")

MOST_CONNECTIONS = 256
IDLE_S = 2.0  # less than servers wait before they hang up


def _awaited(
    method: Callable[Concatenate[Calls, P], Steps[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(method(self.calls, *args, **kwargs))

    return call


def _each(
    method: Callable[Concatenate[Calls, P], Pages[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        page, cursor = method(self.calls, *args, **kwargs), None
        while True:
            items, cursor = await self.run(page(cursor))
            for item in items:
                yield item
            if cursor is None:
                return

    return call


class AsyncClient:
    """As `Client`, with every call awaited. It belongs to the event loop in which it was used first."""

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        api_key: str | None = None,
        retry_for_s: float = 60.0,
        answer_within_s: float = 35.0,
    ) -> None:
        self.calls = Calls(
            Exchange.with_nodes(
                url, api_key=api_key, retry_for_s=retry_for_s, answer_within_s=answer_within_s
            )
        )
        self._session: aiohttp.ClientSession | None = None

    send = _awaited(Calls.send)
    send_many = _awaited(Calls.send_many)
    wait = _awaited(Calls.wait)
    get = _awaited(Calls.get)
    by_request = _awaited(Calls.by_request)
    by_hash = _awaited(Calls.by_hash)
    iterate = _each(Calls.iterate)
    completions = _awaited(Calls.completions)
    cancel = _awaited(Calls.cancel)
    suspend = _awaited(Calls.suspend)
    resume = _awaited(Calls.resume)
    resubmit = _awaited(Calls.resubmit)
    bump = _awaited(Calls.bump)
    signers = _each(Calls.signers)
    signer = _awaited(Calls.signer)
    pause_signer = _awaited(Calls.pause_signer)
    resume_signer = _awaited(Calls.resume_signer)
    drain_signer = _awaited(Calls.drain_signer)
    protect_signer = _awaited(Calls.protect_signer)
    unprotect_signer = _awaited(Calls.unprotect_signer)
    allocate_nonces = _awaited(Calls.allocate_nonces)
    nonce_status = _awaited(Calls.nonce_status)
    mark_submitted = _awaited(Calls.mark_submitted)
    mark_used = _awaited(Calls.mark_used)
    mark_recyclable = _awaited(Calls.mark_recyclable)
    command = _awaited(Calls.command)
    nodes = _awaited(Calls.nodes)
    version = _awaited(Calls.version)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def run(self, steps: Steps[T]) -> T:
        outcome: Answer | NoAnswer | None = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                outcome = None
            else:
                outcome = await self._exchange(step)

    async def _exchange(self, send: Send) -> Answer | NoAnswer:
        if not send.is_repeatable:
            # A kept connection may be dead without our knowing, and then nobody could tell whether the call arrived.
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                return await _ask(session, send)
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MOST_CONNECTIONS, keepalive_timeout=IDLE_S)
            self._session = aiohttp.ClientSession(connector=connector)
        return await _ask(self._session, send)


async def _ask(session: aiohttp.ClientSession, send: Send) -> Answer | NoAnswer:
    timeout = aiohttp.ClientTimeout(
        total=CONNECT_WITHIN_S + send.timeout_s, sock_connect=CONNECT_WITHIN_S, sock_read=send.timeout_s
    )
    url = URL(send.base.origin + send.target, encoded=True)
    try:
        async with session.request(
            send.method, url, data=send.body, headers=send.headers, timeout=timeout, allow_redirects=False
        ) as response:
            body = await _whole(response)
            return Answer(response.status, response.headers.get("Retry-After"), body)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        return NoAnswer(told(error), sent=False)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return NoAnswer(told(error), sent=True)


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MOST_ANSWER_BYTES:
            raise ValueError(f"the answer has more than {MOST_ANSWER_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)
