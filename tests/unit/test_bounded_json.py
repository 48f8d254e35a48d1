"""Absurdly nested JSON is rejected, whatever another library did to the recursion limit."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import msgspec
import pytest

from fencepost import bounded_json


@pytest.fixture
def raised_limit() -> Iterator[int]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    yield 100_000
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 990 + b"]" * 990])
def test_deep_nesting_is_rejected_and_the_limit_is_restored(raised_limit: int, content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError, match="too deeply"):
        bounded_json.decode(content)
    assert sys.getrecursionlimit() == raised_limit


def test_valid_json_is_decoded() -> None:
    assert bounded_json.decode(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    with pytest.raises(msgspec.DecodeError):
        bounded_json.decode(b"{")
