"""Scheme `postgres`: every allocation locks the signer's cursor row, reuses the smallest gap, or moves the cursor.

A Redis lock may stand in front of the row; when Redis fails, calls go straight to PostgreSQL, and back when a probe
finds it again.

Strong: no process keeps anything, so any of them serves any signer and nothing is lost with one; no duplicate and no
lasting hole in any fault.
Weak: one transaction a call, and a queue at the row of a hot signer: its rate falls with the number of callers. The
Redis lock keeps that queue out of the database's connections; it does not shorten it.
Window of loss: none. A call whose answer was lost leaves its nonces held until their time is over.
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
