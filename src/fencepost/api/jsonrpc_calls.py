"""JSON-RPC calls as they come in: one or a batch, bounded in size, number and depth, each judged by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from fencepost import bounded_json
from fencepost.api.bodies import check_depth, misfit
from fencepost.api.calls import Call
from fencepost.api.jsonrpc_faults import Fault
from fencepost.api.jsonrpc_told import Told
from fencepost.api.problems import ApiError

MOST_CALLS = 100
MOST_ID_CHARS = 200

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
    id: Id | UnsetType  # unset: a notification, which gets no answer


@dataclass(frozen=True, slots=True)
class BadCall:
    """What is no call gets an answer all the same, with the id if one can be read."""

    fault: Exception
    id: Id


@dataclass(frozen=True, slots=True)
class Visit:
    """One HTTP request on `/rpc`: who comes, to which chain, with what key against doing it twice."""

    call: Call
    chain_id: int
    told: Told
    wait_s: float
    idempotency_key: str | None

    @property
    def caller_id(self) -> str | None:
        key = self.call.caller.key
        return None if key is None else key.id

    async def pass_on(self, method: str, params: list[Any]) -> Any:
        return await self.call.services.pass_on(self.chain_id, method, params)


def read_calls(body: bytes) -> tuple[list[RpcCall | BadCall], bool]:
    """The calls, and whether they came as a batch. Raises what is wrong with the whole."""
    if body.lstrip()[:1] != b"[":
        return [_read(body, alone=True)], False
    items = _decoded(body, msgspec.json.Decoder(list[msgspec.Raw]))
    if not items:
        raise Fault("request_invalid", "the batch is empty")
    if len(items) > MOST_CALLS:
        raise Fault("batch_too_large", f"{len(items)} calls came, {MOST_CALLS} are the most")
    return [_read(bytes(item), alone=False) for item in items], True


def _decoded(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return bounded_json.decode(body, decoder.decode)
    except msgspec.ValidationError as error:
        raise Fault("request_invalid", misfit(error).problem.detail) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = str(error) if isinstance(error, msgspec.DecodeError) else "a text is not UTF-8"
        raise ApiError("json_malformed", detail[:200]) from None


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def _read(body: bytes, *, alone: bool) -> RpcCall | BadCall:
    try:
        envelope = _decoded(body, _ENVELOPE)
        check_depth(envelope.params, "params")
    except (Fault, ApiError) as error:
        if alone and isinstance(error, ApiError) and error.code == "json_malformed":
            raise
        return BadCall(error, _id_of(body))
    if envelope.jsonrpc != "2.0":
        return BadCall(Fault("request_invalid", 'jsonrpc must be "2.0"'), _id_of(body))
    if isinstance(envelope.id, str) and len(envelope.id) > MOST_ID_CHARS:
        return BadCall(Fault("request_invalid", f"an id has at most {MOST_ID_CHARS} characters"), None)
    return RpcCall(envelope.method, envelope.params or [], envelope.id)


def _id_of(body: bytes) -> Id:
    try:
        found = bounded_json.decode(body, _ANYTHING.decode)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    given = found.get("id") if isinstance(found, dict) else None
    if isinstance(given, str):
        return given[:MOST_ID_CHARS]
    return given if isinstance(given, int | float) else None
