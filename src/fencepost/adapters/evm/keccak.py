"""Compute Keccak-256 as Ethereum uses it, with the padding from before FIPS 202: `hashlib.sha3_256` differs."""

from __future__ import annotations

from sha3 import keccak_256


def keccak256(data: bytes) -> bytes:
    digest: bytes = keccak_256(data).digest()
    return digest
