"""Decode why a call reverted, from its revert data or the endpoint's error.

Contract: nothing here raises. Any contract can write the bytes, so their lengths are checked, and every text is bounded
and printable. Bytes that start like `Error(string)` or `Panic(uint256)` but are malformed are shown in hex.
"""

from __future__ import annotations

import re
from typing import Final

MAX_TEXT_CHARS: Final = 200
_MAX_RAW_BYTES: Final = 36  # the selector and the first word tell which custom error it was
_WORD: Final = 32
_ERROR_SELECTOR: Final = bytes.fromhex("08c379a0")
_PANIC_SELECTOR: Final = bytes.fromhex("4e487b71")
_MAX_NESTING: Final = 4
_HEX: Final = re.compile(r"0x([0-9a-fA-F]*)\Z")

# Texts that say that the code ran and failed, not that the endpoint refused to run it.
_EXECUTED: Final = re.compile(
    r"revert|VM execution error|VM exception|EVM error|invalid ?(?:fe)? ?opcode|opcode .{0,20}not defined|bad ?instruction"
    r"|invalid jump|out ?of ?gas|gas required exceeds|intrinsic ?gas|floor data (?:gas )?cost|requires at least \d+ gas"
    r"|stack (?:underflow|overflow|limit reached)|write protection|contract address collision"
    r"|max (?:init)?code size exceeded|init ?code too large|invalid code: must not begin with 0xef"
    r"|could not be completed due to an exception",
    re.IGNORECASE,
)
_REASON_IN_TEXT: Final = re.compile(r"(?:execution|transaction) reverted:?\s*(.*)", re.IGNORECASE)
_REVERT_RPC_CODE: Final = 3

NO_REASON: Final = "reverted without a reason"

PANICS: Final = {
    0x00: "generic compiler panic",
    0x01: "assertion failed",
    0x11: "arithmetic overflow or underflow",
    0x12: "division or modulo by zero",
    0x21: "value out of range for an enum",
    0x22: "storage byte array is wrongly encoded",
    0x31: "pop on an empty array",
    0x32: "index out of bounds",
    0x41: "too much memory allocated",
    0x51: "call of an uninitialised internal function",
}


def decode_revert(data: bytes) -> str:
    """Describe revert data in one line: the contract's text, the name of the panic, or the raw bytes."""
    if not data:
        return NO_REASON
    selector, body = data[:4], data[4:]
    if selector == _ERROR_SELECTOR and (text := _string(body)) is not None:
        return _printable(text) or NO_REASON
    if selector == _PANIC_SELECTOR and len(body) >= _WORD:
        code = int.from_bytes(body[:_WORD], "big")
        return f"panic 0x{code:02x}: {PANICS[code]}" if code in PANICS else f"panic {_hex_text(body[:_WORD])}"
    return f"custom error {_hex_text(data)}"


def revert_data(answer: object) -> bytes | None:
    """Find the revert bytes in the `data` of a JSON-RPC error, wherever the node put them; None if there are none.

    geth, besu and anvil: `"0x…"`. parity and old nethermind: `"Reverted 0x…"`. hardhat: `{"data": "0x…"}`, nested.
    """
    for _ in range(_MAX_NESTING):
        if isinstance(answer, dict):
            answer = answer.get("data", answer.get("result"))
            continue
        break
    if not isinstance(answer, str):
        return None
    found = _HEX.search(answer)
    if found is None or len(found[1]) % 2:
        return None
    return bytes.fromhex(found[1])


def refusal_reason(message: str, *, rpc_code: int | None, data: object) -> str | None:
    """Return why a dry run failed in the code; None if the endpoint's error has another cause."""
    if rpc_code != _REVERT_RPC_CODE and not _EXECUTED.search(message):
        return None
    if found := revert_data(data):
        return decode_revert(found)
    if match := _REASON_IN_TEXT.search(message):
        return _printable(match[1]) or NO_REASON
    return _printable(message) or NO_REASON


def _string(body: bytes) -> str | None:
    """Decode the only argument of an ABI-encoded call as a string; return None if offset or length are out of bounds."""
    offset = int.from_bytes(body[:_WORD], "big")
    if len(body) < 2 * _WORD or offset > len(body) - _WORD:
        return None
    start = offset + _WORD
    length = int.from_bytes(body[offset:start], "big")
    if length > len(body) - start:
        return None
    # UTF-8 takes at most four bytes per character; the rest would be cut anyway.
    return body[start : start + min(length, 4 * MAX_TEXT_CHARS)].decode("utf-8", errors="replace")


def _printable(text: str) -> str:
    line = "".join(char if char.isprintable() else " " for char in text).strip()
    return line if len(line) <= MAX_TEXT_CHARS else line[: MAX_TEXT_CHARS - 1] + "…"


def _hex_text(data: bytes) -> str:
    if len(data) <= _MAX_RAW_BYTES:
        return f"0x{data.hex()}"
    return f"0x{data[:_MAX_RAW_BYTES].hex()}… ({len(data)} bytes)"
