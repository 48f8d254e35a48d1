"""Whether Redis speaks for a signer of `redis_full`: decided in PostgreSQL, once for all processes.

A process that can't reach Redis must not give nonces by row lock while others give theirs from Redis: they would be the
same ones. So it says in the signer's row that Redis is off, from a moment later until some time after it last said so,
and gives nothing before that moment. Whoever gives from Redis hears of it in time, because it looks at the row at least
every `heard_within_s` or gives nothing; it then writes down what Redis has, and gives by row lock too. Row locks are
used only while Redis is off, Redis is loaded only while it is on, and the same lock on the row orders the two.

Turning Redis off begins a new epoch. Scripts name the epoch, so a Redis that was loaded in an older one, or one that
came back from an older copy, gives nothing until it is made anew from PostgreSQL.

What this can't cover is a nonce that was given from Redis and written down by nobody before Redis was off: its process
died, or lost PostgreSQL too, within that moment. That is the window of loss that `redis_full` has anyway.
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
from fencepost.nonce import lua
from fencepost.nonce.records import Records
from fencepost.nonce.redis_link import RedisDown, RedisLink
from fencepost.nonce.write_behind import WriteBehind

HEARD_WITHIN_S = 0.5
MOST_LOADED = 5000
# In terms of `heard_within_s`: how long everybody has to hear of it, and how long it lasts after it was last said.
_OFF_BEGINS_AFTER = 2
_OFF_LASTS = 8
_TRIES = 10


@dataclass(slots=True)
class _Heard:
    """Redis is on for a signer, as far as we have heard."""

    epoch: int
    generation: int  # of the link
    until_s: float  # then we have to look again


@dataclass(frozen=True, slots=True)
class _Standing:
    """What the signer's row says."""

    epoch: int
    off_begins_in_s: float
    off_ends_in_s: float

    @property
    def is_off(self) -> bool:
        return self.off_ends_in_s > 0

    @property
    def has_begun(self) -> bool:
        return self.is_off and self.off_begins_in_s <= 0


