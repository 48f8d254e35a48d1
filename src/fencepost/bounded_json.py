"""JSON from strangers, decoded without trusting its depth.

msgspec counts on Python's recursion limit to stop at absurd nesting. Some libraries raise that limit to a hundred
thousand when they are imported; a few kilobytes of `[[[[` would then overflow the C stack and end the process. So the
limit is put back to a safe height for the moment of decoding. What is shorter than that height can't be deeper.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import msgspec

Decoded = TypeVar("Decoded")

SAFE_RECURSION_LIMIT = 1_000


def decode(content: bytes, decoder: Callable[[bytes], Decoded] = msgspec.json.decode) -> Decoded:
    """Raises `msgspec.DecodeError` for anything that is not JSON, too deep nesting included."""
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
