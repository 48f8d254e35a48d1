"""Call one endpoint by JSON-RPC over HTTP.

Contract
- Every call ends within `timeout_s` in one of three ways: the node's result; `RpcRefused`, the node answered with an
  error; `RpcUnavailable`, there was no usable answer (time-out, reset, HTTP status other than 2xx, a body that is too
  large, not JSON or not JSON-RPC). After `RpcUnavailable` it is unknown whether the endpoint carried out the call.
- No call is ever repeated.
- A response that names no call (an error with a null id, an HTTP status that rejects a batch) counts only if it can't
  belong to another call: as the first response on a connection. Otherwise the call is `RpcUnavailable`, and for a while
  each call gets its own connection, so that the same response counts the next time.
- `batch` sends up to 100 calls per request, one request after another to keep the order, and matches answers by id. A
  call without an answer is `RpcUnavailable` by itself. If a request fails as a whole, the remaining calls are not sent
  and share its error. An endpoint that rejects batches has run none of the calls: they are sent singly, a few at a
  time, and once that has succeeded the endpoint gets no more batches.
- With `identify` set, every new connection is identified before it is used: `identify` asks over that connection which
  chain the node serves, and raises `WrongChain` if it is another one.
- Errors and the observer get scheme, host and port only: user info, path and query may contain a gateway's key.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from fencepost import bounded_json
from fencepost.adapters.evm.http_transport import BodyTooLarge, Exchange, HttpTransport
from fencepost.adapters.evm.node_errors import shorten
from fencepost.errors import RpcError, RpcRefused, RpcUnavailable

T = TypeVar("T")

Observer = Callable[[str, str, float, str], None]
Calls = Sequence[tuple[str, Sequence[Any]]]
Ask = Callable[[str, Sequence[Any]], Awaitable[Any]]

MAX_BATCH: Final = 100
# Decoded values can take a hundred times the bytes of an answer (`[],[],…`), so their number is bounded first.
MAX_ELEMENTS: Final = 500_000
# The results of these methods are short: a longer response is not read, although blocks and receipts may be longer.
# `eth_estimateGas` and `eth_call` are not among them: a contract chooses the length of its revert data.
MAX_SHORT_BYTES: Final = 1024 * 1024
_SHORT_RESULTS: Final = frozenset(
    {
        "eth_blockNumber",
        "eth_chainId",
        "eth_feeHistory",
        "eth_gasPrice",
        "eth_getBalance",
        "eth_getTransactionByHash",
        "eth_getTransactionCount",
        "eth_maxPriorityFeePerGas",
        "eth_sendRawTransaction",
    }
)
_TOO_LARGE_CODE: Final = -32005  # EIP-1474: limit exceeded
_MAX_ERROR_CHARS: Final = 1000
# How an endpoint rejects batches: by status, by the code of a single error object, or by its message.
_BATCH_REFUSING_STATUSES: Final = frozenset({400, 405, 415, 422, 501})
_BATCH_REFUSING_CODES: Final = frozenset({-32700, -32600, -32601, -32602})
_BATCH_METHOD: Final = "batch"  # the method that the observer gets for a batch


class _BatchRefused(Exception):
    """The endpoint rejected a batch without running any call of it."""


class _Request(msgspec.Struct):
    id: int
    method: str
    params: Sequence[Any]
    jsonrpc: str = "2.0"


class _Envelope(msgspec.Struct):
    """An answer whose result stays undecoded."""

    id: int | float | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Response(NamedTuple):
    status: int | None  # other than 2xx
    answer: Any  # the decoded body of a 2xx answer
    is_first: bool  # on its connection, so it can't belong to another call


def masked(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"


def _ignore_call(_endpoint: str, _method: str, _seconds: float, _outcome: str) -> None:
    """Ignore an observation; this is the default observer."""


def _decode(content: bytes) -> Any:
    """Decode an answer whose number of values is bounded. Raises `msgspec.DecodeError`."""
    # An element takes a byte at least.
    if len(content) > MAX_ELEMENTS and bounded_json.max_values(content) > MAX_ELEMENTS:
        raise msgspec.DecodeError(f"it has more than {MAX_ELEMENTS} elements")
    return bounded_json.decode(content)


_ENVELOPE = msgspec.json.Decoder(_Envelope)


def _decode_envelope(content: bytes) -> dict[str, Any]:
    """Decode the envelope of an answer and its error, if it has one; leave the result undecoded."""
    envelope = bounded_json.decode(content, _ENVELOPE.decode)
    answer: dict[str, Any] = {"id": envelope.id}
    if bytes(envelope.error) not in (b"", b"null"):
        answer["error"] = _decode(bytes(envelope.error))
    elif bytes(envelope.result):
        answer["result"] = envelope.result
    return answer


class JsonRpc:
    """Call one endpoint. `on_call(endpoint, method, seconds, outcome)` is called after every request.

    The outcome is ok, refused or unavailable.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        max_body_bytes: int = 64 * 1024 * 1024,
        max_parallel_calls: int = 8,
        on_call: Observer = _ignore_call,
    ) -> None:
        self.endpoint: Final = masked(url)
        self._url = url
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self._max_parallel_calls = max_parallel_calls
        self._transport: HttpTransport | None = None  # created in the event loop that uses it
        self._on_call = on_call
        self._ids = itertools.count(1)
        self._batches = True
        self.identify: Callable[[Ask], Awaitable[None]] | None = None

    async def connect(self) -> None:
        """Open a new connection and identify the chain behind it. Raises `RpcUnavailable`."""
        await self._finish(self._open_transport().handshake())

    def reconnect(self) -> None:
        """Use new connections for all later calls; each is identified first."""
        if self._transport is not None:
            self._transport.reconnect()

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def call(self, method: str, params: Sequence[Any] = ()) -> Any:
        return await self._observed(method, self._single(method, params))

    async def call_raw(self, method: str, params: Sequence[Any], *, bytes_max: int) -> msgspec.Raw:
        """Return the result undecoded. Raises `RpcRefused` when the answer is larger than `bytes_max`."""
        raw: msgspec.Raw = await self._observed(method, self._single(method, params, raw_bytes_max=bytes_max))
        return raw

    async def _observed(self, method: str, call: Awaitable[Any]) -> Any:
        started = time.monotonic()
        outcome = "unavailable"
        try:
            result = await call
            outcome = "ok"
        except RpcRefused:
            outcome = "refused"
            raise
        finally:
            self._on_call(self.endpoint, method, time.monotonic() - started, outcome)
        return result

    async def _handshake(self, exchange: Exchange) -> None:
        if self.identify is None:
            return

        async def ask(method: str, params: Sequence[Any]) -> Any:
            return await self._observed(method, self._single(method, params, exchange))

        await self.identify(ask)

    async def batch(self, calls: Calls) -> list[Any]:
        """Return one entry per call, in order: its result, or the `RpcError` in its place."""
        answers: list[Any] = []
        for start in range(0, len(calls), MAX_BATCH):
            chunk = calls[start : start + MAX_BATCH]
            try:
                answers += await self._chunk(chunk)
            except RpcError as error:
                answers += [error] * (len(calls) - start)
                break
        return answers

    async def _chunk(self, calls: Calls) -> list[Any]:
        if len(calls) == 1:
            return [await self._call_or_refusal(*calls[0])]
        if not self._batches:
            return await self._call_singly(calls)
        started = time.monotonic()
        outcome = "unavailable"
        try:
            answers = await self._batch_request(calls)
            outcome = "ok"
        except RpcRefused:
            outcome = "refused"
            raise
        except _BatchRefused:
            outcome = "refused"
        finally:
            self._on_call(self.endpoint, _BATCH_METHOD, time.monotonic() - started, outcome)
        if outcome == "ok":
            return answers
        answers = await self._call_singly(calls)
        self._batches = False
        return answers

    async def _call_or_refusal(self, method: str, params: Sequence[Any]) -> Any:
        try:
            return await self.call(method, params)
        except RpcRefused as error:
            return error

    async def _call_singly(self, calls: Calls) -> list[Any]:
        answers: list[Any] = [None] * len(calls)
        waiting = iter(enumerate(calls))
        lost: RpcUnavailable | None = None

        async def work() -> None:
            # All workers draw from one iterator, so calls start in their order.
            nonlocal lost
            for index, (method, params) in waiting:
                try:
                    answers[index] = lost or await self.call(method, params)
                except RpcRefused as error:
                    answers[index] = error
                except RpcUnavailable as error:
                    # Each remaining call could cost a whole time-out too.
                    answers[index] = lost = error

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self._max_parallel_calls, len(calls))):
                workers.create_task(work())
        if lost is not None and all(isinstance(answer, RpcUnavailable) for answer in answers):
            raise lost
        return answers

    async def _single(
        self,
        method: str,
        params: Sequence[Any],
        exchange: Exchange | None = None,
        *,
        raw_bytes_max: int | None = None,
    ) -> Any:
        call_id = next(self._ids)
        response = await self._post(_Request(call_id, method, params), exchange, raw_bytes_max=raw_bytes_max)
        answer = response.answer
        if response.status is not None:
            raise self._unavailable(f"answered HTTP {response.status}")
        if not isinstance(answer, dict):
            raise self._unexpected_response("the answer is not JSON-RPC")
        value = self._value(answer)
        if answer.get("id") != call_id:
            if answer.get("id") is not None or not isinstance(value, RpcRefused):
                raise self._unexpected_response("the answer is not JSON-RPC, or belongs to another call")
            raise value if response.is_first else self._ambiguous_error()
        if isinstance(value, RpcError):
            raise value
        return value

    async def _batch_request(self, calls: Calls) -> list[Any]:
        requests = [_Request(next(self._ids), method, params) for method, params in calls]
        response = await self._post(requests)
        answer = response.answer
        if response.status in _BATCH_REFUSING_STATUSES:
            raise _BatchRefused if response.is_first else self._ambiguous_error()
        if response.status is not None:
            raise self._unavailable(f"answered HTTP {response.status}")
        if isinstance(answer, dict):
            is_ours = response.is_first or any(answer.get("id") == request.id for request in requests)
            raise self._batch_error(answer) if is_ours else self._ambiguous_error()
        if not isinstance(answer, list):
            raise self._unavailable("the answer to a batch is not a list")
        by_id: dict[int, Any] = {}
        for item in answer[: 2 * len(calls)]:
            if isinstance(item, dict) and isinstance(item.get("id"), int):
                by_id.setdefault(item["id"], item)
        return [
            self._value(by_id[request.id])
            if request.id in by_id
            else self._unexpected_response("no answer to this call of the batch")
            for request in requests
        ]

    def _batch_error(self, answer: dict[str, Any]) -> Exception:
        """Interpret one error object in place of a list: the node rejects batches, or is too busy for any call."""
        error = self._value(answer)
        if not isinstance(error, RpcRefused):
            return self._unavailable("the answer to a batch is not a list")
        if error.rpc_code in _BATCH_REFUSING_CODES or "batch" in str(error).lower():
            return _BatchRefused()
        return error

    def _value(self, answer: dict[str, Any]) -> Any:
        error = answer.get("error")
        if error is None and "result" in answer:
            return answer["result"]
        if isinstance(error, dict):
            code, text = error.get("code"), error.get("message")
            return RpcRefused(
                shorten(text, chars_max=_MAX_ERROR_CHARS) if isinstance(text, str) else "no message",
                rpc_code=code if isinstance(code, int) else None,
                data=error.get("data"),
            )
        return self._unavailable("the answer has neither result nor error")

    def _open_transport(self) -> HttpTransport:
        if self._transport is None:
            self._transport = HttpTransport(
                self._url,
                timeout_s=self._timeout_s,
                body_bytes_max=self._max_body_bytes,
                handshake=self._handshake,
            )
        return self._transport

    async def _post(
        self,
        body: _Request | list[_Request],
        exchange: Exchange | None = None,
        *,
        raw_bytes_max: int | None = None,
    ) -> _Response:
        content = msgspec.json.encode(body)
        bytes_max = self._bytes_max(body) if raw_bytes_max is None else raw_bytes_max
        if exchange is not None:
            posted = exchange(content)
        else:
            posted = self._open_transport().post(content, body_bytes_max=bytes_max)
        status, content, is_first = await self._finish(posted, bytes_max, is_raw=raw_bytes_max is not None)
        if not 200 <= status < 300:  # noqa: PLR2004 - the statuses of success
            return _Response(status, None, is_first)
        try:
            answer = _decode(content) if raw_bytes_max is None else _decode_envelope(content)
        except msgspec.DecodeError as error:
            raise self._unavailable(f"the answer is not JSON that can be decoded: {error}"[:200]) from None
        return _Response(None, answer, is_first)

    def _bytes_max(self, body: _Request | list[_Request]) -> int:
        """Return how long the response to these calls may be."""
        calls = body if isinstance(body, list) else [body]
        if not all(call.method in _SHORT_RESULTS for call in calls):
            return self._max_body_bytes
        return min(self._max_body_bytes, len(calls) * MAX_SHORT_BYTES)

    async def _finish(
        self, exchange: Awaitable[T], bytes_max: int | None = None, *, is_raw: bool = False
    ) -> T:
        try:
            return await exchange
        # The chain of causes is cut on purpose: some errors name the whole URL.
        except TimeoutError:
            raise self._unavailable("time-out") from None
        except BodyTooLarge:
            reason = f"the answer is larger than {bytes_max or self._max_body_bytes} bytes"
            if is_raw:
                raise RpcRefused(
                    f"{reason}: request less data, or call an endpoint directly", rpc_code=_TOO_LARGE_CODE
                ) from None
            raise self._unavailable(reason) from None
        except (OSError, ValueError) as error:
            raise self._unavailable(type(error).__name__) from None

    def _unexpected_response(self, reason: str) -> RpcUnavailable:
        """Close the idle connections: an endpoint that sent more than requested may have sent it on any of them."""
        if self._transport is not None:
            self._transport.close_idle()
        return self._unavailable(reason)

    def _ambiguous_error(self) -> RpcUnavailable:
        """Build the error for an error object without a call id. Omit its text: it may concern another call."""
        if self._transport is not None:
            self._transport.disable_reuse()
        return self._unavailable("the error response names no call, so it may belong to another one")

    def _unavailable(self, reason: str) -> RpcUnavailable:
        return RpcUnavailable(f"{self.endpoint}: {reason}")
