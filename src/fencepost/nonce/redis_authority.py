"""Decide whether Redis or PostgreSQL allocates for a signer of `redis_full`; PostgreSQL stores the decision for all processes.

A process that can't reach Redis must not allocate under the row lock while others allocate from Redis: they would allocate
the same nonces. So it records in the signer's row that Redis is off: from a time shortly ahead, until some time after the
last such record. It allocates nothing before Redis is off. A process that allocates from Redis learns of it in time, because
it reads the row at least every `max_status_age_s` or allocates nothing; it then copies the states of Redis to PostgreSQL and
uses the row lock too. Row locks are used only while Redis is off, Redis is loaded only while it is on, and the same row lock
orders the two.

Switching Redis off begins a new epoch. Scripts name the epoch, so a Redis that was loaded in an older epoch, or restored
from an older copy, allocates nothing until it is reloaded from PostgreSQL.

One case is not covered: a nonce that Redis allocated and that no process copied before Redis was off, because its process
died, or lost PostgreSQL too, in that time. That is the window of loss that `redis_full` has anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from asyncpg import Record

from fencepost.adapters.postgres.database import Connection
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Address, Signer
from fencepost.nonce import redis_scripts
from fencepost.nonce.redis_client import RedisClient, RedisDown
from fencepost.nonce.store import NonceStore
from fencepost.nonce.write_behind import WriteBehind

MAX_STATUS_AGE_S = 0.5
MAX_LOADED = 5000
# Multiples of `max_status_age_s`: the notice before Redis is off, and how long it stays off after the last record.
_OFF_BEGINS_AFTER = 2
_OFF_LASTS = 8
_TRIES = 10


@dataclass(slots=True)
class _CachedStatus:
    """The cached status of a signer for which Redis is on."""

    epoch: int
    generation: int  # of the Redis client
    until_s: float  # when the status has to be read again


@dataclass(frozen=True, slots=True)
class _RedisStatus:
    """The status of Redis in the signer's row."""

    epoch: int
    off_begins_in_s: float
    off_ends_in_s: float

    @property
    def is_off(self) -> bool:
        return self.off_ends_in_s > 0

    @property
    def has_begun(self) -> bool:
        return self.is_off and self.off_begins_in_s <= 0


