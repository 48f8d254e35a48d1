"""Define API keys: 256 random bits each, shown once, stored as a hash, with scopes, signers and a rate.

A token has the form `fp_<id>_<secret>`. The id finds the row; the secret is hashed and compared in constant time. A plain
SHA-256 is enough, because 256 random bits can't be guessed; a slow hash would only slow down legitimate callers.
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
MAX_TOKEN_CHARS = 100
_ID_BYTES = 8
_SECRET_BYTES = 32


class Scope(StrEnum):
    TX_READ = "tx:read"
    TX_WRITE = "tx:write"
    RPC_EXPENSIVE = "rpc:expensive"
    OPERATOR = "operator"
    ADMIN = "admin"


# The scopes that a scope includes: a key that may change something may also read it.
IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.TX_READ: frozenset({Scope.TX_READ}),
    Scope.TX_WRITE: frozenset({Scope.TX_WRITE, Scope.TX_READ}),
    Scope.RPC_EXPENSIVE: frozenset({Scope.RPC_EXPENSIVE, Scope.TX_READ}),
    Scope.OPERATOR: frozenset({Scope.OPERATOR, Scope.TX_READ, Scope.RPC_EXPENSIVE}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True, slots=True)
class ApiKey:
    id: str
    name: str
    scopes: frozenset[Scope]
    signers: frozenset[Address] | None  # None: all signers
    rate_per_s: float | None  # None: no limit
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
    """Create a key and its token. The token can't be recovered later."""
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
    """Split a token into id and secret; return None if it does not have the form of a token."""
    if len(token) > MAX_TOKEN_CHARS or not token.isascii():
        return None
    prefix, _, rest = token.partition("_")
    key_id, _, secret = rest.partition("_")
    if prefix != PREFIX or len(key_id) != 2 * _ID_BYTES or not secret:
        return None
    return key_id, secret


class RevokeOutcome(StrEnum):
    REVOKED = "revoked"
    UNKNOWN = "unknown"  # no such key, or it was already revoked
    LAST_ADMIN = "last_admin"  # kept: no other admin key covers its signers


class KeyStore(Protocol):
    async def add(self, key: NewKey, *, actor: str) -> ApiKey: ...

    async def revoke(self, key_id: str, *, actor: str, force: bool = False) -> RevokeOutcome:
        """Revoke a key. The last admin key is kept unless `force` is set."""
        ...

    async def keys(self) -> Sequence[ApiKey]: ...

    async def find(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        """Return a key that is not revoked, with the hash of its secret."""
        ...

    async def exist(self) -> bool:
        """Return whether a key was ever created, including revoked ones."""
        ...
