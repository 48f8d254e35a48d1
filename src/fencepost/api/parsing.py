"""Parse bodies and queries: bounded in size and depth, without unknown fields; errors name the field."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from starlette.datastructures import QueryParams

from fencepost import bounded_json
from fencepost.api.problems import ApiError
from fencepost.api.request import IncomingRequest

MAX_BODY_BYTES = 1024 * 1024
MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 500_000  # of a body; decoding more takes tenths of a second on the event loop
MAX_QUERY_CHARS = 8_192

T = TypeVar("T")

_JSON = "application/json"

_PLACE = re.compile(r" - at `([^`]*)`$")
_NAMED = re.compile(r"(unknown|required) field `([^`]*)`")


async def read_body(request: IncomingRequest, max_bytes: int, *, max_values: int = MAX_VALUES) -> bytes:
    """Read the whole body; raise `body_too_large` as soon as it exceeds a limit."""
    declared = request.headers.get("content-length", "")
    if declared and whole_number(declared, maximum=max_bytes) is None:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ApiError("json_malformed", "the body ended too early")
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        more = message.get("more_body", False)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    if size > max_values and bounded_json.max_values(body) > max_values:  # a value takes a byte at least
        raise ApiError("body_too_large", f"the limit is {max_values} list items and object members")
    # A web page of another origin can't send this type without a CORS preflight.
    if body and request.headers.get("content-type") != _JSON:
        _require_json(request)
    return body


def _too_large(max_bytes: int) -> ApiError:
    return ApiError("body_too_large", f"the limit is {max_bytes} bytes")


def _require_json(request: IncomingRequest) -> None:
    given = request.headers.get("content-type", "")
    media_type = given.partition(";")[0].strip().lower()
    if media_type != _JSON and not media_type.endswith("+json"):
        raise ApiError("media_type", f"the content type is {media_type[:100] or 'missing'}")


# One decoder per type: building one costs more than a hundred uses of it. The number of body types bounds the cache.
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(body: bytes, wanted: type[T], *, prefix: str = "") -> T:
    decoder: msgspec.json.Decoder[T] | None = _DECODERS.get(wanted)
    if decoder is None:
        decoder = _DECODERS[wanted] = msgspec.json.Decoder(wanted)
    try:
        return bounded_json.decode(body, decoder.decode)
    except msgspec.ValidationError as error:
        raise validation_problem(error, prefix=prefix) from None
    except UnicodeDecodeError:
        raise ApiError("json_malformed", "a text is not UTF-8") from None
    except msgspec.DecodeError as error:
        code = "json_too_deep" if "too deeply" in str(error) else "json_malformed"
        raise ApiError(code, str(error)[:200]) from None


def check_depth(value: Any, field: str, *, max_values: int | None = None) -> int:
    """Count the nested values of a field whose type is open; raise if they are too deep or too many."""
    level: list[Any] = [value]
    count = 0
    for _ in range(MAX_DEPTH):
        outers = [outer for outer in level if isinstance(outer, list | dict)]
        count += sum(len(outer) for outer in outers)
        if max_values is not None and count > max_values:
            raise ApiError("field_invalid", f"{field}: has more than {max_values} values", field=field)
        level = [
            inner for outer in outers for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return count
    raise ApiError("json_too_deep", f"{field}: is nested deeper than {MAX_DEPTH} levels", field=field)


def validation_problem(
    error: msgspec.ValidationError, *, prefix: str = "", code: str | None = None
) -> ApiError:
    """Convert an error of the decoder to a problem with a code and a field."""
    text = str(error)
    place = _PLACE.search(text)
    field = (place[1] if place else "$").removeprefix("$").removeprefix(".")
    reason = _PLACE.sub("", text)
    found = "field_invalid"
    if named := _NAMED.search(reason):
        found = "field_unknown" if named[1] == "unknown" else "field_missing"
        field = f"{field}.{named[2]}" if field else named[2]
    elif re.search(r"`(int|float)` [<>]|out of range", reason):
        found = "number_out_of_range"
    field = ".".join(part for part in (prefix, field) if part).replace(".[", "[")
    detail = f"{field}: {reason}" if field else reason
    return ApiError(code or found, detail[:400], field=field[:200] or None)


def decode_query(request: IncomingRequest, wanted: type[T]) -> T:
    """Decode the query. Lists are `a=1&a=2` or `a=1,2`; other parameters may appear once.

    The result may be shared between requests and must not be changed.
    """
    if request.scope["query_string"]:
        return _query(request.query_params, wanted)
    empty: T | None = _EMPTY_QUERIES.get(wanted)
    if empty is None:
        empty = _EMPTY_QUERIES[wanted] = _query(QueryParams(), wanted)
    return empty


_EMPTY_QUERIES: dict[Any, Any] = {}  # by the type of the query


def _query(query: QueryParams, wanted: type[T]) -> T:
    if sum(len(name) + len(value) for name, value in query.multi_items()) > MAX_QUERY_CHARS:
        raise ApiError("query_invalid", f"the query has more than {MAX_QUERY_CHARS} characters")
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
        found = msgspec.convert(values, type=wanted, strict=False)
    except msgspec.ValidationError as error:
        raise validation_problem(error, code="query_invalid") from None
    _require_storable_times(found)
    return found


def _require_storable_times(query: object) -> None:
    """Reject a time that is outside the years 1 to 9999 in UTC, which PostgreSQL and Python can't convert."""
    assert isinstance(query, msgspec.Struct)  # noqa: S101 - every query is a struct
    for name, encoded in zip(query.__struct_fields__, query.__struct_encode_fields__, strict=True):
        value = getattr(query, name)
        if isinstance(value, datetime):
            try:
                value.astimezone(UTC)
            except OverflowError:
                raise ApiError(
                    "query_invalid", f"{encoded}: is outside of the years 1 to 9999 in UTC", field=encoded
                ) from None


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
    """Reject control characters: the text is stored, and printed on terminals."""
    if not text.isprintable():
        raise ApiError("field_invalid", f"{field}: contains characters that are not printable", field=field)
    return text


def whole_number(text: str, *, maximum: int) -> int | None:
    """Read digits from a path or a cursor; None for anything else, or a number above `maximum`.

    The length is checked first: Python rejects the conversion of thousands of digits.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(maximum)):
        return None
    number = int(text)
    return number if number <= maximum else None


def preferred_wait_s(headers: Mapping[str, str]) -> float | None:
    """Read `Prefer: wait=10` (RFC 7240). Other preferences are ignored, as the RFC requires."""
    if "prefer" not in headers:
        return None
    for preference in headers["prefer"][:1000].split(","):
        name, _, value = preference.partition(";")[0].partition("=")
        if name.strip().lower() == "wait" and re.fullmatch(r"[0-9]{1,6}", value.strip().strip('"')):
            return float(value.strip().strip('"'))
    return None
