"""Accounts that exist for one figure only."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from fencepost.adapters.signers.local import LocalKeys


@dataclass(frozen=True, slots=True)
class Signers:
    keys: tuple[str, ...]
    addresses: tuple[str, ...]

    @classmethod
    def fresh(cls, count: int) -> Signers:
        keys = tuple("0x" + secrets.token_hex(32) for _ in range(count))
        return cls(keys, tuple(LocalKeys.from_hex(keys).addresses()))