class RedisTurns:
    def __init__(
        self,
        records: Records,
        link: RedisLink,
        behind: WriteBehind,
        *,
        past: Mapping[Signer, int],
        heard_within_s: float = HEARD_WITHIN_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`past` is above all that this process gave: a Redis that has less has lost something."""
        self._records = records
        self._link = link
        self._behind = behind
        self._past = past
        self._heard_within_s = heard_within_s
        self._now_s = now_s
        self._heard: dict[Signer, _Heard] = {}
        self._off_until_s: dict[Signer, float] = {}  # heard from the row: not worth a look before
        self._scripts_at = -1  # at which generation of the link Redis got the scripts
        self._looking = asyncio.Lock()
        self._loading: defaultdict[Signer, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def loaded(self) -> list[Signer]:
        return list(self._heard)

    def epoch(self, signer: Signer) -> int:
        """What scripts have to name; -1, which no Redis was loaded with, when we have not heard."""
        heard = self._heard.get(signer)
        return -1 if heard is None else heard.epoch

    def forget(self, signer: Signer) -> None:
        """Redis is not as we left it: look again before anything is asked of it."""
        self._heard.pop(signer, None)

    async def is_on(self, signer: Signer) -> bool:
        """Whether Redis may be asked for the signer; it is loaded if need be. Raises `RedisDown`."""
        if not self._link.is_up:
            return False
        if self._is_heard(signer):
            return True
        if self.epoch(signer) >= 0:
            async with self._looking:  # whoever waits here hears what the first one heard
                if not self._is_heard(signer):
                    await self.look()
        async with self._loading[signer]:
            if self._is_heard(signer):
                return True
            if self._off_until_s.get(signer, 0.0) > self._now_s():
                return False
            return await self._load(signer)

    def _is_heard(self, signer: Signer) -> bool:
        heard = self._heard.get(signer)
        return (
            heard is not None and heard.generation == self._link.generation and self._now_s() < heard.until_s
        )

    async def look(self) -> None:
        """Hear how it stands for all signers that are loaded; for those that are off, Redis's states are written down."""
        signers, asked_s = self.loaded, self._now_s()
        if not signers:
            return
        turned = []
        for signer, standing in (await self._standings(signers)).items():
            heard = self._heard.get(signer)
            if heard is None:
                continue
            if standing.is_off or standing.epoch != heard.epoch:
                del self._heard[signer]
                turned.append(signer)
            else:
                heard.until_s = max(heard.until_s, asked_s + self._heard_within_s)
        await self._behind.flush(turned)

    # ---- on: Redis as it has to be

    async def _load(self, signer: Signer) -> bool:
        """Hear that Redis is on, and make its state anew from PostgreSQL if it is behind it. False: it is off."""
        generation = self._link.generation
        if self._scripts_at != generation:
            await self._link.pipeline([("SCRIPT", "LOAD", script.text) for script in lua.ALL])
            self._scripts_at = generation
        for _ in range(_TRIES):
            asked_s = self._now_s()
            standing, known, _ = await self._known(signer, slots=0)
            if standing.is_off:
                self._off_until_s[signer] = asked_s + standing.off_ends_in_s
                await self._behind.flush([signer])
                return False
            has = await self._link.command("HMGET", lua.meta_key(signer), "next", "revision", "epoch")
            is_behind = (
                has[2] != str(standing.epoch)
                or int(has[0]) < known["next"]
                or int(has[1]) < known["revision"]
            )
            if not is_behind or await self._reload(signer, standing.epoch, had=has[1]):
                self._heard[signer] = _Heard(standing.epoch, generation, asked_s + self._heard_within_s)
                return True
        raise RedisDown("others change Redis faster than it can be loaded")

    async def _reload(self, signer: Signer, epoch: int, *, had: str | None) -> bool:
        """Once nothing in Redis is ahead of PostgreSQL. False: something has changed meanwhile."""
        await self._behind.flush([signer])
        standing, known, rows = await self._known(signer, slots=MOST_LOADED)
        if standing.is_off or standing.epoch != epoch:
            return False
        state: list[Any] = [
            had or "",
            known["next"],
            max(known["revision"], int(had or 0)) + 1,
            await self._records.seen_by_chain(signer),
            epoch,
        ]
        for row in rows:
            token = row["hold"].hex if row["hold"] else ""
            left_ms = int(row["expires_in_s"] * 1000)
            state += [row["nonce"], row["state"], token, left_ms, row["tx_hash"] or ""]
        return bool(await self._link.command(*lua.RELOAD.call(signer, *state)))

    async def _known(
        self, signer: Signer, *, slots: int
    ) -> tuple[_Standing, dict[str, int], Sequence[Record]]:
        """Under the lock of the row, after all who gave by it: how it stands, how far it went, and what is live."""
        key = signer.chain_id, signer.address
        async with self._records.pool.acquire() as connection, connection.transaction():
            await connection.execute(sql("nonce_cursor_lock"), *key)
            standing = await self._standing(connection, signer)
            known = {
                "next": max(
                    await connection.fetchval(sql("nonce_known_next"), *key), self._past.get(signer, 0)
                ),
                "revision": await connection.fetchval(sql("nonce_last_revision"), *key),
            }
            rows = await connection.fetch(sql("nonce_live_slots"), *key, slots) if slots else []
        return standing, known, rows

    # ---- off

    @asynccontextmanager
    async def without_redis(self, signer: Signer) -> AsyncIterator[Connection | None]:
        """The signer's row locked, while Redis is off for everybody; None when Redis is on and can be reached."""
        for _ in range(_TRIES):
            async with self._records.pool.acquire() as connection, connection.transaction():
                await connection.execute(sql("nonce_cursor_lock"), signer.chain_id, signer.address)
                if not self._link.is_up:
                    await connection.execute(
                        sql("nonce_redis_off"),
                        signer.chain_id,
                        signer.address,
                        self._heard_within_s * _OFF_BEGINS_AFTER,
                        self._heard_within_s * _OFF_LASTS,
                    )
                standing = await self._standing(connection, signer)
                if standing.has_begun:
                    yield connection
                    return
            if not standing.is_off:
                break
            await asyncio.sleep(standing.off_begins_in_s)
        self._off_until_s.pop(signer, None)
        yield None

    async def is_off(self, signer: Signer) -> bool:
        """Whether Redis is off for everybody."""
        return (await self._standings([signer]))[signer].has_begun

    async def stay_off(self, signer: Signer) -> bool:
        """Redis is off for everybody, and for long enough to write something. False: it can be asked instead."""
        for _ in range(_TRIES):
            standing = (await self._standings([signer]))[signer]
            if standing.has_begun and standing.off_ends_in_s > self._heard_within_s:
                return True
            if not self._link.is_up:
                async with self.without_redis(signer):  # says that it is off, and waits until that has begun
                    continue
            if standing.has_begun or not standing.is_off:
                await asyncio.sleep(max(standing.off_ends_in_s, 0.0))
                break
            await asyncio.sleep(standing.off_begins_in_s)
        self._off_until_s.pop(signer, None)
        return False

    async def _standing(self, connection: Connection, signer: Signer) -> _Standing:
        row = await connection.fetchrow(sql("nonce_redis_standing"), [signer.chain_id], [signer.address])
        return _standing(row)

    async def _standings(self, signers: Sequence[Signer]) -> dict[Signer, _Standing]:
        rows = await self._records.pool.fetch(
            sql("nonce_redis_standing"), [s.chain_id for s in signers], [s.address for s in signers]
        )
        return {Signer(row["chain_id"], Address(row["signer"])): _standing(row) for row in rows}


def _standing(row: Record | None) -> _Standing:
    if row is None:
        raise RedisDown("the signer has no sequence")
    return _Standing(row["redis_epoch"], row["begins_in_s"], row["ends_in_s"])
