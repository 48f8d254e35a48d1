"""Store API keys in PostgreSQL: `sql/api_keys.sql`."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.adapters.postgres.pool import Pool
from fencepost.adapters.postgres.queries import sql
from fencepost.adapters.postgres.rows import Row
from fencepost.adapters.postgres.slow_retry import RetryingReads
from fencepost.application.api_keys import ApiKey, KeyStore, NewKey, RevokeOutcome, Scope
from fencepost.domain.ids import Address


class PostgresKeyStore(KeyStore):
    def __init__(self, pool: Pool, *, node: str) -> None:
        self._pool = pool
        self._reads = RetryingReads(pool)
        self._node = node

    async def add(self, key: NewKey, *, actor: str) -> ApiKey:
        row = await self._pool.fetchrow(
            sql("key_insert"),
            key.id,
            key.name,
            key.secret_hash,
            sorted(key.scopes),
            None if key.signers is None else sorted(key.signers),
            key.rate_per_s,
            actor,
            self._node,
        )
        assert row is not None  # noqa: S101 - INSERT … RETURNING returns the inserted row
        return _api_key(row)

    async def revoke(self, key_id: str, *, actor: str, force: bool = False) -> RevokeOutcome:
        return RevokeOutcome(await self._pool.fetchval(sql("key_revoke"), key_id, actor, self._node, force))

    async def keys(self) -> Sequence[ApiKey]:
        return [_api_key(row) for row in await self._reads.fetch(sql("keys_list"))]

    async def find(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        row = await self._reads.fetchrow(sql("key_find"), key_id)
        return None if row is None else (_api_key(row), row["secret_hash"])

    async def exist(self) -> bool:
        return bool(await self._reads.fetchval(sql("keys_exist")))


def _api_key(row: Row) -> ApiKey:
    return ApiKey(
        id=row["id"],
        name=row["name"],
        scopes=frozenset(Scope(scope) for scope in row["scopes"]),
        signers=None if row["signers"] is None else frozenset(Address(text) for text in row["signers"]),
        rate_per_s=row["rate_per_s"],
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
    )
