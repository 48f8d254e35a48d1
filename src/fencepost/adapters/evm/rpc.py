"""JSON-RPC over HTTP to one endpoint.

Contract
- Every call ends within `timeout_s` in one of three ways: the node's result; `RpcRefused`, the node answered with an
  error; `RpcUnavailable`, there was no usable answer (time-out, reset, HTTP status other than 2xx, a body that is too
  large, not JSON or not JSON-RPC). After `RpcUnavailable` nobody knows whether the node did what it was asked.
- Nothing is ever asked twice.
- What names no call (an error with a null id, an HTTP status that refuses a batch) is believed only where it can be to
  nothing else: as the first answer of a connection. Elsewhere it is `RpcUnavailable`, and for a while each call has a
  connection of its own, so that a node that means it is believed the next time.
- `batch` asks up to 100 calls a request, one request after another so that order is kept, and matches answers by id. A
  call without an answer is `RpcUnavailable` for itself alone; after a request that failed as a whole the rest isn't
  asked and shares its error. An endpoint that refuses batches as such has run none of it: the calls go out one by one, a few at a time, and
  once that has worked the endpoint isn't asked for batches again.
- Errors and the observer see scheme, host and port only: keys of gateways stand in user-info, path and query.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from fencepost import bounded_json
from fencepost.adapters.evm.node_errors import shorten
from fencepost.adapters.evm.posting import BodyTooLarge, Poster
from fencepost.errors import RpcError, RpcRefused, RpcUnavailable

Observer = Callable[[str, str, float, str], None]
Calls = Sequence[tuple[str, Sequence[Any]]]

BATCH_MAX: Final = 100
_ERROR_CHARS_MAX: Final = 1000
# How an endpoint says "no batches": by status, by the code of one lone error object, or in words.
_BATCH_REFUSING_STATUSES: Final = frozenset({400, 405, 415, 422, 501})
_BATCH_REFUSING_CODES: Final = frozenset({-32700, -32600, -32601, -32602})
_BATCH_METHOD: Final = "batch"  # what the observer hears for a whole batch


class _BatchRefused(Exception):
    """The endpoint turned a batch away unread."""


class _Request(msgspec.Struct):
    id: int
    method: str
    params: Sequence[Any]
    jsonrpc: str = "2.0"


class _Heard(NamedTuple):
    status: int | None  # other than 2xx
    answer: Any  # the decoded body of a 2xx answer
    is_first: bool  # on its connection: it can be to nothing else


def masked(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"


def _unobserved(_endpoint: str, _method: str, _seconds: float, _outcome: str) -> None:
    """The default observer."""


class JsonRpc:
    """`on_call(endpoint, method, seconds, outcome)` hears of every request; outcome is ok, refused or unavailable."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        max_body_bytes: int = 64 * 1024 * 1024,
        singles_at_once: int = 8,
        on_call: Observer = _unobserved,
    ) -> None:
        self.endpoint: Final = masked(url)
        self._url = url
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes
        self._singles_at_once = singles_at_once
        self._poster: Poster | None = None  # made in the loop that uses it
        self._on_call = on_call
        self._ids = itertools.count(1)
        self._batches = True

    async def close(self) -> None:
        if self._poster is not None:
            await self._poster.aclose()
            self._poster = None

    async def call(self, method: str, params: Sequence[Any] = ()) -> Any:
        started = time.monotonic()
        outcome = "unavailable"
        try:
            result = await self._single(method, params)
            outcome = "ok"
        except RpcRefused:
            outcome = "refused"
            raise
        finally:
            self._on_call(self.endpoint, method, time.monotonic() - started, outcome)
        return result

    async def batch(self, calls: Calls) -> list[Any]:
        """One entry a call, in their order: the result, or the `RpcError` that stands in its place."""
        answers: list[Any] = []
        for start in range(0, len(calls), BATCH_MAX):
            chunk = calls[start : start + BATCH_MAX]
            try:
                answers += await self._chunk(chunk)
            except RpcError as error:
                answers += [error] * (len(calls) - start)
                break
        return answers

    async def _chunk(self, calls: Calls) -> list[Any]:
        if len(calls) == 1:
            return [await self._alone(*calls[0])]
        if not self._batches:
            return await self._one_by_one(calls)
        started = time.monotonic()
        outcome = "unavailable"
        try:
            answers = await self._together(calls)
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
        answers = await self._one_by_one(calls)
        self._batches = False
        return answers

    async def _alone(self, method: str, params: Sequence[Any]) -> Any:
        try:
            return await self.call(method, params)
        except RpcRefused as error:
            return error

    async def _one_by_one(self, calls: Calls) -> list[Any]:
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
                    # Each of the rest could cost a whole time-out too.
                    answers[index] = lost = error

        async with asyncio.TaskGroup() as workers:
            for _ in range(min(self._singles_at_once, len(calls))):
                workers.create_task(work())
        if lost is not None and all(isinstance(answer, RpcUnavailable) for answer in answers):
            raise lost
        return answers

    async def _single(self, method: str, params: Sequence[Any]) -> Any:
        call_id = next(self._ids)
        heard = await self._post(_Request(call_id, method, params))
        answer = heard.answer
        if heard.status is not None:
            raise self._unavailable(f"answered HTTP {heard.status}")
        if not isinstance(answer, dict):
            raise self._not_ours("the answer is not JSON-RPC")
        value = self._value(answer)
        if answer.get("id") != call_id:
            if answer.get("id") is not None or not isinstance(value, RpcRefused):
                raise self._not_ours("the answer is not JSON-RPC, or to something else")
            raise value if heard.is_first else self._in_doubt()
        if isinstance(value, RpcError):
            raise value
        return value

    async def _together(self, calls: Calls) -> list[Any]:
        requests = [_Request(next(self._ids), method, params) for method, params in calls]
        heard = await self._post(requests)
        answer = heard.answer
        if heard.status in _BATCH_REFUSING_STATUSES:
            raise _BatchRefused if heard.is_first else self._in_doubt()
        if heard.status is not None:
            raise self._unavailable(f"answered HTTP {heard.status}")
        if isinstance(answer, dict):
            is_to_us = heard.is_first or any(answer.get("id") == request.id for request in requests)
            raise self._lone_error(answer) if is_to_us else self._in_doubt()
        if not isinstance(answer, list):
            raise self._unavailable("the answer to a batch is not a list")
        by_id: dict[int, Any] = {}
        for item in answer[: 2 * len(calls)]:
            if isinstance(item, dict) and isinstance(item.get("id"), int):
                by_id.setdefault(item["id"], item)
        return [
            self._value(by_id[request.id])
            if request.id in by_id
            else self._not_ours("no answer to this call of the batch")
            for request in requests
        ]

    def _lone_error(self, answer: dict[str, Any]) -> Exception:
        """One object where a list belongs: the node refuses the batch, or is too busy for anything."""
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
                shorten(text, chars_max=_ERROR_CHARS_MAX) if isinstance(text, str) else "no message",
                rpc_code=code if isinstance(code, int) else None,
                data=error.get("data"),
            )
        return self._unavailable("the answer has neither result nor error")

    async def _post(self, body: object) -> _Heard:
        if self._poster is None:
            self._poster = Poster(self._url, timeout_s=self._timeout_s, body_bytes_max=self._max_body_bytes)
        try:
            status, content, is_first = await self._poster.post(msgspec.json.encode(body))
        # The chain of causes is cut on purpose: some errors name the whole URL.
        except TimeoutError:
            raise self._unavailable("time-out") from None
        except BodyTooLarge:
            raise self._unavailable(f"the answer is larger than {self._max_body_bytes} bytes") from None
        except (OSError, ValueError) as error:
            raise self._unavailable(type(error).__name__) from None
        if not 200 <= status < 300:  # noqa: PLR2004 - the statuses of success
            return _Heard(status, None, is_first)
        try:
            return _Heard(None, bounded_json.decode(content), is_first)
        except msgspec.DecodeError:
            raise self._unavailable("the answer is not JSON") from None

    def _not_ours(self, what: str) -> RpcUnavailable:
        """Who says more than was asked may have said it where the next question waits for its answer."""
        if self._poster is not None:
            self._poster.close_resting()
        return self._unavailable(what)

    def _in_doubt(self) -> RpcUnavailable:
        """Its words are not told: whoever reads them would take them for a verdict on this call."""
        if self._poster is not None:
            self._poster.doubt()
        return self._unavailable("an error came that names no call, and may be to something else")

    def _unavailable(self, what: str) -> RpcUnavailable:
        return RpcUnavailable(f"{self.endpoint}: {what}")
