"""Keys of callers: 256 random bits each, shown once, stored as a hash, with scopes, signers and a rate.

A token reads `fp_<id>_<secret>`: the id finds the row, the secret is hashed and compared in constant time. A plain
SHA-256 is enough, because nobody can guess 256 random bits; a slow hash would only slow down those who know them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from fencepost.domain.ids import Address

PREFIX = "fp"
MOST_TOKEN_CHARS = 100
_ID_BYTES = 8
_SECRET_BYTES = 32


class Scope(StrEnum):
    TX_READ = "tx:read"
    TX_WRITE = "tx:write"
    OPERATOR = "operator"
    ADMIN = "admin"


# What a scope brings along: whoever may change things may look at them.
IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.TX_READ: frozenset({Scope.TX_READ}),
    Scope.TX_WRITE: frozenset({Scope.TX_WRITE, Scope.TX_READ}),
    Scope.OPERATOR: frozenset({Scope.OPERATOR, Scope.TX_READ}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    scopes: frozenset[Scope]
    signers: frozenset[Address] | None  # None: all of them
    rate_per_s: float | None  # None: without limit
    created_at: datetime
    revoked_at: datetime | None = None

    def allows(self, scope: Scope) -> bool:
        return any(scope in IMPLIED[own] for own in self.scopes)


@dataclass(frozen=True, slots=True)
class NewKey:
    id: str
    name: str
    secret_hash: bytes
    scopes: frozenset[Scope]
    signers: frozenset[Address] | None = None
    rate_per_s: float | None = None


def mint(
    name: str,
    *,
    scopes: frozenset[Scope],
    signers: frozenset[Address] | None = None,
    rate_per_s: float | None = None,
) -> tuple[NewKey, str]:
    """A new key and its token, which nobody can give a second time."""
    key_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    return (
        NewKey(key_id, name, hash_secret(secret), scopes, signers, rate_per_s),
        f"{PREFIX}_{key_id}_{secret}",
    )


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def is_secret(secret: str, secret_hash: bytes) -> bool:
    return hmac.compare_digest(hash_secret(secret), secret_hash)


def split_token(token: str) -> tuple[str, str] | None:
    """Id and secret, or None for what can't be a token of ours."""
    if len(token) > MOST_TOKEN_CHARS or not token.isascii():
        return None
    prefix, _, rest = token.partition("_")
    key_id, _, secret = rest.partition("_")
    if prefix != PREFIX or len(key_id) != 2 * _ID_BYTES or not secret:
        return None
    return key_id, secret


class KeyStore(Protocol):
    async def add(self, key: NewKey, *, actor: str) -> ApiKey: ...

    async def revoke(self, key_id: str, *, actor: str) -> bool:
        """Whether there was one to revoke."""
        ...

    async def keys(self) -> Sequence[ApiKey]: ...

    async def find(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        """A key that stands, with the hash of its secret."""
        ...

    async def exist(self) -> bool: ...