class RedisAuthority:
    def __init__(
        self,
        store: NonceStore,
        redis: RedisClient,
        write_behind: WriteBehind,
        *,
        past: Mapping[Signer, int],
        max_status_age_s: float = MAX_STATUS_AGE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it; `past` is the first nonce above all that this process allocated.

        A Redis whose next nonce is lower has lost data.
        """
        self._store = store
        self._redis = redis
        self._write_behind = write_behind
        self._past = past
        self._max_status_age_s = max_status_age_s
        self._now_s = now_s
        self._cached: dict[Signer, _CachedStatus] = {}
        self._off_until_s: dict[Signer, float] = {}  # from the signer's row: no need to read it again before
        self._scripts_at = -1  # the client's generation when the scripts were loaded into Redis
        self._refreshing = asyncio.Lock()
        self._loading: defaultdict[Signer, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def loaded(self) -> list[Signer]:
        return list(self._cached)

    def epoch(self, signer: Signer) -> int:
        """Return the epoch that scripts have to name, or -1, which no Redis has, if it is unknown."""
        cached = self._cached.get(signer)
        return -1 if cached is None else cached.epoch

    def forget(self, signer: Signer) -> None:
        """Forget the cached status, because Redis has changed: it is read again before the next use."""
        self._cached.pop(signer, None)

    async def is_on(self, signer: Signer) -> bool:
        """Return whether Redis may allocate for the signer; load it first if necessary. Raises `RedisDown`."""
        if not self._redis.is_up:
            return False
        if self._is_current(signer):
            return True
        if self.epoch(signer) >= 0:
            async with self._refreshing:  # callers that wait here use the status that the first one read
                if not self._is_current(signer):
                    await self.refresh()
        async with self._loading[signer]:
            if self._is_current(signer):
                return True
            if self._off_until_s.get(signer, 0.0) > self._now_s():
                return False
            return await self._load(signer)

    def _is_current(self, signer: Signer) -> bool:
        cached = self._cached.get(signer)
        return (
            cached is not None
            and cached.generation == self._redis.generation
            and self._now_s() < cached.until_s
        )

    async def refresh(self) -> None:
        """Refresh the status of all loaded signers; copy the states of those for which Redis is off."""
        signers, began_s = self.loaded, self._now_s()
        if not signers:
            return
        switched_off = []
        for signer, status in (await self._read_statuses(signers)).items():
            cached = self._cached.get(signer)
            if cached is None:
                continue
            if status.is_off or status.epoch != cached.epoch:
                del self._cached[signer]
                switched_off.append(signer)
            else:
                cached.until_s = max(cached.until_s, began_s + self._max_status_age_s)
        await self._write_behind.flush(switched_off)

    # ---- Redis is on

    async def _load(self, signer: Signer) -> bool:
        """Read the status, and reload Redis from PostgreSQL if it is behind; return False if Redis is off."""
        generation = self._redis.generation
        if self._scripts_at != generation:
            await self._redis.pipeline([("SCRIPT", "LOAD", script.text) for script in redis_scripts.ALL])
            self._scripts_at = generation
        for _ in range(_TRIES):
            began_s = self._now_s()
            status, stored, _ = await self._read_stored(signer, slots=0)
            if status.is_off:
                self._off_until_s[signer] = began_s + status.off_ends_in_s
                await self._write_behind.flush([signer])
                return False
            in_redis = await self._redis.command(
                "HMGET", redis_scripts.meta_key(signer), "next", "revision", "epoch"
            )
            is_behind = (
                in_redis[2] != str(status.epoch)
                or int(in_redis[0]) < stored["next"]
                or int(in_redis[1]) < stored["revision"]
            )
            if not is_behind or await self._reload(signer, status.epoch, expected_revision=in_redis[1]):
                self._cached[signer] = _CachedStatus(
                    status.epoch, generation, began_s + self._max_status_age_s
                )
                return True
        raise RedisDown("other processes change Redis while it is being loaded")

    async def _reload(self, signer: Signer, epoch: int, *, expected_revision: str | None) -> bool:
        """Copy the states of Redis to PostgreSQL, then reload it; return False if one of them changed meanwhile."""
        await self._write_behind.flush([signer])
        status, stored, rows = await self._read_stored(signer, slots=MAX_LOADED)
        if status.is_off or status.epoch != epoch:
            return False
        state: list[Any] = [
            expected_revision or "",
            stored["next"],
            max(stored["revision"], int(expected_revision or 0)) + 1,
            await self._store.chain_nonce(signer),
            epoch,
        ]
        for row in rows:
            token = row["hold"].hex if row["hold"] else ""
            remaining_ms = int(row["expires_in_s"] * 1000)
            state += [row["nonce"], row["state"], token, remaining_ms, row["tx_hash"] or ""]
        return bool(await self._redis.command(*redis_scripts.RELOAD.call(signer, *state)))

    async def _read_stored(
        self, signer: Signer, *, slots: int
    ) -> tuple[_RedisStatus, dict[str, int], Sequence[Record]]:
        """Read the status, the next nonce and live slots under the row lock, after all allocations made under it."""
        key = signer.chain_id, signer.address
        async with self._store.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql("nonce_cursor_lock"), *key)
            status = await self._read_status(connection, signer)
            stored = {
                "next": max(
                    await connection.fetchval(sql("nonce_known_next"), *key), self._past.get(signer, 0)
                ),
                "revision": await connection.fetchval(sql("nonce_last_revision"), *key),
            }
            rows = await connection.fetch(sql("nonce_live_slots"), *key, slots) if slots else []
        return status, stored, rows

    # ---- Redis is off

    @asynccontextmanager
    async def without_redis(self, signer: Signer) -> AsyncIterator[Connection | None]:
        """Lock the signer's row while Redis is off for all processes; yield None if Redis is on and reachable."""
        for _ in range(_TRIES):
            async with self._store.pool.acquire() as connection, connection.transaction():
                await connection.execute(sql("nonce_cursor_lock"), signer.chain_id, signer.address)
                if not self._redis.is_up:
                    await connection.execute(
                        sql("nonce_redis_off"),
                        signer.chain_id,
                        signer.address,
                        self._max_status_age_s * _OFF_BEGINS_AFTER,
                        self._max_status_age_s * _OFF_LASTS,
                    )
                status = await self._read_status(connection, signer)
                if status.has_begun:
                    yield connection
                    return
            if not status.is_off:
                break
            await asyncio.sleep(status.off_begins_in_s)
        self._off_until_s.pop(signer, None)
        yield None

    async def is_off(self, signer: Signer) -> bool:
        """Return whether Redis is off for all processes."""
        return (await self._read_statuses([signer]))[signer].has_begun

    async def stay_off(self, signer: Signer) -> bool:
        """Wait until Redis is off for all processes, for long enough to write; return False if it is on instead."""
        for _ in range(_TRIES):
            status = (await self._read_statuses([signer]))[signer]
            if status.has_begun and status.off_ends_in_s > self._max_status_age_s:
                return True
            if not self._redis.is_up:
                # Record that Redis is off, and wait until that is in effect.
                async with self.without_redis(signer):
                    continue
            if status.has_begun or not status.is_off:
                await asyncio.sleep(max(status.off_ends_in_s, 0.0))
                break
            await asyncio.sleep(status.off_begins_in_s)
        self._off_until_s.pop(signer, None)
        return False

    async def _read_status(self, connection: Connection, signer: Signer) -> _RedisStatus:
        row = await connection.fetchrow(sql("nonce_redis_status"), [signer.chain_id], [signer.address])
        return _status(row)

    async def _read_statuses(self, signers: Sequence[Signer]) -> dict[Signer, _RedisStatus]:
        rows = await self._store.pool.fetch(
            sql("nonce_redis_status"), [s.chain_id for s in signers], [s.address for s in signers]
        )
        return {Signer(row["chain_id"], Address(row["signer"])): _status(row) for row in rows}


def _status(row: Record | None) -> _RedisStatus:
    if row is None:
        raise RedisDown("the signer has no nonce cursor in the database")
    return _RedisStatus(row["redis_epoch"], row["begins_in_s"], row["ends_in_s"])
