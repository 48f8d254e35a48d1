"""Encode and decode RLP, the encoding of everything that is hashed on an EVM chain.

An item is a byte string, a natural number (big-endian, no leading zeros, zero is the empty string) or a sequence of
items. `encode` turns it into bytes, `encode_number` and `encode_string` do where the kind is known; `wrap_list` makes a list of items that are encoded already, so that a
transaction's fields are encoded once for both its signing hash and its final bytes.

`decode` takes exactly one item and refuses whatever `encode` would not have written: trailing bytes, lengths that
could have been shorter, single bytes behind a header. It raises `ValueError`, and nothing else, on any input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Item: TypeAlias = "bytes | int | Sequence[Item]"
Decoded: TypeAlias = "bytes | list[Decoded]"

_STRING = 0x80
_LIST = 0xC0
_MAX_SHORT = 55  # the longest payload whose length fits the first byte
_BYTE = tuple(bytes((value,)) for value in range(256))  # headers, built once
EMPTY_STRING, EMPTY_LIST = _BYTE[_STRING], _BYTE[_LIST]
_MAX_DEPTH = 16  # a transaction needs 4; the bound keeps hostile input off the interpreter's stack


def encode(item: Item) -> bytes:
    if isinstance(item, int):
        return encode_number(item)
    if isinstance(item, bytes):
        return encode_string(item)
    return wrap_list(b"".join([encode(part) for part in item]))


def encode_number(value: int) -> bytes:
    if 0 < value < _STRING:
        return _BYTE[value]
    size = (value.bit_length() + 7) // 8
    if value < 0 or size > _MAX_SHORT:
        return encode_string(encode_natural(value))
    return _BYTE[_STRING + size] + value.to_bytes(size, "big")


def encode_string(data: bytes) -> bytes:
    size = len(data)
    if size > _MAX_SHORT:
        return _header(_STRING, size) + data
    if size == 1 and data[0] < _STRING:
        return data
    return _BYTE[_STRING + size] + data


def wrap_list(encoded_items: bytes) -> bytes:
    return _header(_LIST, len(encoded_items)) + encoded_items


def encode_natural(value: int) -> bytes:
    if value < 0:
        raise ValueError("RLP has no negative numbers")
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


def decode_natural(data: Decoded) -> int:
    if not isinstance(data, bytes):
        raise ValueError("a number was expected, not a list")  # noqa: TRY004 - decoding raises ValueError only
    if data[:1] == b"\0":
        raise ValueError("a number has leading zeros")
    return int.from_bytes(data, "big")


def decode(data: bytes) -> Decoded:
    item, end = _decode_at(data, 0, len(data), _MAX_DEPTH)
    if end != len(data):
        raise ValueError("bytes after the end of the item")
    return item


def _header(base: int, size: int) -> bytes:
    if size <= _MAX_SHORT:
        return _BYTE[base + size]
    if size < len(_BYTE):
        return _BYTE[base + _MAX_SHORT + 1] + _BYTE[size]
    size_bytes = encode_natural(size)
    return _BYTE[base + _MAX_SHORT + len(size_bytes)] + size_bytes


def _decode_at(data: bytes, at: int, end: int, depth: int) -> tuple[Decoded, int]:
    """Decode the item at `at`, which must end by `end`; return it and its end."""
    if at >= end:
        raise ValueError("an item is missing")
    first = data[at]
    if first < _STRING:
        return data[at : at + 1], at + 1
    base = _LIST if first >= _LIST else _STRING
    start, stop = _payload(data, at, end, first - base)
    if base == _STRING:
        if stop - start == 1 and data[start] < _STRING:
            raise ValueError("a byte below 0x80 has a length prefix")
        return data[start:stop], stop
    if depth == 0:
        raise ValueError("lists are nested too deeply")
    items: list[Decoded] = []
    while start < stop:
        item, start = _decode_at(data, start, stop, depth - 1)
        items.append(item)
    return items, stop


def _payload(data: bytes, at: int, end: int, code: int) -> tuple[int, int]:
    start = at + 1
    size = code
    if code > _MAX_SHORT:
        start += code - _MAX_SHORT
        if start > end:
            raise ValueError("a length is cut short")
        size = decode_natural(data[at + 1 : start])
        if size <= _MAX_SHORT:
            raise ValueError("a length is not minimal")
    if start + size > end:
        raise ValueError("an item is cut short")
    return start, start + size
