"""Where nonce schemes are compared: a PostgreSQL, a Redis with a replica, and wires that can be cut, all of it ours.

Everything lies in a folder of its own and ends with the stage. Each scheme is opened as a process would open it: its own
connections, its own owner. The chain is left out: it has seen nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg

from fencepost.adapters.postgres import migrate
from fencepost.adapters.postgres.database import open_pool
from fencepost.adapters.postgres.ledger import PostgresLedger
from fencepost.dev.postgres import EmbeddedPostgres, embedded_postgres
from fencepost.dev.redis import EmbeddedRedis, embedded_redis
from fencepost.domain.ids import Address, Signer
from fencepost.errors import FencepostError
from fencepost.lab.relay import Relay, relay
from fencepost.nonce.leased import LeasedNonces
from fencepost.nonce.port import NoncePort
from fencepost.nonce.postgres import PostgresNonces
from fencepost.nonce.records import Records
from fencepost.nonce.redis_full import RedisFullNonces
from fencepost.nonce.redis_issue import RedisIssueNonces
from fencepost.nonce.redis_link import RedisLink
from fencepost.nonce.redis_turns import HEARD_WITHIN_S
from fencepost.nonce.segments import SegmentNonces

SCHEMES = ("postgres", "redis_issue", "redis_full", "leased", "segments")
CHAIN_ID = 31_337
TEND_EVERY_S = 0.2  # as nonce_service.tend_interval
HEAL_AFTER_S = 0.3
DEAD_AFTER_S = 0.6
POOL_LEASE_S = 10.0  # the time-outs of connections come from it: a busy machine must not look like a fault
EXPECTED = (
    FencepostError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server ended the session while a statement was under way
    OSError,
    TimeoutError,
)


class PausableClock:
    """As monotonic time, until it is stopped: a process that was paused believes that no time has passed."""

    def __init__(self) -> None:
        self._stopped_at_s: float | None = None

    def stop(self) -> None:
        self._stopped_at_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() if self._stopped_at_s is None else self._stopped_at_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the servers are; a process that is started gets this."""

    dsn: str = field(repr=False)
    redis_url: str


@dataclass(frozen=True, slots=True)
class Opened:
    port: NoncePort
    clock: PausableClock


@asynccontextmanager
async def open_scheme(
    name: str,
    places: Places,
    *,
    lease_s: float = 10.0,
    heard_within_s: float = HEARD_WITHIN_S,
    block_size: int = 500,
    pool_size: int = 8,
    ends_cleanly: bool = True,
) -> AsyncIterator[Opened]:
    """At work: it is tended in the background. A scheme that can't end cleanly any more ends all the same."""
    clock = PausableClock()
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            open_pool(
                places.dsn,
                size=pool_size,
                connect_timeout_s=5,
                lease_duration_s=POOL_LEASE_S,
                application="fencepost lab",
            )
        )
        records = Records(pool, seen_by_chain=_nothing_seen, heal_after_s=HEAL_AFTER_S)
        link = RedisLink(places.redis_url, probe_every_s=0.2, timeout_s=0.5)
        stack.push_async_callback(link.close)
        leases = PostgresLedger(
            pool,
            clock=clock,
            node=f"lab-{uuid4().hex[:6]}",
            incarnation=uuid4(),
            lease_duration_s=lease_s,
            skew_allowance_s=0,
        )
        port: NoncePort
        match name:
            case "postgres":
                port = PostgresNonces(records)
            case "redis_issue":
                port = RedisIssueNonces(records, link)
            case "redis_full":
                port = RedisFullNonces(records, link, heard_within_s=heard_within_s)
            case "leased":
                port = LeasedNonces(records, leases, clock=clock)
            case _:
                port = SegmentNonces(records, clock=clock, block_size=block_size, dead_after_s=DEAD_AFTER_S)
        async with asyncio.TaskGroup() as group:
            tending = group.create_task(_tend(port, clock))
            try:
                yield Opened(port, clock)
            finally:
                tending.cancel()
                if ends_cleanly:
                    with suppress(*EXPECTED):
                        await port.close()


async def _tend(port: NoncePort, clock: PausableClock) -> None:
    task = asyncio.current_task()
    while task is not None and not task.cancelling():  # asyncio.wait_for of 3.11 may swallow one
        if clock.now_s() + TEND_EVERY_S >= time.monotonic():  # a paused process does nothing
            with suppress(*EXPECTED):  # what fails is tried again; the load counts what callers see of it
                await port.tend_once()
        await asyncio.sleep(TEND_EVERY_S)


async def _nothing_seen(_signer: Signer) -> int:
    return 0


def new_signer() -> Signer:
    return Signer(CHAIN_ID, Address("0x" + (uuid4().hex + uuid4().hex)[:40]))


@dataclass(slots=True)
class Stage:
    postgres: EmbeddedPostgres
    redis: EmbeddedRedis
    replica: EmbeddedRedis
    to_postgres: Relay
    to_redis: Relay

    @property
    def direct(self) -> Places:
        return Places(self.postgres.tcp_dsn, self.redis.url)

    @property
    def through_wires(self) -> Places:
        parts = urlsplit(self.postgres.tcp_dsn)
        host = f"{parts.netloc.rpartition(':')[0]}:{self.to_postgres.port}"
        return Places(urlunsplit(parts._replace(netloc=host)), f"redis://127.0.0.1:{self.to_redis.port}/0")


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fencepost-lab-"))
    folder.chmod(0o755)  # PostgreSQL may run as another user, who passes through it
    return folder


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    folder = _folder()
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres = await stack.enter_async_context(embedded_postgres(folder / "postgres"))
        await migrate.apply(postgres.dsn)
        redis = await stack.enter_async_context(embedded_redis(folder / "redis"))
        replica = await stack.enter_async_context(embedded_redis(folder / "replica"))
        yield Stage(
            postgres,
            redis,
            replica,
            await stack.enter_async_context(relay("127.0.0.1", postgres.port)),
            await stack.enter_async_context(relay("127.0.0.1", redis.port)),
        )
