"""Implement scheme `redis_full`: Redis allocates and holds in one script; PostgreSQL is updated in batches by write-behind.

Callers that wait for the same signer share a script. Without Redis, PostgreSQL allocates under the row lock, above all stored
nonces and all nonces that this process allocated; `redis_authority` ensures that all processes use the same one of the two,
even if a single one can't reach Redis. When Redis is back, its states are first copied to PostgreSQL, then Redis is reloaded
from PostgreSQL.

Strong: the highest rate with any process serving any signer, and no wait for a commit. A process that dies loses nothing:
states that are not copied yet are in Redis, and other processes copy them.
Weak: switching from Redis to row locks takes all processes about a second, in which nothing is allocated. And nothing is
allocated while a process can't read from PostgreSQL whether Redis is on.
Window of loss: states that Redis acknowledged and PostgreSQL does not have yet, which are those since the last `tend_once`.
If Redis loses them (killed without an append-only file, or failed over to a replica that lagged), other processes allocate
those nonces a second time; the process that allocated them remembers its highest nonce. Marks of the lost holds find no hold,
or another holder's. `./dev schemes` counts these duplicates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Signer, TxHash
from fencepost.errors import NonceUnavailable
from fencepost.nonce import redis_scripts
from fencepost.nonce.port import (
    MAX_NONCES_PER_CALL,
    Hold,
    Mark,
    NonceState,
    SignerStatus,
    check_request,
    is_applied,
)
from fencepost.nonce.redis_authority import MAX_STATUS_AGE_S, RedisAuthority
from fencepost.nonce.redis_client import RedisClient, RedisDown
from fencepost.nonce.store import NonceStore
from fencepost.nonce.write_behind import RedisSlot, WriteBehind

_log = logging.getLogger(__name__)

MAX_CALLS_PER_PIPELINE = 200
PARALLEL_PIPELINES = 2
MAX_RECLAIMED = 1000
_TRIES = 10


@dataclass(frozen=True, slots=True)
class _AllocateCall:
    signer: Signer
    count: int
    hold_ms: int


class RedisFullNonces:
    def __init__(
        self, store: NonceStore, redis: RedisClient, *, max_status_age_s: float = MAX_STATUS_AGE_S
    ) -> None:
        self._store = store
        self._redis = redis
        self._past: dict[Signer, int] = {}  # the first nonce above all that this process allocated
        self._write_behind = WriteBehind(store.pool, redis)
        self._authority = RedisAuthority(
            store, redis, self._write_behind, past=self._past, max_status_age_s=max_status_age_s
        )
        self._calls = GroupCommit(
            self._allocate_batch, max_items=MAX_CALLS_PER_PIPELINE, parallel=PARALLEL_PIPELINES
        )

    # ---- allocation

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        await self._store.open(signer)
        call = _AllocateCall(signer, count, int(hold_for_s * 1000))
        for _ in range(_TRIES):
            try:
                if await self._authority.is_on(signer):
                    generation = self._redis.generation
                    allocated = await self._calls.submit(call)
                    # Meanwhile the Redis server may have changed, or this process paused and Redis was switched off.
                    if (
                        allocated
                        and generation == self._redis.generation
                        and await self._authority.is_on(signer)
                    ):
                        return allocated
                    self._authority.forget(signer)
                    continue
            except RedisDown:
                continue
            async with self._authority.without_redis(signer) as connection:
                if connection is not None:
                    floor = self._past.get(signer, 0)
                    return await self._store.allocate_locked(
                        connection, signer, count=count, hold_for_s=hold_for_s, floor=floor
                    )
        raise NonceUnavailable(f"Redis is unstable, so no nonce of {signer.address} was allocated: retry")

    async def _allocate_batch(self, calls: Sequence[_AllocateCall]) -> Sequence[list[Hold]]:
        """Run one script for all calls of a signer; they share a token and the longest hold time."""
        groups = _by_signer(calls)
        tokens = [uuid4() for _ in groups]
        commands = [
            redis_scripts.ALLOCATE.call(
                group[0].signer,
                sum(call.count for call in group),
                token.hex,
                max(call.hold_ms for call in group),
                self._authority.epoch(group[0].signer),
            )
            for group, token in zip(groups, tokens, strict=True)
        ]
        allocated: dict[int, list[Hold]] = {}
        for group, token, got in zip(groups, tokens, await self._redis.pipeline(commands), strict=True):
            signer, nonces = group[0].signer, sorted(map(int, got.split()), reverse=True)
            if nonces:
                self._past[signer] = max(self._past.get(signer, 0), nonces[0] + 1)
            for call in group:  # in order of arrival, from the smallest nonce up
                allocated[id(call)] = [Hold(signer, nonces.pop(), token) for _ in range(call.count) if nonces]
        return [allocated[id(call)] for call in calls]

    # ---- marks

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        await self._mark(Mark(hold, NonceState.SUBMITTED, tx_hash))

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        await self._mark(Mark(hold, NonceState.CONSUMED, tx_hash))

    async def mark_recyclable(self, hold: Hold) -> None:
        await self._mark(Mark(hold, NonceState.RELEASED))

    async def _mark(self, mark: Mark) -> None:
        signer, nonce = mark.hold.signer, mark.hold.nonce
        for _ in range(_TRIES):
            try:
                if not await self._authority.is_on(signer):
                    if await self._mark_without_redis(mark):
                        return
                    continue
                text = await self._redis.command("HGET", redis_scripts.slots_key(signer), nonce)
                if text is None:  # consumed and copied, or lost
                    await self._store.mark(mark)
                    return
                stored = RedisSlot.parse(text)
                if is_applied(mark, stored.slot):
                    return
                tx_hash = mark.tx_hash or stored.slot.tx_hash or ""
                rest = f"{mark.hold.token.hex}|{stored.ends_ms}|{tx_hash}"
                change = redis_scripts.CHANGE.call(signer, nonce, text, mark.state.value, rest)
                if await self._redis.command(*change):
                    return
            except RedisDown:
                continue
        raise NonceUnavailable(f"other callers are changing nonce {nonce}: retry")

    async def _mark_without_redis(self, mark: Mark) -> bool:
        """Apply the mark in PostgreSQL; return False if Redis has to apply it after all.

        A nonce that is submitted or consumed in PostgreSQL can't get another holder. Any other state may be known to Redis
        alone, so Redis has to be off. If the hold was never copied, it is stored now, unless the nonce has another holder.
        """
        hold = mark.hold
        (slot,) = await self._store.load_slots([hold])
        if slot is None or slot.state in (NonceState.HELD, NonceState.RELEASED):
            if not await self._authority.stay_off(hold.signer):
                return False
            if slot is None:
                key = [hold.signer.chain_id], [hold.signer.address], [hold.nonce]
                await self._store.pool.execute(sql("nonce_occupy"), *key, [hold.token], [0.0])
        await self._store.mark(mark)
        return True

    # ---- expiry

    async def reclaim_expired(self, signer: Signer) -> int:
        """Release expired holds: in Redis if it is on, in PostgreSQL if it is off, none during the switch."""
        await self._store.open(signer)
        floor = await self._store.chain_nonce(signer)
        try:
            if await self._authority.is_on(signer):
                return int(
                    await self._redis.command(*redis_scripts.RECLAIM.call(signer, floor, MAX_RECLAIMED))
                )
        except RedisDown as error:
            raise NonceUnavailable(
                "Redis did not respond: it is unknown whether holds were released"
            ) from error
        return len(await self._store.reclaim(signer)) if await self._authority.is_off(signer) else 0

    async def status(self, signer: Signer) -> SignerStatus | None:
        """Copy the states of Redis to PostgreSQL, then read the status there."""
        if self._redis.is_up and signer in self._authority.loaded:
            try:
                await self._write_behind.flush([signer])
            except RedisDown:
                _log.warning("Redis did not respond; the nonce status of %s may be out of date", signer)
        return await self._store.status(signer)

    async def tend_once(self) -> int:
        """Probe Redis if it was down, refresh whether it is on, and copy its states to PostgreSQL."""
        if not await self._redis.probe():
            return 0
        try:
            await self._authority.refresh()
            return await self._write_behind.flush(self._authority.loaded)
        except RedisDown as error:
            _log.warning("nonce states are not copied from Redis to PostgreSQL yet: %s", error)
            return 0

    async def close(self) -> None:
        await self._calls.drain()
        if self._redis.is_up:
            # States that can't be copied now stay in Redis, for other processes to copy.
            await self.tend_once()
        await self._store.drain()


def _by_signer(calls: Sequence[_AllocateCall]) -> list[list[_AllocateCall]]:
    """Group the calls by signer, with at most as many nonces per group as a script takes."""
    groups: list[list[_AllocateCall]] = []
    open_at: dict[Signer, tuple[int, int]] = {}  # the open group of the signer, and its number of nonces
    for call in calls:
        at, taken = open_at.get(call.signer, (-1, MAX_NONCES_PER_CALL))
        if taken + call.count > MAX_NONCES_PER_CALL:
            at, taken = len(groups), 0
            groups.append([])
        groups[at].append(call)
        open_at[call.signer] = at, taken + call.count
    return groups
