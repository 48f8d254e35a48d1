"""Parse JSON-RPC calls, one or a batch: bounded in size, number and depth, each checked separately."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from fencepost import bounded_json
from fencepost.api.context import RequestContext
from fencepost.api.jsonrpc.errors import RpcFault
from fencepost.api.jsonrpc.nonce_hints import NonceHints
from fencepost.api.parsing import check_depth, validation_problem
from fencepost.api.problems import ApiError
from fencepost.errors import RpcUnavailable

MAX_CALLS = 100
MAX_VALUES = (
    100_000  # in all calls of a request: they are decoded, checked and encoded again on the event loop
)
MAX_ID_CHARS = 200
MAX_RESULT_BYTES = 8 * 1024 * 1024  # of one call
MAX_RESPONSE_BYTES = 16 * 1024 * 1024  # of all calls of a request

T = TypeVar("T")

Id = int | float | str | None


class _Envelope(msgspec.Struct):
    method: str
    jsonrpc: str = ""
    params: list[Any] | None = None
    id: Id | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class RpcCall:
    method: str
    params: list[Any]
    id: Id | UnsetType  # unset: a notification, which gets no response


@dataclass(frozen=True, slots=True)
class BadCall:
    """An invalid call. It gets an error response, with its id if that can be read."""

    fault: Exception
    id: Id


@dataclass(slots=True)
class ResponseSize:
    """The bytes that are left for the response to one HTTP request."""

    left_bytes: int

    def take(self, count: int) -> None:
        if count > self.left_bytes:
            raise self.exceeded()
        self.left_bytes -= count

    def exceeded(self) -> RpcFault:
        return RpcFault(
            "response_too_large", f"the results of one HTTP request are limited to {MAX_RESPONSE_BYTES} bytes"
        )


@dataclass(frozen=True, slots=True)
class RpcRequestContext:
    """One HTTP request on `/rpc`: its caller, chain and idempotency key."""

    call: RequestContext
    chain_id: int
    nonce_hints: NonceHints
    wait_s: float
    idempotency_key: str | None
    size: ResponseSize = field(default_factory=lambda: ResponseSize(MAX_RESPONSE_BYTES))

    @property
    def caller_id(self) -> str | None:
        key = self.call.caller.key
        return None if key is None else key.id

    async def call_endpoint(self, method: str, params: list[Any]) -> msgspec.Raw:
        """Return the endpoint's result undecoded. All results of one HTTP request share one size limit."""
        bytes_max = min(MAX_RESULT_BYTES, self.size.left_bytes)
        if bytes_max <= 0:
            raise self.size.exceeded()
        raw = await self.call.services.chains.call_endpoint(
            self.chain_id, method, params, bytes_max=bytes_max
        )
        self.size.take(len(bytes(raw)))
        return raw

    async def fetch(self, method: str, params: list[Any], wanted: type[T]) -> T:
        """Return the endpoint's result, decoded as the wanted type."""
        raw = await self.call_endpoint(method, params)
        try:
            return bounded_json.decode(bytes(raw), msgspec.json.Decoder(wanted).decode)
        except msgspec.DecodeError:
            raise RpcUnavailable(
                f"malformed response: the result of {method} has an unexpected type"
            ) from None


def read_calls(body: bytes) -> tuple[list[RpcCall | BadCall], bool]:
    """Return the calls, and whether they are a batch; raise if the whole body is invalid."""
    if body.lstrip()[:1] != b"[":
        return [_read(body, alone=True)], False
    items = _decoded(body, msgspec.json.Decoder(list[msgspec.Raw]))
    if not items:
        raise RpcFault("request_invalid", "the batch is empty")
    if len(items) > MAX_CALLS:
        raise RpcFault("batch_too_large", f"the batch has {len(items)} calls; the limit is {MAX_CALLS}")
    return [_read(bytes(item), alone=False) for item in items], True


def _decoded(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return bounded_json.decode(body, decoder.decode)
    except msgspec.ValidationError as error:
        raise RpcFault("request_invalid", validation_problem(error).problem.detail) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = str(error) if isinstance(error, msgspec.DecodeError) else "a text is not UTF-8"
        raise ApiError("json_malformed", detail[:200]) from None


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _read(body: bytes, *, alone: bool) -> RpcCall | BadCall:
    try:
        envelope = _decoded(body, _ENVELOPE)
        check_depth(envelope.params, "params")
    except (RpcFault, ApiError) as error:
        if alone and isinstance(error, ApiError) and error.code == "json_malformed":
            raise
        return BadCall(error, _id_of(body))
    if envelope.jsonrpc != "2.0":
        return BadCall(RpcFault("request_invalid", 'jsonrpc must be "2.0"'), _id_of(body))
    if isinstance(envelope.id, str) and len(envelope.id) > MAX_ID_CHARS:
        return BadCall(RpcFault("request_invalid", f"an id has at most {MAX_ID_CHARS} characters"), None)
    return RpcCall(envelope.method, envelope.params or [], envelope.id)


def _id_of(body: bytes) -> Id:
    try:
        found = bounded_json.decode(body, _ANYTHING.decode)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    given = found.get("id") if isinstance(found, dict) else None
    if isinstance(given, str):
        return given[:MAX_ID_CHARS]
    return given if isinstance(given, int | float) else None
