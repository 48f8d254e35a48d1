"""Scheme `redis_issue`: Redis counts, PostgreSQL occupies.

INCR gives a number, the primary key in PostgreSQL gives the nonce: a number that is taken (Redis lost its last writes,
or somebody else issued from the database meanwhile) is passed over, and the counter is lifted to what PostgreSQL
knows. Without Redis, PostgreSQL issues and occupies; when a probe finds Redis again, its counter is lifted first.
Numbers for many callers share a pipeline, their occupations a statement.

Strong: any process serves any signer, no row is waited for, and nothing is lost with Redis. No fault of Redis makes a
duplicate, not even one that a single process can't reach while others can.
Weak: every nonce is still a durable row before it is given, so PostgreSQL sets the rate. Two systems, two steps: a
process that dies between them leaves a hole, a number that nobody occupied.
Window of loss: none. `reclaim_expired` finds such holes and releases them once `heal_after_s` has passed.
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
from fencepost.nonce.records import MarksInRecords, Records, holds
from fencepost.nonce.redis_link import RedisDown, RedisLink

# A counter that is missing or too low is not used: the caller lifts it and asks again.
_ISSUE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
return redis.call('INCRBY', KEYS[1], ARGV[1])
"""
_LIFT = """
if tonumber(redis.call('GET', KEYS[1]) or '-1') < tonumber(ARGV[1]) then redis.call('SET', KEYS[1], ARGV[1]) end
return 1
"""
_TRIES = 20
MOST_NUMBERS_A_PIPELINE = 200
PARALLEL_PIPELINES = 2
MOST_OCCUPIED_A_COMMIT = 500
PARALLEL_OCCUPATIONS = 2

_Occupation = tuple[Signer, tuple[int, ...], UUID, float]


class RedisIssueNonces(MarksInRecords):
    def __init__(self, records: Records, link: RedisLink) -> None:
        super().__init__(records)
        self._link = link
        self._lifted: dict[Signer, int] = {}  # at which generation of the link
        self._gaps: set[Signer] = set()  # signers that may have released nonces
        self._numbers: GroupCommit[tuple[Any, ...], Any] = GroupCommit(
            link.pipeline, most_items=MOST_NUMBERS_A_PIPELINE, parallel=PARALLEL_PIPELINES
        )
        self._occupations = GroupCommit(
            self._occupy_batch, most_items=MOST_OCCUPIED_A_COMMIT, parallel=PARALLEL_OCCUPATIONS
        )

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        await self._records.open(signer)
        got = await self._reuse(signer, count, hold_for_s)
        try:
            await self._fill(got, signer, count, hold_for_s)
        except NonceUnavailable:  # the caller is told that nothing was given: so it shall be
            await self._records.release(got)
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
                got += await self._records.take(signer, count=count - len(got), hold_for_s=hold_for_s)
                return
            token = uuid4()
            occupied = await self._occupations.submit((signer, issued, token, hold_for_s))
            got += holds(signer, occupied, token)
            if len(occupied) < len(issued):
                self._lifted.pop(signer, None)  # Redis is behind the database
        raise NonceUnavailable(f"the numbers of {signer.address} are taken faster than they can be occupied")

    async def _reuse(self, signer: Signer, count: int, hold_for_s: float) -> list[Hold]:
        if signer not in self._gaps and signer in self._lifted:
            return []
        got = await self._records.take_gaps(signer, count=count, hold_for_s=hold_for_s)
        if len(got) < count:
            self._gaps.discard(signer)
        return got

    async def _issue(self, signer: Signer, count: int) -> tuple[int, ...]:
        key = f"fencepost:nonce:next:{signer}"
        generation = self._link.generation
        if self._lifted.get(signer) != generation:
            await self._lift(key, signer)
        past = await self._eval(_ISSUE, key, count)
        if past < 0:  # forgotten
            await self._lift(key, signer)
            past = await self._eval(_ISSUE, key, count)
        if past < count:
            raise RedisDown("Redis forgets its counters at once")
        return tuple(range(past - count, past))

    async def _lift(self, key: str, signer: Signer) -> None:
        generation = self._link.generation
        known = await self._records.known_next(signer)
        await self._eval(_LIFT, key, known)
        self._lifted[signer] = generation

    async def _eval(self, script: str, key: str, number: int) -> int:
        return int(await self._numbers.submit(("EVAL", script, 1, key, number)))

    async def _occupy_batch(self, batch: Sequence[_Occupation]) -> Sequence[list[int]]:
        flat = [
            (signer, nonce, token, hold_for_s)
            for signer, nonces, token, hold_for_s in batch
            for nonce in nonces
        ]
        got = await self._records.pool.fetch(
            sql("nonce_occupy"),
            [signer.chain_id for signer, _, _, _ in flat],
            [signer.address for signer, _, _, _ in flat],
            [nonce for _, nonce, _, _ in flat],
            [token for _, _, token, _ in flat],
            [hold_for_s for _, _, _, hold_for_s in flat],
        )
        # Redis may have issued a number twice in one batch: the row says whose it became.
        ours = {(Signer(row["chain_id"], Address(row["signer"])), row["nonce"], row["hold"]) for row in got}
        return [
            [nonce for nonce in nonces if (signer, nonce, token) in ours]
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
        """Look for Redis if it was gone, and for nonces that other processes released."""
        found = await self._records.with_gaps(list(self._lifted))
        self._gaps |= found
        return int(await self._link.probe()) + len(found)

    async def close(self) -> None:
        await self._occupations.drain()
        await super().close()
