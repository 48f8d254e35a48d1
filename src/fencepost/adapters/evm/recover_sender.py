"""Recover the sender of a raw transaction of any type.

`decode_signed` decodes all fields of the types that Fencepost sends. This module recovers only the sender, also of other
types: from before EIP-155, with blobs (type 3) and with delegations (type 4). All typed transactions end with parity, r and
s, and the signature covers the type and the list of the fields before them. A transaction that can't be decoded raises
`ValueError`.
"""

from __future__ import annotations

from typing import Final

from coincurve import PublicKey

from fencepost.adapters.evm import rlp
from fencepost.adapters.evm.encoding import address_of
from fencepost.adapters.evm.keccak import keccak256
from fencepost.domain.ids import Address

MAX_BYTES: Final = 2 * 1024 * 1024  # blobs travel along with their transaction
_FIRST_LIST_CODE: Final = 0xC0
_LEGACY_FIELDS: Final = 9
_BEFORE_EIP155: Final = (27, 28)
_EIP155_V: Final = 35


def sender_of(raw: bytes) -> Address:
    if not 0 < len(raw) <= MAX_BYTES:
        raise ValueError(f"a raw transaction has 1 to {MAX_BYTES} bytes")
    digest, parity, r, s = _legacy(raw) if raw[0] >= _FIRST_LIST_CODE else _typed(raw)
    if parity not in (0, 1):
        raise ValueError("the signature's parity is neither 0 nor 1")
    if max(r.bit_length(), s.bit_length()) > 256:  # noqa: PLR2004 - a word of the chain
        raise ValueError("the signature is out of range")
    signature = r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes((parity,))
    try:
        return address_of(PublicKey.from_signature_and_message(signature, digest, hasher=None))
    except Exception as error:
        # The library raises a bare Exception for a signature that fits no key.
        raise ValueError("the signature matches no key") from error


def _typed(raw: bytes) -> tuple[bytes, int, int, int]:
    fields = _list(rlp.decode(raw[1:]))
    if fields and isinstance(fields[0], list):  # with its blobs around it
        fields = fields[0]
    if len(fields) <= 3:  # noqa: PLR2004 - the signature alone
        raise ValueError("the transaction has too few fields")
    signed = keccak256(raw[:1] + rlp.encode(fields[:-3]))
    parity, r, s = map(rlp.decode_natural, fields[-3:])
    return signed, parity, r, s


def _legacy(raw: bytes) -> tuple[bytes, int, int, int]:
    fields = _list(rlp.decode(raw))
    if len(fields) != _LEGACY_FIELDS:
        raise ValueError("a transaction of type 0 has nine fields")
    v, r, s = map(rlp.decode_natural, fields[-3:])
    if v in _BEFORE_EIP155:
        return keccak256(rlp.encode(fields[:-3])), v - _BEFORE_EIP155[0], r, s
    chain_id, parity = divmod(v - _EIP155_V, 2)
    if chain_id < 0:
        raise ValueError("the signature has no chain id")
    return keccak256(rlp.encode([*fields[:-3], chain_id, b"", b""])), parity, r, s


def _list(item: rlp.Decoded) -> list[rlp.Decoded]:
    if not isinstance(item, list):
        raise ValueError("a list was expected")  # noqa: TRY004 - decoding raises ValueError only
    return item
