"""Run API calls with the standard library's HTTP client, in the caller's thread.

Threads may share a client. Connections are kept open briefly and reused, except for calls that must not be repeated.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from fencepost.client.endpoints import Endpoints
from fencepost.client.protocol import (
    CONNECT_TIMEOUT_S,
    MAX_RESPONSE_BYTES,
    HttpRequest,
    NodeAddress,
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

MAX_IDLE_CONNECTIONS = 32
MAX_IDLE_S = 2.0  # shorter than the keep-alive time of servers
_PIECE_BYTES = 64 * 1024

_Idle = deque[tuple[float, NodeAddress, http.client.HTTPConnection]]


def _sync(method: Callable[Concatenate[Endpoints, P], Steps[T]]) -> Callable[Concatenate[Client, P], T]:
    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self.endpoints, *args, **kwargs))

    return call


def _paged(
    method: Callable[Concatenate[Endpoints, P], Pages[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        page, cursor = method(self.endpoints, *args, **kwargs), None
        while True:
            items, cursor = self.run(page(cursor))
            yield from items
            if cursor is None:
                return

    return call


class Client:
    """Call nodes at one or several URLs; try the next one when a node does not respond.

    Temporary failures are retried for `retry_for_s` where that is safe. A response that takes longer than
    `response_timeout_s`, in addition to the time that the call asked to wait, counts as missing.
    """

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        api_key: str | None = None,
        retry_for_s: float = 60.0,
        response_timeout_s: float = 35.0,
    ) -> None:
        """Store the node URLs and the API key; no connection is opened yet."""
        self.endpoints = Endpoints(
            RetryPolicy.with_nodes(
                url, api_key=api_key, retry_for_s=retry_for_s, response_timeout_s=response_timeout_s
            )
        )
        self._idle: _Idle = deque()
        self._tls: ssl.SSLContext | None = None

    send = _sync(Endpoints.send)
    send_many = _sync(Endpoints.send_many)
    wait = _sync(Endpoints.wait)
    get = _sync(Endpoints.get)
    by_request = _sync(Endpoints.by_request)
    by_hash = _sync(Endpoints.by_hash)
    explain = _sync(Endpoints.explain)
    explain_signer = _sync(Endpoints.explain_signer)
    status = _sync(Endpoints.status)
    iterate = _paged(Endpoints.iterate)
    events = _paged(Endpoints.events)
    completions = _sync(Endpoints.completions)
    cancel = _sync(Endpoints.cancel)
    suspend = _sync(Endpoints.suspend)
    resume = _sync(Endpoints.resume)
    resubmit = _sync(Endpoints.resubmit)
    bump = _sync(Endpoints.bump)
    signers = _paged(Endpoints.signers)
    signer = _sync(Endpoints.signer)
    pause_signer = _sync(Endpoints.pause_signer)
    resume_signer = _sync(Endpoints.resume_signer)
    drain_signer = _sync(Endpoints.drain_signer)
    protect_signer = _sync(Endpoints.protect_signer)
    unprotect_signer = _sync(Endpoints.unprotect_signer)
    create_subscription = _sync(Endpoints.create_subscription)
    subscriptions = _sync(Endpoints.subscriptions)
    subscription = _sync(Endpoints.subscription)
    pause_subscription = _sync(Endpoints.pause_subscription)
    resume_subscription = _sync(Endpoints.resume_subscription)
    delete_subscription = _sync(Endpoints.delete_subscription)
    rotate_secret = _sync(Endpoints.rotate_secret)
    test_subscription = _sync(Endpoints.test_subscription)
    replay = _sync(Endpoints.replay)
    attempts = _sync(Endpoints.attempts)
    allocate_nonces = _sync(Endpoints.allocate_nonces)
    nonce_status = _sync(Endpoints.nonce_status)
    mark_submitted = _sync(Endpoints.mark_submitted)
    mark_used = _sync(Endpoints.mark_used)
    mark_recyclable = _sync(Endpoints.mark_recyclable)
    command = _sync(Endpoints.command)
    withdraw_command = _sync(Endpoints.withdraw_command)
    nodes = _sync(Endpoints.nodes)
    chain_fees = _sync(Endpoints.chain_fees)
    version = _sync(Endpoints.version)

    def close(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop()[2].close()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all idle connections."""
        self.close()

    def run(self, steps: Steps[T]) -> T:
        """Run the steps of one call and return its result."""
        outcome: NodeResponse | NoResponse | None = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                outcome = None
            else:
                outcome = self._request(step)

    def _request(self, request: HttpRequest) -> NodeResponse | NoResponse:
        connection = self._take_idle(request.node) if request.is_repeatable else None
        try:
            if connection is None:
                connection = self._connect(request.node)
                connection.connect()
        except OSError as error:
            return NoResponse(describe(error), sent=False)
        try:
            response, stays_open = _exchange(connection, request)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            return NoResponse(describe(error), sent=True)
        except BaseException:  # such as Ctrl-C: the next call must not read the rest of this response
            connection.close()
            raise
        if stays_open and len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append((time.monotonic(), request.node, connection))
        else:
            connection.close()
        return response

    def _take_idle(self, node: NodeAddress) -> http.client.HTTPConnection | None:
        """Return a recently used connection to the node, if there is one; close those that are too old."""
        for _ in range(MAX_IDLE_CONNECTIONS):
            try:
                since_s, idle_node, connection = self._idle.pop()
            except IndexError:
                return None
            if idle_node == node and time.monotonic() - since_s < MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def _connect(self, node: NodeAddress) -> http.client.HTTPConnection:
        if not node.is_tls:
            return http.client.HTTPConnection(node.host, node.port, timeout=CONNECT_TIMEOUT_S)
        self._tls = self._tls or ssl.create_default_context()
        return http.client.HTTPSConnection(node.host, node.port, timeout=CONNECT_TIMEOUT_S, context=self._tls)


def _exchange(connection: http.client.HTTPConnection, request: HttpRequest) -> tuple[NodeResponse, bool]:
    """Return the whole response within the time-out; a socket's own time-out bounds one read only."""
    deadline_s = time.monotonic() + request.timeout_s
    connection.sock.settimeout(request.timeout_s)
    connection.request(request.method, request.target, body=request.body, headers=dict(request.headers))
    response = connection.getresponse()
    pieces: list[bytes] = []
    size = 0
    while piece := response.read(_PIECE_BYTES):
        size += len(piece)
        if size > MAX_RESPONSE_BYTES:
            raise ValueError(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
        pieces.append(piece)
        remaining_s = deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(remaining_s)
    node_response = NodeResponse(response.status, response.getheader("Retry-After"), b"".join(pieces))
    return node_response, not response.will_close
