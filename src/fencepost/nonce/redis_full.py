"""Scheme `redis_full`: Redis issues and occupies in one script; PostgreSQL is written behind, in batches.

The fastest that any process may use for any signer, and the weakest. What Redis acknowledged and PostgreSQL does not
have yet (what was given since the last `tend_once`) is lost when Redis loses it: killed without a log,
or failed over to a replica that had not heard of it. Then other processes give those nonces a second time (the one that
gave them remembers how far it went), and marks of the lost holds find nothing, or somebody else. `fencepost lab schemes`
shows it. A process that dies loses nothing: what is not written yet stands in Redis.

Without Redis, PostgreSQL gives nonces by row lock, above what it knows and what this process gave. When Redis is back,
what it still holds is written down first, then its state is made anew from PostgreSQL; nothing is given in between.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from fencepost.adapters.postgres.group_commit import GroupCommit
from fencepost.adapters.postgres.queries import sql
from fencepost.domain.ids import Signer, TxHash
from fencepost.errors import NonceUnavailable
from fencepost.nonce import lua
from fencepost.nonce.port import Hold, Mark, NonceState, SignerStatus, Slot, check_request, is_done
from fencepost.nonce.records import Records, holds
from fencepost.nonce.redis_link import RedisDown, RedisLink

_log = logging.getLogger(__name__)

MOST_CALLS_A_PIPELINE = 200
PARALLEL_PIPELINES = 2
MOST_PICKED = 1000
MOST_LOADED = 5000
MOST_RECLAIMED = 1000
_TRIES = 10
_FLUSHES_MAX = 100


@dataclass(frozen=True, slots=True)
class _Call:
    signer: Signer
    count: int
    token: UUID
    hold_ms: int


class RedisFullNonces:
    def __init__(self, records: Records, link: RedisLink) -> None:
        self._records = records
        self._link = link
        self._loaded: dict[Signer, int] = {}  # at which generation of the link
        self._past: dict[Signer, int] = {}  # above all that was given here
        self.refused = 0  # states that PostgreSQL did not take: somebody else had the nonce
        self._calls = GroupCommit(
            self._allocate_batch, most_items=MOST_CALLS_A_PIPELINE, parallel=PARALLEL_PIPELINES
        )

    # ---- giving

    async def allocate(self, signer: Signer, *, count: int = 1, hold_for_s: float) -> Sequence[Hold]:
        check_request(count=count, hold_for_s=hold_for_s)
        await self._records.open(signer)
        call = _Call(signer, count, uuid4(), int(hold_for_s * 1000))
        for _ in range(_TRIES):
            if not self._link.is_up:
                break
            try:
                if self._loaded.get(signer) != self._link.generation:
                    await self._load(signer)
                nonces = await self._calls.submit(call)
            except RedisDown:
                continue
            if nonces:
                self._past[signer] = max(self._past.get(signer, 0), max(nonces) + 1)
                return holds(signer, nonces, call.token)
            self._loaded.pop(signer, None)  # Redis has forgotten it
        floor = self._past.get(signer, 0)
        return await self._records.take(signer, count=count, hold_for_s=hold_for_s, floor=floor)

    async def _allocate_batch(self, calls: Sequence[_Call]) -> Sequence[list[int]]:
        commands = [
            _command(lua.ALLOCATE, call.signer, call.count, call.token.hex, call.hold_ms) for call in calls
        ]
        return [[int(nonce) for nonce in got] for got in await self._link.pipeline(commands)]

    async def _load(self, signer: Signer) -> None:
        """Make Redis's state of a signer anew from PostgreSQL, once nothing in Redis is ahead of it."""
        generation = self._link.generation
        await self._link.pipeline([("SCRIPT", "LOAD", script) for script in lua.ALL])
        for _ in range(_TRIES):
            before = (await self._link.pipeline([("HGET", _keys(signer)[0], "revision")]))[0]
            await self._flush([signer])
            key = signer.chain_id, signer.address
            rows = await self._records.pool.fetch(sql("nonce_live_slots"), *key, MOST_LOADED)
            revision = await self._records.pool.fetchval(sql("nonce_last_revision"), *key)
            state: list[Any] = [
                before or "",
                max(await self._records.known_next(signer), self._past.get(signer, 0)),
                max(revision, int(before or 0)) + 1,
                await self._records.seen_by_chain(signer),
            ]
            for row in rows:
                token = row["hold"].hex if row["hold"] else ""
                left_ms = int(row["expires_in_s"] * 1000)
                state += [row["nonce"], row["state"], token, left_ms, row["tx_hash"] or ""]
            if (await self._link.pipeline([_command(lua.RELOAD, signer, *state)]))[0]:
                self._loaded[signer] = generation
                return
        raise RedisDown("others change Redis faster than it can be loaded")

    # ---- marks

    async def mark_submitted(self, hold: Hold, tx_hash: TxHash) -> None:
        await self._mark(Mark(hold, NonceState.SUBMITTED, tx_hash))

    async def mark_used(self, hold: Hold, tx_hash: TxHash | None = None) -> None:
        await self._mark(Mark(hold, NonceState.CONSUMED, tx_hash))

    async def mark_recyclable(self, hold: Hold) -> None:
        await self._mark(Mark(hold, NonceState.RELEASED))

    async def _mark(self, mark: Mark) -> None:
        slots, nonce = _keys(mark.hold.signer)[1], mark.hold.nonce
        for _ in range(_TRIES):
            if not self._link.is_up:
                await self._mark_without_redis(mark)
                return
            try:
                text = (await self._link.pipeline([("HGET", slots, nonce)]))[0]
                if text is None:  # consumed long ago, or lost
                    await self._records.mark(mark)
                    return
                stored = _Stored.parse(text)
                if is_done(mark, stored.slot):
                    return
                tx_hash = mark.tx_hash or stored.slot.tx_hash or ""
                rest = f"{mark.hold.token.hex}|{stored.ends_ms}|{tx_hash}"
                change = _command(lua.CHANGE, mark.hold.signer, nonce, text, mark.state.value, rest)
                if (await self._link.pipeline([change]))[0]:
                    return
            except RedisDown:
                continue
        raise NonceUnavailable(f"nonce {nonce} is being changed by others: ask again")

    async def _mark_without_redis(self, mark: Mark) -> None:
        """The hold may never have been written down: it is now, unless somebody else has the nonce by now."""
        hold = mark.hold
        await self._records.pool.execute(
            sql("nonce_occupy"),
            [hold.signer.chain_id],
            [hold.signer.address],
            [hold.nonce],
            [hold.token],
            [0.0],
        )
        await self._records.mark(mark)

    # ---- time

    async def reclaim_expired(self, signer: Signer) -> int:
        await self._records.open(signer)
        if not self._link.is_up:
            return len(await self._records.reclaim(signer))
        floor = await self._records.seen_by_chain(signer)
        try:
            if self._loaded.get(signer) != self._link.generation:
                await self._load(signer)
            released = (await self._link.pipeline([_command(lua.RECLAIM, signer, floor, MOST_RECLAIMED)]))[0]
        except RedisDown as error:
            raise NonceUnavailable("Redis gave no answer; nothing is known to be released") from error
        return int(released)

    async def status(self, signer: Signer) -> SignerStatus | None:
        """As PostgreSQL knows it, after writing down what Redis has."""
        if self._link.is_up and signer in self._loaded:
            try:
                await self._flush([signer])
            except RedisDown:
                _log.warning("Redis gave no answer; the status of %s may be behind", signer)
        return await self._records.status(signer)

    # ---- writing behind

    async def tend_once(self) -> int:
        """Write down what Redis has and PostgreSQL does not; look for Redis if it was gone."""
        if not await self._link.probe():
            return 0
        try:
            return await self._flush(list(self._loaded))
        except RedisDown as error:
            _log.warning("not written down yet: %s", error)
            return 0

    async def _flush(self, signers: Sequence[Signer]) -> int:
        """What is dirty now, in pages."""
        written, left = 0, list(signers)
        for _ in range(_FLUSHES_MAX):
            if not left:
                break
            picked = await self._link.pipeline([_command(lua.PICK, signer, MOST_PICKED) for signer in left])
            work = [(signer, got) for signer, got in zip(left, picked, strict=True) if len(got) > 1]
            if not work:
                break
            await self._write_down(work)
            written += sum(len(got) // 2 for _, got in work)
            await self._link.pipeline([_command(lua.SETTLE, signer, *got[1:]) for signer, got in work])
            # What came meanwhile waits for the next turn: chasing it would write row by row.
            left = [signer for signer, got in work if len(got) > 2 * MOST_PICKED]
        return written

    async def _write_down(self, work: Sequence[tuple[Signer, list[str]]]) -> None:
        rows = [
            (signer, int(nonce), stored, (stored.ends_ms - int(got[0])) / 1000)
            for signer, got in work
            for nonce, stored in _parse_pairs(got[1:])
        ]
        taken = await self._records.pool.fetch(
            sql("nonce_write_behind"),
            [signer.chain_id for signer, _, _, _ in rows],
            [signer.address for signer, _, _, _ in rows],
            [nonce for _, nonce, _, _ in rows],
            [stored.slot.state.value for _, _, stored, _ in rows],
            [stored.slot.token for _, _, stored, _ in rows],
            [stored.slot.tx_hash for _, _, stored, _ in rows],
            [left_s for _, _, _, left_s in rows],
            [stored.revision for _, _, stored, _ in rows],
        )
        self.refused += len(rows) - len(taken)

    async def close(self) -> None:
        await self._calls.drain()
        if self._link.is_up and self._loaded:
            await self._flush(list(self._loaded))
        await self._records.drain()


@dataclass(frozen=True, slots=True)
class _Stored:
    revision: int
    slot: Slot
    ends_ms: int

    @classmethod
    def parse(cls, text: str) -> _Stored:
        revision, state, token, ends_ms, tx_hash = text.split("|")
        return cls(
            revision=int(revision),
            slot=Slot(
                NonceState(state), UUID(token) if token else None, TxHash(tx_hash) if tx_hash else None
            ),
            ends_ms=int(ends_ms),
        )


def _parse_pairs(pairs: Sequence[str]) -> list[tuple[int, _Stored]]:
    """A slot that is gone was written down by somebody else and forgotten."""
    return [
        (int(nonce), _Stored.parse(text)) for nonce, text in zip(pairs[::2], pairs[1::2], strict=True) if text
    ]


def _keys(signer: Signer) -> tuple[str, ...]:
    """With a hash tag, so that a cluster keeps them together."""
    return tuple(
        f"fencepost:nonce:{{{signer}}}:{name}" for name in ("meta", "slots", "released", "held", "dirty")
    )


def _command(script: str, signer: Signer, *arguments: object) -> tuple[Any, ...]:
    keys = _keys(signer)
    return ("EVALSHA", lua.digest(script), len(keys), *keys, *arguments)
