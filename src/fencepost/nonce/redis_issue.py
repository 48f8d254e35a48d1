"""Implement scheme `redis_issue`: Redis counts, PostgreSQL stores.

INCRBY issues a number; inserting its row in PostgreSQL makes it a held nonce. A number that is already stored (Redis lost its
last writes, or another process allocated from the database meanwhile) is skipped, and the counter is raised to the next
stored nonce. Without Redis, PostgreSQL issues and stores; when a probe finds that Redis is back, its counter is raised first.
The numbers of many callers share a pipeline, their rows a statement.

Strong: any process serves any signer, no caller waits for a row lock, and nothing is lost with Redis. No fault of Redis
causes a duplicate, not even if a single process can't reach it while others can.
Weak: every nonce is still a durable row before it is returned, so PostgreSQL limits the rate. A process that dies between
the two steps leaves a nonce gap: a number that was issued and never stored.
Window of loss: none. `reclaim_expired` finds such gaps and releases them once `heal_after_s` has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Address, Signer
from fencepost.errors import NonceUnavailable
from fencepost.nonce.port import Hold, check_request
from fencepost.nonce.redis_client import RedisClient, RedisDown
from fencepost.nonce.store import NonceStore, StoredMarks, holds

# A missing counter is not used: the caller raises it to the next stored nonce and retries.
_ISSUE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
return redis.call('INCRBY', KEYS[1], ARGV[1])
"""
_SYNC = """
if tonumber(redis.call('GET', KEYS[1]) or '-1') < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1
"""
_TRIES = 20
MAX_NUMBERS_PER_PIPELINE = 200
PARALLEL_PIPELINES = 2
MAX_OCCUPIED_PER_COMMIT = 500
PARALLEL_OCCUPATIONS = 2

_Occupation = tuple[Signer, tuple[int, ...], UUID, float]


class RedisIssueNonces(StoredMarks):
    def __init__(self, store: NonceStore, redis: RedisClient) -> None:
        super().__init__(store)
        self._redis = redis
        self._synced: dict[Signer, int] = {}  # the client's generation when the counter was raised
        self._gaps: set[Signer] = set()  # signers that may have released nonces
        self._numbers: GroupCommit[tuple[Any, ...], Any] = GroupCommit(
            redis.pipeline, max_items=MAX_NUMBERS_PER_PIPELINE, parallel=PARALLEL_PIPELINES
        )
        self._occupations = GroupCommit(
            self._occupy_batch, max_items=MAX_OCCUPIED_PER_COMMIT, parallel=PARALLEL_OCCUPATIONS
        )

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        await self._store.open(signer)
        got = await self._reuse(signer, count, hold_for_s)
        try:
            await self._fill(got, signer, count, hold_for_s)
        except NonceUnavailable:  # the caller receives no nonce, so release those that were stored
            await self._store.release(got)
            self._gaps.add(signer)
            raise
        return got

    async def _fill(self, got: list[Hold], signer: Signer, count: int, hold_for_s: float) -> None:
        for _ in range(_TRIES):
            if len(got) == count:
                return
            try:
                issued = await self._issue(signer, count - len(got))
            except RedisDown:
                got += await self._store.allocate(signer, count=count - len(got), hold_for_s=hold_for_s)
                return
            token = uuid4()
            occupied = await self._occupations.submit((signer, issued, token, hold_for_s))
            got += holds(signer, occupied, token)
            if len(occupied) < len(issued):
                self._synced.pop(signer, None)  # Redis is behind the database
        raise NonceUnavailable(f"the counter of {signer.address} in Redis stays behind the database: retry")

    async def _reuse(self, signer: Signer, count: int, hold_for_s: float) -> list[Hold]:
        if signer not in self._gaps and signer in self._synced:
            return []
        got = await self._store.allocate_released(signer, count=count, hold_for_s=hold_for_s)
        if len(got) < count:
            self._gaps.discard(signer)
        return got

    async def _issue(self, signer: Signer, count: int) -> tuple[int, ...]:
        key = f"fencepost:nonce:next:{signer}"
        generation = self._redis.generation
        if self._synced.get(signer) != generation:
            await self._sync_counter(key, signer)
        past = await self._eval(_ISSUE, key, count)
        if past < 0:  # Redis has lost the counter
            await self._sync_counter(key, signer)
            past = await self._eval(_ISSUE, key, count)
        if past < count:
            raise RedisDown("Redis loses its counters: check its eviction policy")
        return tuple(range(past - count, past))

    async def _sync_counter(self, key: str, signer: Signer) -> None:
        generation = self._redis.generation
        stored_next = await self._store.known_next(signer)
        await self._eval(_SYNC, key, stored_next)
        self._synced[signer] = generation

    async def _eval(self, script: str, key: str, number: int) -> int:
        return int(await self._numbers.submit(("EVAL", script, 1, key, number)))

    async def _occupy_batch(self, batch: Sequence[_Occupation]) -> Sequence[list[int]]:
        flat = [
            (signer, nonce, token, hold_for_s)
            for signer, nonces, token, hold_for_s in batch
            for nonce in nonces
        ]
        got = await self._store.pool.fetch(
            sql("nonce_occupy"),
            [signer.chain_id for signer, _, _, _ in flat],
            [signer.address for signer, _, _, _ in flat],
            [nonce for _, nonce, _, _ in flat],
            [token for _, _, token, _ in flat],
            [hold_for_s for _, _, _, hold_for_s in flat],
        )
        # Redis may have issued a number twice in one batch: the stored token tells which caller got it.
        held = {(Signer(row["chain_id"], Address(row["signer"])), row["nonce"], row["hold"]) for row in got}
        return [
            [nonce for nonce in nonces if (signer, nonce, token) in held]
            for signer, nonces, token, _ in batch
        ]

    async def mark_recyclable(self, hold: Hold) -> None:
        await super().mark_recyclable(hold)
        self._gaps.add(hold.signer)

    async def reclaim_expired(self, signer: Signer) -> int:
        released = await super().reclaim_expired(signer)
        if released:
            self._gaps.add(signer)
        return released

    async def tend_once(self) -> int:
        """Probe Redis if it was down, and find signers with nonces that other processes released."""
        with_gaps = await self._store.with_gaps(list(self._synced))
        self._gaps |= with_gaps
        return int(await self._redis.probe()) + len(with_gaps)

    async def close(self) -> None:
        await self._occupations.drain()
        await super().close()
