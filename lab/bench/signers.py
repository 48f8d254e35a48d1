"""Fresh accounts for one figure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from fencepost.adapters.signers.local import LocalKeys


@dataclass(frozen=True, slots=True)
class Signers:
    """Private keys and their addresses."""

    keys: tuple[str, ...]
    addresses: tuple[str, ...]

    @classmethod
    def fresh(cls, count: int) -> Signers:
        """Generate accounts."""
        keys = tuple("0x" + secrets.token_hex(32) for _ in range(count))
        return cls(keys, tuple(LocalKeys.from_hex(keys).addresses()))
