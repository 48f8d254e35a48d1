"""Compute the intrinsic gas of a transaction. Endpoints reject a transaction whose gas limit is lower."""

from __future__ import annotations

from fencepost.domain.transaction import Call

_TRANSACTION, _CREATION = 21_000, 32_000
_ZERO_BYTE, _OTHER_BYTE = 4, 16  # EIP-2028
_INITCODE_WORD, _WORD_BYTES = 2, 32  # EIP-3860
_ACCESS_ADDRESS, _ACCESS_KEY = 2_400, 1_900  # EIP-2930
_FLOOR_TOKEN, _TOKENS_OF_OTHER_BYTE = 10, 4  # EIP-7623

# Upper bounds of the bytes of an encoded transaction without data and access list, and of an access list's entries.
_ENVELOPE_BYTES = 256
_ENTRY_BYTES, _KEY_BYTES = 28, 33


def intrinsic_gas(call: Call) -> int:
    """Return the lowest valid gas limit of a call: EIP-2028, 2930, 3860, and the floor of EIP-7623."""
    zeros = call.data.count(0)
    others = len(call.data) - zeros
    cost = _TRANSACTION + _ZERO_BYTE * zeros + _OTHER_BYTE * others
    if call.to is None:
        cost += _CREATION + _INITCODE_WORD * -(-len(call.data) // _WORD_BYTES)
    for entry in call.access_list:
        cost += _ACCESS_ADDRESS + _ACCESS_KEY * len(entry.storage_keys)
    floor = _TRANSACTION + _FLOOR_TOKEN * (zeros + _TOKENS_OF_OTHER_BYTE * others)
    return max(cost, floor)


def encoded_bytes_max(call: Call) -> int:
    """Return an upper bound of the size of the signed transaction, in bytes."""
    listed = sum(_ENTRY_BYTES + _KEY_BYTES * len(entry.storage_keys) for entry in call.access_list)
    return len(call.data) + listed + _ENVELOPE_BYTES
