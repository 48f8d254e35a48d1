"""Our RLP against the `rlp` library: the same output, the same rejected inputs."""

from __future__ import annotations

import pytest
import rlp as reference
from hypothesis import example, given
from hypothesis import strategies as st

from fencepost.adapters.evm import rlp

STRINGS = st.one_of(st.binary(max_size=70), st.binary(min_size=250, max_size=300))
ITEMS = st.recursive(STRINGS, lambda inner: st.lists(inner, max_size=6), max_leaves=12)


@given(ITEMS)
@example(b"")
@example([])
@example(b"\x7f")
@example(b"\x80")
@example(b"x" * 55)
@example(b"x" * 56)
@example([b"x"] * 55)
@example([b"x"] * 56)
@example(b"x" * 255)
@example(b"x" * 256)
@example(b"x" * 70_000)
def test_encoding_and_decoding_match_the_library(item: rlp.Decoded) -> None:
    encoded = rlp.encode(item)
    assert encoded == reference.encode(item)
    assert rlp.decode(encoded) == item


@given(st.integers(min_value=0, max_value=2**300))
@example(0)
@example(127)
@example(128)
@example(2**440 - 1)
@example(2**440)
def test_numbers_are_big_endian_without_leading_zeros(number: int) -> None:
    encoded = rlp.encode(number)
    assert encoded == reference.encode(number)
    assert rlp.decode_natural(rlp.decode(encoded)) == number


@given(st.lists(ITEMS, max_size=5))
def test_a_list_can_be_wrapped_around_encoded_items(items: list[rlp.Decoded]) -> None:
    assert rlp.wrap_list(b"".join(map(rlp.encode, items))) == rlp.encode(items)


def _outcome_of_library(data: bytes) -> object:
    try:
        return reference.decode(data)
    except reference.exceptions.DecodingError:
        return ValueError


def _outcome_of_ours(data: bytes) -> object:
    try:
        return rlp.decode(data)
    except ValueError:
        return ValueError


@given(
    item=ITEMS,
    at=st.integers(min_value=0),
    byte=st.integers(min_value=0, max_value=255),
    cut=st.integers(0, 3),
)
def test_damaged_input_is_rejected_like_in_the_library(
    item: rlp.Decoded, at: int, byte: int, cut: int
) -> None:
    data = bytearray(rlp.encode(item))
    data[at % len(data)] = byte
    damaged = bytes(data[: len(data) - cut])
    assert _outcome_of_ours(damaged) == _outcome_of_library(damaged)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "missing"),
        (b"\x81\x05", "below 0x80"),
        (b"\x80\x00", "after the end"),
        (b"\x83ab", "cut short"),
        (b"\xb8", "length is cut short"),
        (b"\xb8\x37" + b"x" * 55, "not minimal"),
        (b"\xb9\x00\x38" + b"x" * 56, "leading zeros"),
        (b"\xff" + b"\xff" * 8, "cut short"),
        (b"\xc2\x82ab", "cut short"),
    ],
)
def test_errors_say_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rlp.decode(data)


def test_depth_is_bounded() -> None:
    data = b""
    for _ in range(5000):
        data = rlp.wrap_list(data)
    with pytest.raises(ValueError, match="too deeply"):
        rlp.decode(data)


def test_negative_numbers_are_rejected() -> None:
    with pytest.raises(ValueError, match="negative"):
        rlp.encode(-1)
    with pytest.raises(ValueError, match="not a list"):
        rlp.decode_natural([])
    with pytest.raises(ValueError, match="leading zeros"):
        rlp.decode_natural(b"\0\1")
