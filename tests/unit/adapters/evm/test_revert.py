"""Decoding of revert data, well-formed or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.adapters.evm.revert import (
    MAX_TEXT_CHARS,
    NO_REASON,
    PANICS,
    decode_revert,
    refusal_reason,
    revert_data,
)

ERROR = bytes.fromhex("08c379a0")
PANIC = bytes.fromhex("4e487b71")


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")


def error_string(text: bytes) -> bytes:
    return ERROR + word(32) + word(len(text)) + text + bytes(-len(text) % 32)


def test_an_error_string_gives_its_text() -> None:
    assert decode_revert(error_string(b"not the owner")) == "not the owner"
    assert decode_revert(error_string("zu spät".encode())) == "zu spät"
    assert decode_revert(error_string(b"")) == NO_REASON
    assert decode_revert(b"") == NO_REASON


@pytest.mark.parametrize(("code", "name"), PANICS.items())
def test_a_panic_code_has_a_name(code: int, name: str) -> None:
    assert decode_revert(PANIC + word(code)) == f"panic 0x{code:02x}: {name}"


def test_an_overflow_panic_differs_from_a_division_panic() -> None:
    assert "overflow" in decode_revert(PANIC + word(0x11))
    assert "division" in decode_revert(PANIC + word(0x12))
    assert decode_revert(PANIC + word(0x99)) == f"panic 0x{word(0x99).hex()}"


def test_custom_errors_are_shown_raw_and_short() -> None:
    assert decode_revert(bytes.fromhex("deadbeef")) == "custom error 0xdeadbeef"
    long = decode_revert(bytes.fromhex("deadbeef") + bytes(1000))
    assert long.startswith("custom error 0xdeadbeef00")
    assert long.endswith("… (1004 bytes)")
    assert len(long) < 120


@pytest.mark.parametrize(
    "data",
    [
        ERROR,
        ERROR + word(32),
        ERROR + word(2**255) + word(3) + b"abc",
        ERROR + word(32) + word(2**200) + b"abc",
        ERROR + word(32) + word(4) + b"abc",
        PANIC,
        PANIC + b"\x11",
    ],
)
def test_malformed_data_is_shown_raw(data: bytes) -> None:
    assert decode_revert(data).startswith(f"custom error 0x{data[:4].hex()}")


def test_long_or_unprintable_reasons_are_shortened_and_escaped() -> None:
    assert len(decode_revert(error_string(b"a" * 10_000))) == MAX_TEXT_CHARS
    assert decode_revert(error_string(b"two\nlines\x1b[31m")) == "two lines [31m"
    assert decode_revert(error_string(b"\xff\xfe!")).endswith("!")


@given(st.sampled_from([b"", ERROR, PANIC]), st.binary(max_size=200))
def test_no_input_raises(selector: bytes, body: bytes) -> None:
    text = decode_revert(selector + body)
    assert 0 < len(text) <= MAX_TEXT_CHARS
    assert text.isprintable()


@pytest.mark.parametrize(
    ("answer", "data"),
    [
        ("0x08c379a0", ERROR),
        ("0x", b""),
        ("Reverted 0x08c379a0", ERROR),
        ({"data": "0x08c379a0", "message": "x"}, ERROR),
        ({"data": {"data": "0x08c379a0"}}, ERROR),
        ({"result": "0x08c379a0"}, ERROR),
        ({"data": {"data": {"data": {"data": {"data": "0x00"}}}}}, None),
        ("0x0", None),
        ("0xzz", None),
        ("no hex", None),
        (None, None),
        (7, None),
        ([], None),
        ({}, None),
    ],
)
def test_revert_data_is_found_wherever_endpoints_put_it(answer: object, data: bytes | None) -> None:
    assert revert_data(answer) == data


@pytest.mark.parametrize(
    ("message", "code", "data", "reason"),
    [
        ("execution reverted", 3, "0x", NO_REASON),
        ("execution reverted: not the owner", 3, None, "not the owner"),
        ("execution reverted", -32000, "0x" + error_string(b"no").hex(), "no"),
        ("VM execution error.", -32015, "Reverted 0x" + error_string(b"no").hex(), "no"),
        ("invalid opcode: INVALID", -32000, None, "invalid opcode: INVALID"),
        ("out of gas", -32000, None, "out of gas"),
        ("execution reverted: insufficient funds", 3, None, "insufficient funds"),
        ("insufficient funds for gas * price + value", -32000, None, None),
        ("header not found", -32000, None, None),
        ("", None, None, None),
    ],
)
def test_a_rejection_is_classified_as_revert_or_not(
    message: str, code: int | None, data: object, reason: str | None
) -> None:
    assert refusal_reason(message, rpc_code=code, data=data) == reason
