"""Define addresses, hashes and signers in one canonical form.

Inside Fencepost an address is `0x` and 40 lower-case hex digits. Code that reads an address from outside calls
`parse_address`; the API also checks the EIP-55 checksum, which needs keccak. Two spellings of one account would become two
nonce sequences.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

Address = NewType("Address", str)
TxHash = NewType("TxHash", str)
BlockHash = NewType("BlockHash", str)

_ADDRESS = re.compile(r"0[xX][0-9a-fA-F]{40}")
_HASH = re.compile(r"0[xX][0-9a-fA-F]{64}")


def parse_address(text: str) -> Address:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"not an address: {text[:60]!r} (expected 0x and 40 hex digits)")
    return Address(text.lower())


def parse_tx_hash(text: str) -> TxHash:
    if not _HASH.fullmatch(text):
        raise ValueError(f"not a transaction hash: {text[:80]!r} (expected 0x and 64 hex digits)")
    return TxHash(text.lower())


class Signer(NamedTuple):
    """The account that sends: one nonce sequence on one chain."""

    chain_id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.chain_id}:{self.address}"
