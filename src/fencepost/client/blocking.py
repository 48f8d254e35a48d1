"""`Client`: walks through the steps with the standard library's HTTP, in the caller's thread.

Threads may share one. Connections are kept for a short while and used again, except for what may not be repeated.
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

from fencepost.client.calls import Calls
from fencepost.client.exchange import DEFAULT_URL, Exchange
from fencepost.client.steps import (
    CONNECT_WITHIN_S,
    MOST_ANSWER_BYTES,
    Answer,
    Base,
    NoAnswer,
    Pages,
    Pause,
    Send,
    Steps,
    told,
)

P = ParamSpec("P")
T = TypeVar("T")

MOST_IDLE = 32
IDLE_S = 2.0  # less than servers wait before they hang up
_PIECE_BYTES = 64 * 1024

_Idle = deque[tuple[float, Base, http.client.HTTPConnection]]


def _at_once(method: Callable[Concatenate[Calls, P], Steps[T]]) -> Callable[Concatenate[Client, P], T]:
    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(method(self.calls, *args, **kwargs))

    return call


def _each(method: Callable[Concatenate[Calls, P], Pages[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    @wraps(method)
    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        page, cursor = method(self.calls, *args, **kwargs), None
        while True:
            items, cursor = self.run(page(cursor))
            yield from items
            if cursor is None:
                return

    return call


class Client:
    """Nodes at one or several URLs; the next is asked when one does not serve.

    What fails for a reason that may pass is tried again for `retry_for_s`, as far as that is safe; an answer that takes
    longer than `answer_within_s`, besides what it was asked to wait, counts as none.
    """

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
        self._idle: _Idle = deque()
        self._tls: ssl.SSLContext | None = None

    send = _at_once(Calls.send)
    send_many = _at_once(Calls.send_many)
    wait = _at_once(Calls.wait)
    get = _at_once(Calls.get)
    by_request = _at_once(Calls.by_request)
    by_hash = _at_once(Calls.by_hash)
    iterate = _each(Calls.iterate)
    completions = _at_once(Calls.completions)
    cancel = _at_once(Calls.cancel)
    suspend = _at_once(Calls.suspend)
    resume = _at_once(Calls.resume)
    resubmit = _at_once(Calls.resubmit)
    bump = _at_once(Calls.bump)
    signers = _each(Calls.signers)
    signer = _at_once(Calls.signer)
    pause_signer = _at_once(Calls.pause_signer)
    resume_signer = _at_once(Calls.resume_signer)
    drain_signer = _at_once(Calls.drain_signer)
    protect_signer = _at_once(Calls.protect_signer)
    unprotect_signer = _at_once(Calls.unprotect_signer)
    allocate_nonces = _at_once(Calls.allocate_nonces)
    nonce_status = _at_once(Calls.nonce_status)
    mark_submitted = _at_once(Calls.mark_submitted)
    mark_used = _at_once(Calls.mark_used)
    mark_recyclable = _at_once(Calls.mark_recyclable)
    command = _at_once(Calls.command)
    nodes = _at_once(Calls.nodes)
    version = _at_once(Calls.version)

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[2].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, steps: Steps[T]) -> T:
        outcome: Answer | NoAnswer | None = None
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
                outcome = self._exchange(step)

    def _exchange(self, send: Send) -> Answer | NoAnswer:
        connection = self._kept(send.base) if send.is_repeatable else None
        try:
            if connection is None:
                connection = self._new(send.base)
                connection.connect()
        except OSError as error:
            return NoAnswer(told(error), sent=False)
        try:
            answer, stays_open = _ask(connection, send)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            return NoAnswer(told(error), sent=True)
        except BaseException:  # Ctrl-C in the middle: the rest of the answer must not meet the next question
            connection.close()
            raise
        if stays_open and len(self._idle) < MOST_IDLE:
            self._idle.append((time.monotonic(), send.base, connection))
        else:
            connection.close()
        return answer

    def _kept(self, base: Base) -> http.client.HTTPConnection | None:
        """A connection to that node that was used a moment ago; those that are too old are closed on the way."""
        for _ in range(MOST_IDLE):
            try:
                since_s, of, connection = self._idle.pop()
            except IndexError:
                return None
            if of == base and time.monotonic() - since_s < IDLE_S:
                return connection
            connection.close()
        return None

    def _new(self, base: Base) -> http.client.HTTPConnection:
        if not base.is_tls:
            return http.client.HTTPConnection(base.host, base.port, timeout=CONNECT_WITHIN_S)
        self._tls = self._tls or ssl.create_default_context()
        return http.client.HTTPSConnection(base.host, base.port, timeout=CONNECT_WITHIN_S, context=self._tls)


def _ask(connection: http.client.HTTPConnection, send: Send) -> tuple[Answer, bool]:
    """The whole answer, within the time; a socket's own time-out is for one piece only."""
    deadline_s = time.monotonic() + send.timeout_s
    connection.sock.settimeout(send.timeout_s)
    connection.request(send.method, send.target, body=send.body, headers=dict(send.headers))
    response = connection.getresponse()
    pieces: list[bytes] = []
    size = 0
    while piece := response.read(_PIECE_BYTES):
        size += len(piece)
        if size > MOST_ANSWER_BYTES:
            raise ValueError(f"the answer has more than {MOST_ANSWER_BYTES} bytes")
        pieces.append(piece)
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
    answer = Answer(response.status, response.getheader("Retry-After"), b"".join(pieces))
    return answer, not response.will_close
