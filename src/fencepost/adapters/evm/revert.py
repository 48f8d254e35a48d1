"""Why a call reverted, from the bytes it left behind.

Contract: nothing here raises, whatever a node may answer. The bytes are written by
contracts of strangers, so lengths in them are checked against what is there, and every text that comes out is bounded
and printable. Bytes that claim to be `Error(string)` or `Panic(uint256)` and are malformed are shown raw.
"""

from __future__ import annotations

import re
from typing import Final

TEXT_CHARS_MAX: Final = 200
_RAW_BYTES_MAX: Final = 36  # the selector and the first word tell which custom error it was
_WORD: Final = 32
_ERROR_SELECTOR: Final = bytes.fromhex("08c379a0")
_PANIC_SELECTOR: Final = bytes.fromhex("4e487b71")
_NESTING_MAX: Final = 4
_HEX: Final = re.compile(r"0x([0-9a-fA-F]*)\Z")

# What says that the code ran and failed, as opposed to a call the node wouldn't run.
_EXECUTED: Final = re.compile(
    r"revert|VM execution error|VM exception|invalid opcode|invalid jump|out of gas", re.IGNORECASE
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
    """One line for a person: the contract's own text, the panic's name, or the raw bytes."""
    if not data:
        return NO_REASON
    selector, body = data[:4], data[4:]
    if selector == _ERROR_SELECTOR and (text := _string(body)) is not None:
        return _printable(text) or NO_REASON
    if selector == _PANIC_SELECTOR and len(body) >= _WORD:
        code = int.from_bytes(body[:_WORD], "big")
        return f"panic 0x{code:02x}: {PANICS[code]}" if code in PANICS else f"panic {_shown(body[:_WORD])}"
    return f"custom error {_shown(data)}"


def revert_data(answer: object) -> bytes | None:
    """The revert bytes in the `data` of a JSON-RPC error, wherever the node put them; None if there are none.

    geth, besu and anvil: `"0x…"`. parity and old nethermind: `"Reverted 0x…"`. hardhat: `{"data": "0x…"}`, nested.
    """
    for _ in range(_NESTING_MAX):
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
    """Why the code failed, from a node's refusal of a dry run; None when the refusal was about something else."""
    if rpc_code != _REVERT_RPC_CODE and not _EXECUTED.search(message):
        return None
    if found := revert_data(data):
        return decode_revert(found)
    if in_text := _REASON_IN_TEXT.search(message):
        return _printable(in_text[1]) or NO_REASON
    return _printable(message) or NO_REASON


def _string(body: bytes) -> str | None:
    """The only argument of an ABI-encoded call, if it is a string; None when offset or length lead outside."""
    offset = int.from_bytes(body[:_WORD], "big")
    if len(body) < 2 * _WORD or offset > len(body) - _WORD:
        return None
    start = offset + _WORD
    length = int.from_bytes(body[offset:start], "big")
    if length > len(body) - start:
        return None
    # Four bytes a character is the most UTF-8 takes; what lies behind is cut anyway.
    return body[start : start + min(length, 4 * TEXT_CHARS_MAX)].decode("utf-8", errors="replace")


def _printable(text: str) -> str:
    line = "".join(char if char.isprintable() else " " for char in text).strip()
    return line if len(line) <= TEXT_CHARS_MAX else line[: TEXT_CHARS_MAX - 1] + "…"


def _shown(data: bytes) -> str:
    if len(data) <= _RAW_BYTES_MAX:
        return f"0x{data.hex()}"
    return f"0x{data[:_RAW_BYTES_MAX].hex()}… ({len(data)} bytes)"
