"""Implement scheme `postgres`: every allocation locks the signer's cursor row, reuses the smallest released nonce, or moves the cursor.

An optional Redis lock keeps callers away from the row. If Redis fails, calls go straight to PostgreSQL until a probe
finds that Redis is back.

Strong: processes have no state, so any of them serves any signer and nothing is lost with one; no duplicate and no
lasting nonce gap in any fault.
Weak: one transaction per call, and callers of a busy signer wait for its row lock: the rate falls with the number of
callers. With the Redis lock they wait without a database connection; they do not wait less.
Window of loss: none. If the response to a call is lost, its nonces stay held until they expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from fencepost.domain.ids import Signer
from fencepost.nonce.port import Hold, check_request
from fencepost.nonce.redis_lock import RedisLock
from fencepost.nonce.store import NonceStore, StoredMarks


class PostgresNonces(StoredMarks):
    def __init__(self, store: NonceStore, *, lock: RedisLock | None = None) -> None:
        super().__init__(store)
        self._lock = lock

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        async with nullcontext() if self._lock is None else self._lock.hold(signer):
            return await self._store.allocate(signer, count=count, hold_for_s=hold_for_s)

    async def tend_once(self) -> int:
        return 0 if self._lock is None else int(await self._lock.redis.probe())
