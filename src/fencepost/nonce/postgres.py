"""Scheme `postgres`: every allocation locks the signer's cursor row, reuses the smallest gap, or moves the cursor.

Strong and plain: no process keeps anything, any of them may serve any signer, at the price of one transaction a call
and of a queue at the row of a hot signer. A Redis lock may stand in front of that queue; when Redis fails, calls go
straight to PostgreSQL, and back when a probe finds it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from fencepost.domain.ids import Signer
from fencepost.nonce.port import Hold, check_request
from fencepost.nonce.records import MarksInRecords, Records
from fencepost.nonce.redis_lock import RedisLock


class PostgresNonces(MarksInRecords):
    def __init__(self, records: Records, *, lock: RedisLock | None = None) -> None:
        super().__init__(records)
        self._lock = lock

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        async with nullcontext() if self._lock is None else self._lock.hold(signer):
            return await self._records.take(signer, count=count, hold_for_s=hold_for_s)

    async def tend_once(self) -> int:
        return 0 if self._lock is None else int(await self._lock.link.probe())
