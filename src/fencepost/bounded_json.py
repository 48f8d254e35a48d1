"""Decode JSON from untrusted sources with a bounded nesting depth.

msgspec relies on Python's recursion limit to reject deep nesting. Some libraries raise that limit to a hundred thousand
on import; a few kilobytes of `[[[[` would then overflow the C stack and end the process. So the limit is lowered during
decoding. Content with fewer bytes than the limit can't be nested deeper than it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

Decoded = TypeVar("Decoded")

SAFE_RECURSION_LIMIT = 1_000


def max_values(content: bytes) -> int:
    """Return an upper bound of the number of values in a JSON text, at the cost of three scans.

    A decoded value takes up to a hundred times its bytes (`[],[],…`). Commas and brackets in strings are counted too.
    """
    return 1 + content.count(b",") + content.count(b"[") + content.count(b"{")


def decode(content: bytes, decoder: Callable[[bytes], Decoded] = msgspec.json.decode) -> Decoded:
    """Decode the content; raise `msgspec.DecodeError` if it is not JSON or is nested too deeply."""
    try:
        if len(content) <= SAFE_RECURSION_LIMIT:
            return decoder(content)
        return _decode_below_limit(content, decoder)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None


def _decode_below_limit(content: bytes, decoder: Callable[[bytes], Decoded]) -> Decoded:
    limit = sys.getrecursionlimit()
    try:
        if limit > SAFE_RECURSION_LIMIT:
            sys.setrecursionlimit(SAFE_RECURSION_LIMIT)
        return decoder(content)
    finally:
        sys.setrecursionlimit(limit)
