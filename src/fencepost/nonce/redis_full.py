"""Scheme `redis_full`: Redis issues and occupies in one script; PostgreSQL is written behind, in batches.

Who waits for the same signer shares a script. Without Redis, PostgreSQL gives by row lock, above what it knows and what
this process gave; `redis_turns` sees to it that all processes do the one or the other, also when a single one can't
reach Redis. When Redis is back, what it still has is written down first, then its state is made anew from PostgreSQL.

Strong: the highest rate that any process may have for any signer, and no wait for a commit. A process that dies loses
nothing: what is not written yet stands in Redis, and others write it down.
Weak: turning from Redis to row locks takes all processes about a second, in which nothing is given. And nothing is given
while PostgreSQL can't be asked whether Redis speaks.
Window of loss: what Redis acknowledged and PostgreSQL does not have yet, which is what was given since the last
`tend_once`. If Redis loses that (killed without a log, or failed over to a replica that had not heard of it), other
processes give those nonces a second time; the one that gave them remembers how far it went. Marks of the lost holds find
nothing, or somebody else. `fencepost lab schemes` counts these duplicates.
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
from fencepost.nonce import lua
from fencepost.nonce.port import MOST_AT_ONCE, Hold, Mark, NonceState, SignerStatus, check_request, is_done
from fencepost.nonce.records import Records
from fencepost.nonce.redis_link import RedisDown, RedisLink
from fencepost.nonce.redis_turns import HEARD_WITHIN_S, RedisTurns
from fencepost.nonce.write_behind import StoredSlot, WriteBehind

_log = logging.getLogger(__name__)

MOST_CALLS_A_PIPELINE = 200
PARALLEL_PIPELINES = 2
MOST_RECLAIMED = 1000
_TRIES = 10


@dataclass(frozen=True, slots=True)
class _Call:
    signer: Signer
    count: int
    hold_ms: int


class RedisFullNonces:
    def __init__(self, records: Records, link: RedisLink, *, heard_within_s: float = HEARD_WITHIN_S) -> None:
        self._records = records
        self._link = link
        self._past: dict[Signer, int] = {}  # above all that was given here
        self._behind = WriteBehind(records.pool, link)
        self._turns = RedisTurns(records, link, self._behind, past=self._past, heard_within_s=heard_within_s)
        self._calls = GroupCommit(
            self._allocate_batch, most_items=MOST_CALLS_A_PIPELINE, parallel=PARALLEL_PIPELINES
        )

    # ---- giving

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        await self._records.open(signer)
        call = _Call(signer, count, int(hold_for_s * 1000))
        for _ in range(_TRIES):
            try:
                if await self._turns.is_on(signer):
                    generation = self._link.generation
                    given = await self._calls.submit(call)
                    # Redis may have become another one meanwhile, or a pause too long to have heard that it is off.
                    if given and generation == self._link.generation and await self._turns.is_on(signer):
                        return given
                    self._turns.forget(signer)
                    continue
            except RedisDown:
                continue
            async with self._turns.without_redis(signer) as connection:
                if connection is not None:
                    floor = self._past.get(signer, 0)
                    return await self._records.take_locked(
                        connection, signer, count=count, hold_for_s=hold_for_s, floor=floor
                    )
        raise NonceUnavailable(f"Redis comes and goes: nothing is given for {signer.address}, ask again")

    async def _allocate_batch(self, calls: Sequence[_Call]) -> Sequence[list[Hold]]:
        """One script for all who wait for the same signer; they share a token, and the longest time that was asked."""
        groups = _by_signer(calls)
        tokens = [uuid4() for _ in groups]
        commands = [
            lua.ALLOCATE.call(
                group[0].signer,
                sum(call.count for call in group),
                token.hex,
                max(call.hold_ms for call in group),
                self._turns.epoch(group[0].signer),
            )
            for group, token in zip(groups, tokens, strict=True)
        ]
        given: dict[int, list[Hold]] = {}
        for group, token, got in zip(groups, tokens, await self._link.pipeline(commands), strict=True):
            signer, nonces = group[0].signer, sorted(map(int, got.split()), reverse=True)
            if nonces:
                self._past[signer] = max(self._past.get(signer, 0), nonces[0] + 1)
            for call in group:  # in the order of asking, from the smallest nonce up
                given[id(call)] = [Hold(signer, nonces.pop(), token) for _ in range(call.count) if nonces]
        return [given[id(call)] for call in calls]

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
                if not await self._turns.is_on(signer):
                    if await self._mark_without_redis(mark):
                        return
                    continue
                text = await self._link.command("HGET", lua.slots_key(signer), nonce)
                if text is None:  # consumed long ago, or lost
                    await self._records.mark(mark)
                    return
                stored = StoredSlot.parse(text)
                if is_done(mark, stored.slot):
                    return
                tx_hash = mark.tx_hash or stored.slot.tx_hash or ""
                rest = f"{mark.hold.token.hex}|{stored.ends_ms}|{tx_hash}"
                change = lua.CHANGE.call(signer, nonce, text, mark.state.value, rest)
                if await self._link.command(*change):
                    return
            except RedisDown:
                continue
        raise NonceUnavailable(f"nonce {nonce} is being changed by others: ask again")

    async def _mark_without_redis(self, mark: Mark) -> bool:
        """False: Redis has to be asked after all.

        What is submitted or consumed in PostgreSQL can't become anybody else's. Anything else may be known to Redis
        alone, so Redis has to be off; the hold may never have been written down, and it is now, unless somebody else
        has the nonce by now.
        """
        hold = mark.hold
        (slot,) = await self._records.look([hold])
        if slot is None or slot.state in (NonceState.HELD, NonceState.RELEASED):
            if not await self._turns.stay_off(hold.signer):
                return False
            if slot is None:
                key = [hold.signer.chain_id], [hold.signer.address], [hold.nonce]
                await self._records.pool.execute(sql("nonce_occupy"), *key, [hold.token], [0.0])
        await self._records.mark(mark)
        return True

    # ---- time

    async def reclaim_expired(self, signer: Signer) -> int:
        """Where Redis speaks, in Redis; where it is off, in PostgreSQL; nothing while it is neither."""
        await self._records.open(signer)
        floor = await self._records.seen_by_chain(signer)
        try:
            if await self._turns.is_on(signer):
                return int(await self._link.command(*lua.RECLAIM.call(signer, floor, MOST_RECLAIMED)))
        except RedisDown as error:
            raise NonceUnavailable("Redis gave no answer; nothing is known to be released") from error
        return len(await self._records.reclaim(signer)) if await self._turns.is_off(signer) else 0

    async def status(self, signer: Signer) -> SignerStatus | None:
        """As PostgreSQL knows it, after writing down what Redis has."""
        if self._link.is_up and signer in self._turns.loaded:
            try:
                await self._behind.flush([signer])
            except RedisDown:
                _log.warning("Redis gave no answer; the status of %s may be behind", signer)
        return await self._records.status(signer)

    async def tend_once(self) -> int:
        """Hear whether Redis is on, write down what it has and PostgreSQL does not; look for it if it was gone."""
        if not await self._link.probe():
            return 0
        try:
            await self._turns.look()
            return await self._behind.flush(self._turns.loaded)
        except RedisDown as error:
            _log.warning("not written down yet: %s", error)
            return 0

    async def close(self) -> None:
        await self._calls.drain()
        if self._link.is_up:
            await self.tend_once()  # what can't be written down now stands in Redis, for others to write down
        await self._records.drain()


def _by_signer(calls: Sequence[_Call]) -> list[list[_Call]]:
    """In groups for one signer, of no more nonces than a script takes."""
    groups: list[list[_Call]] = []
    open_at: dict[Signer, tuple[int, int]] = {}  # which group takes more, and how much it has
    for call in calls:
        at, taken = open_at.get(call.signer, (-1, MOST_AT_ONCE))
        if taken + call.count > MOST_AT_ONCE:
            at, taken = len(groups), 0
            groups.append([])
        groups[at].append(call)
        open_at[call.signer] = at, taken + call.count
    return groups
