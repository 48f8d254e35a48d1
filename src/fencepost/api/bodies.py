"""Bytes and queries in, checked values out: bounded in size and depth, nothing unknown, every fault with its place."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from starlette.datastructures import QueryParams

from fencepost import bounded_json
from fencepost.api.incoming import Incoming
from fencepost.api.problems import ApiError

MOST_BODY_BYTES = 1024 * 1024
MOST_BATCH_BYTES = 8 * 1024 * 1024
MOST_DEPTH = 32
MOST_QUERY_CHARS = 8_192

T = TypeVar("T")

_JSON = "application/json"

_PLACE = re.compile(r" - at `([^`]*)`$")
_NAMED = re.compile(r"(unknown|required) field `([^`]*)`")


async def read_body(request: Incoming, most_bytes: int) -> bytes:
    """All of the body, or a refusal as soon as it is too large."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most_bytes:
        raise _too_large(most_bytes)
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ApiError("json_malformed", "the body ended too early")
        part = message.get("body", b"")
        size += len(part)
        if size > most_bytes:
            raise _too_large(most_bytes)
        parts.append(part)
        more = message.get("more_body", False)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    # Besides being plain: a page of another place can't send this type without asking first.
    if body and request.headers.get("content-type") != _JSON:
        _require_json(request)
    return body


def _too_large(most_bytes: int) -> ApiError:
    return ApiError("body_too_large", f"at most {most_bytes} bytes are taken")


def _require_json(request: Incoming) -> None:
    given = request.headers.get("content-type", "")
    media_type = given.partition(";")[0].strip().lower()
    if media_type != _JSON and not media_type.endswith("+json"):
        raise ApiError("media_type", f"{media_type[:100] or 'no type'} was given")


# Made once a type: that costs more than a hundred uses of it. There are as many as the door has kinds of bodies.
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(body: bytes, wanted: type[T], *, prefix: str = "") -> T:
    decoder: msgspec.json.Decoder[T] | None = _DECODERS.get(wanted)
    if decoder is None:
        decoder = _DECODERS[wanted] = msgspec.json.Decoder(wanted)
    try:
        return bounded_json.decode(body, decoder.decode)
    except msgspec.ValidationError as error:
        raise misfit(error, prefix=prefix) from None
    except UnicodeDecodeError:
        raise ApiError("json_malformed", "a text is not UTF-8") from None
    except msgspec.DecodeError as error:
        code = "json_too_deep" if "too deeply" in str(error) else "json_malformed"
        raise ApiError(code, str(error)[:200]) from None


def check_depth(value: Any, field: str) -> None:
    """Only what the types leave open can be deep."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise ApiError("json_too_deep", f"{field}: at most {MOST_DEPTH} levels are taken", field=field)


def misfit(error: msgspec.ValidationError, *, prefix: str = "", code: str | None = None) -> ApiError:
    """From what the decoder says to a code and a field."""
    text = str(error)
    place = _PLACE.search(text)
    field = (place[1] if place else "$").removeprefix("$").removeprefix(".")
    said = _PLACE.sub("", text)
    found = "field_invalid"
    if named := _NAMED.search(said):
        found = "field_unknown" if named[1] == "unknown" else "field_missing"
        field = f"{field}.{named[2]}" if field else named[2]
    elif re.search(r"`(int|float)` [<>]|out of range", said):
        found = "number_out_of_range"
    field = ".".join(part for part in (prefix, field) if part).replace(".[", "[")
    detail = f"{field}: {said}" if field else said
    return ApiError(code or found, detail[:400], field=field[:200] or None)


def decode_query(request: Incoming, wanted: type[T]) -> T:
    """Lists may come as `a=1&a=2` or as `a=1,2`; everything else may come once. It is shared: nobody may change it."""
    if request.scope["query_string"]:
        return _query(request.query_params, wanted)
    nothing: T | None = _NOTHING_ASKED.get(wanted)
    if nothing is None:
        nothing = _NOTHING_ASKED[wanted] = _query(QueryParams(), wanted)
    return nothing


_NOTHING_ASKED: dict[Any, Any] = {}  # by the type of the query


def _query(query: QueryParams, wanted: type[T]) -> T:
    if sum(len(name) + len(value) for name, value in query.multi_items()) > MOST_QUERY_CHARS:
        raise ApiError("query_invalid", f"the query has more than {MOST_QUERY_CHARS} characters")
    listed = _list_fields(cast("Hashable", wanted))
    values: dict[str, Any] = {}
    for name in query:
        given = query.getlist(name)
        if name in listed:
            values[name] = [part for value in given for part in value.split(",") if part]
        elif len(given) == 1:
            values[name] = given[0]
        else:
            raise ApiError("query_invalid", f"{name[:100]} is given more than once", field=name[:100])
    try:
        return msgspec.convert(values, type=wanted, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error, code="query_invalid") from None


@cache
def _list_fields(wanted: Hashable) -> frozenset[str]:
    info = msgspec.inspect.type_info(wanted)
    assert isinstance(info, msgspec.inspect.StructType)  # noqa: S101 - every query is a struct
    return frozenset(field.encode_name for field in info.fields if _is_list(field.type))


def _is_list(type_: msgspec.inspect.Type) -> bool:
    if isinstance(type_, msgspec.inspect.Metadata):
        return _is_list(type_.type)
    return isinstance(type_, msgspec.inspect.ListType)


def require_plain(text: str, field: str) -> str:
    """Text that goes into the database and onto a terminal: no control characters."""
    if not text.isprintable():
        raise ApiError("field_invalid", f"{field}: has characters that can't be shown", field=field)
    return text


def preferred_wait_s(headers: Mapping[str, str]) -> float | None:
    """`Prefer: wait=10`, RFC 7240; what is not understood is ignored, as the RFC says."""
    if "prefer" not in headers:
        return None
    for preference in headers["prefer"][:1000].split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait" and re.fullmatch(r"[0-9]{1,6}", value.strip().strip('"')):
            return float(value.strip().strip('"'))
    return None
