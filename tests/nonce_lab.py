"""All five nonce schemes on one database and one Redis, any number of processes of each, with time moved by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import asyncpg

from fakes.clock import FakeClock
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.adapters.postgres.pool import Pool
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.nonce.leased import LeasedNonces
from fencepost.nonce.port import Hold, NoncePort
from fencepost.nonce.postgres import PostgresNonces
from fencepost.nonce.redis_client import RedisClient
from fencepost.nonce.redis_full import RedisFullNonces
from fencepost.nonce.redis_issue import RedisIssueNonces
from fencepost.nonce.redis_lock import RedisLock
from fencepost.nonce.segments import SegmentNonces
from fencepost.nonce.store import NonceStore

SCHEMES = ("postgres", "postgres+lock", "redis_issue", "redis_full", "leased", "segments")
LEASE_S = 10.0
DEAD_AFTER_S = 30.0
HEAL_AFTER_S = 20.0
MAX_STATUS_AGE_S = 0.1  # of real time: the database's clock decides the state of Redis
ALICE = Signer(31_337, Address("0x" + "a1" * 20))
BOB = Signer(31_337, Address("0x" + "b2" * 20))


def tx_hash(number: int) -> TxHash:
    return TxHash(f"0x{number:064x}")


def nonces(holds: Sequence[Hold]) -> list[int]:
    return [hold.nonce for hold in holds]


async def give(port: NoncePort, count: int = 1) -> list[int]:
    return nonces(await port.allocate(ALICE, count=count, hold_for_s=60))


class NonceLab:
    def __init__(self, dsn: str, redis_url: str, stack: AsyncExitStack, pool: Pool) -> None:
        self.clock = FakeClock()
        self.seen: dict[Signer, int] = {}  # what the chain has seen
        self.pool = pool  # for reading, and for moving time
        self.links: list[RedisClient] = []
        self._dsn = dsn
        self._redis_url = redis_url
        self._stack = stack

    async def chain_nonce(self, signer: Signer) -> int:
        return self.seen.get(signer, 0)

    async def open(
        self,
        scheme: str,
        *,
        block_size: int = 50,
        unflushed_max: int = 1000,
        pool_size: int = 8,
        redis_url: str | None = None,
        max_status_age_s: float = MAX_STATUS_AGE_S,
    ) -> NoncePort:
        """Open the scheme as its own process would, with another Redis address if one is given."""
        pool = await self._stack.enter_async_context(
            open_pool(
                self._dsn,
                size=pool_size,
                connect_timeout_s=5,
                lease_duration_s=LEASE_S,
                application="nonce lab",
            )
        )
        records = NonceStore(pool, chain_nonce=self.chain_nonce, heal_after_s=HEAL_AFTER_S)
        match scheme:
            case "postgres":
                return PostgresNonces(records)
            case "postgres+lock":
                return PostgresNonces(records, lock=RedisLock(self.link(redis_url)))
            case "redis_issue":
                return RedisIssueNonces(records, self.link(redis_url))
            case "redis_full":
                return RedisFullNonces(records, self.link(redis_url), max_status_age_s=max_status_age_s)
            case "leased":
                return LeasedNonces(records, self._leases(pool), clock=self.clock)
            case _:
                return SegmentNonces(
                    records,
                    clock=self.clock,
                    block_size=block_size,
                    unflushed_max=unflushed_max,
                    dead_after_s=DEAD_AFTER_S,
                )

    def link(self, redis_url: str | None = None) -> RedisClient:
        """Open a Redis client with a clock that moves only by hand, so that the test decides when to probe."""
        link = RedisClient(redis_url or self._redis_url, timeout_s=2, now_s=self.clock.now_s)
        self._stack.push_async_callback(link.close)
        self.links.append(link)
        return link

    def core(self) -> PostgresLedger:
        return self._leases(self.pool)

    def _leases(self, pool: Pool) -> PostgresLedger:
        return PostgresLedger(
            pool,
            clock=self.clock,
            node=f"node-{uuid4().hex[:6]}",
            incarnation=uuid4(),
            lease_duration_s=LEASE_S,
            skew_allowance_s=0,
        )

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        shift = "make_interval(secs => $1)"
        await self.pool.execute(
            f"UPDATE nonce_slot SET expires_at = expires_at - {shift}, held_at = held_at - {shift}", seconds
        )
        await self.pool.execute(
            f"UPDATE nonce_cursor SET redis_off_from = redis_off_from - {shift}, redis_off_until = redis_off_until - {shift}",
            seconds,
        )
        await self.pool.execute(f"UPDATE nonce_block SET seen_at = seen_at - {shift}", seconds)
        await self.pool.execute(f"UPDATE signer_lease SET expires_at = expires_at - {shift}", seconds)
        link = self.link()
        for signer in (ALICE, BOB):
            held = f"fencepost:nonce:{{{signer}}}:held"
            for nonce in await link.command("ZRANGE", held, 0, -1):
                await link.command("ZINCRBY", held, -seconds * 1000, nonce)

    async def slots(self, signer: Signer) -> list[asyncpg.Record]:
        return await self.pool.fetch(
            "SELECT * FROM nonce_slot WHERE chain_id = $1 AND signer = $2 ORDER BY nonce",
            signer.chain_id,
            signer.address,
        )


@asynccontextmanager
async def open_nonce_lab(dsn: str, redis_url: str) -> AsyncIterator[NonceLab]:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            open_pool(dsn, size=4, connect_timeout_s=5, lease_duration_s=LEASE_S, application="looking")
        )
        yield NonceLab(dsn, redis_url, stack, pool)
