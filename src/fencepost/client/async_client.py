"""Run API calls with aiohttp, in the caller's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import aiohttp
from yarl import URL

from fencepost.client.endpoints import Endpoints
from fencepost.client.protocol import (
    CONNECT_TIMEOUT_S,
    MAX_RESPONSE_BYTES,
    HttpRequest,
    NodeResponse,
    NoResponse,
    Pages,
    Pause,
    Steps,
    describe,
)
from fencepost.client.retry import DEFAULT_URL, RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")

MAX_CONNECTIONS = 256
MAX_IDLE_S = 2.0  # shorter than the keep-alive time of servers


def _async(
    method: Callable[Concatenate[Endpoints, P], Steps[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(method(self.endpoints, *args, **kwargs))

    return call


def _paged(
    method: Callable[Concatenate[Endpoints, P], Pages[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    @wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        page, cursor = method(self.endpoints, *args, **kwargs), None
        while True:
            items, cursor = await self.run(page(cursor))
            for item in items:
                yield item
            if cursor is None:
                return

    return call


class AsyncClient:
    """Call nodes like `Client`, with every method awaited. An instance belongs to the event loop of its first call."""

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        api_key: str | None = None,
        retry_for_s: float = 60.0,
        response_timeout_s: float = 35.0,
    ) -> None:
        """Take the same arguments as `Client`."""
        self.endpoints = Endpoints(
            RetryPolicy.with_nodes(
                url, api_key=api_key, retry_for_s=retry_for_s, response_timeout_s=response_timeout_s
            )
        )
        self._session: aiohttp.ClientSession | None = None

    send = _async(Endpoints.send)
    send_many = _async(Endpoints.send_many)
    wait = _async(Endpoints.wait)
    get = _async(Endpoints.get)
    by_request = _async(Endpoints.by_request)
    by_hash = _async(Endpoints.by_hash)
    explain = _async(Endpoints.explain)
    explain_signer = _async(Endpoints.explain_signer)
    status = _async(Endpoints.status)
    iterate = _paged(Endpoints.iterate)
    events = _paged(Endpoints.events)
    completions = _async(Endpoints.completions)
    cancel = _async(Endpoints.cancel)
    suspend = _async(Endpoints.suspend)
    resume = _async(Endpoints.resume)
    resubmit = _async(Endpoints.resubmit)
    bump = _async(Endpoints.bump)
    signers = _paged(Endpoints.signers)
    signer = _async(Endpoints.signer)
    pause_signer = _async(Endpoints.pause_signer)
    resume_signer = _async(Endpoints.resume_signer)
    drain_signer = _async(Endpoints.drain_signer)
    protect_signer = _async(Endpoints.protect_signer)
    unprotect_signer = _async(Endpoints.unprotect_signer)
    create_subscription = _async(Endpoints.create_subscription)
    subscriptions = _async(Endpoints.subscriptions)
    subscription = _async(Endpoints.subscription)
    pause_subscription = _async(Endpoints.pause_subscription)
    resume_subscription = _async(Endpoints.resume_subscription)
    delete_subscription = _async(Endpoints.delete_subscription)
    rotate_secret = _async(Endpoints.rotate_secret)
    test_subscription = _async(Endpoints.test_subscription)
    replay = _async(Endpoints.replay)
    attempts = _async(Endpoints.attempts)
    allocate_nonces = _async(Endpoints.allocate_nonces)
    nonce_status = _async(Endpoints.nonce_status)
    mark_submitted = _async(Endpoints.mark_submitted)
    mark_used = _async(Endpoints.mark_used)
    mark_recyclable = _async(Endpoints.mark_recyclable)
    command = _async(Endpoints.command)
    withdraw_command = _async(Endpoints.withdraw_command)
    nodes = _async(Endpoints.nodes)
    chain_fees = _async(Endpoints.chain_fees)
    version = _async(Endpoints.version)

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> Self:
        """Return the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.aclose()

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps of one call and return its result."""
        outcome: NodeResponse | NoResponse | None = None
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
                outcome = await self._request(step)

    async def _request(self, request: HttpRequest) -> NodeResponse | NoResponse:
        if not request.is_repeatable:
            # A reused connection may be dead; the client could then not know whether the call arrived.
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                return await _exchange(session, request)
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=MAX_IDLE_S)
            self._session = aiohttp.ClientSession(connector=connector)
        return await _exchange(self._session, request)


async def _exchange(session: aiohttp.ClientSession, request: HttpRequest) -> NodeResponse | NoResponse:
    timeout = aiohttp.ClientTimeout(
        total=CONNECT_TIMEOUT_S + request.timeout_s,
        sock_connect=CONNECT_TIMEOUT_S,
        sock_read=request.timeout_s,
    )
    url = URL(request.node.origin + request.target, encoded=True)
    try:
        async with session.request(
            request.method,
            url,
            data=request.body,
            headers=request.headers,
            timeout=timeout,
            allow_redirects=False,
        ) as response:
            body = await _read_body(response)
            return NodeResponse(response.status, response.headers.get("Retry-After"), body)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        return NoResponse(describe(error), sent=False)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return NoResponse(describe(error), sent=True)


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > MAX_RESPONSE_BYTES:
            raise ValueError(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)
