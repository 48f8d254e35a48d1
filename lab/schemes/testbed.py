"""The testbed of the nonce schemes: PostgreSQL, Redis with a replica, and relays that can be cut.

Everything is in one folder and ends with the testbed. Each scheme is opened as a process would open it: with its own
connections and its own owner. There is no chain.
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
from fencepost.nonce.leased import LeasedNonces
from fencepost.nonce.port import NoncePort
from fencepost.nonce.postgres import PostgresNonces
from fencepost.nonce.redis_authority import MAX_STATUS_AGE_S
from fencepost.nonce.redis_client import RedisClient
from fencepost.nonce.redis_full import RedisFullNonces
from fencepost.nonce.redis_issue import RedisIssueNonces
from fencepost.nonce.segments import SegmentNonces
from fencepost.nonce.store import NonceStore
from lab.proxies.relay import Relay, relay

SCHEMES = ("postgres", "redis_issue", "redis_full", "leased", "segments")
CHAIN_ID = 31_337
TEND_INTERVAL_S = 0.2  # as nonce_service.tend_interval
HEAL_AFTER_S = 0.3
DEAD_AFTER_S = 0.6
POOL_LEASE_S = 10.0  # sets the time-outs of connections: a busy machine must not look like a fault
EXPECTED = (
    FencepostError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server ended the session during a statement
    OSError,
    TimeoutError,
)


class PausableClock:
    """Monotonic time until it is stopped: a paused process believes that no time has passed."""

    def __init__(self) -> None:
        self._stopped_at_s: float | None = None

    def stop(self) -> None:
        self._stopped_at_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() if self._stopped_at_s is None else self._stopped_at_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """The addresses of the servers, also for processes that are started."""

    dsn: str = field(repr=False)
    redis_url: str


@dataclass(frozen=True, slots=True)
class OpenScheme:
    """A scheme and its clock."""

    port: NoncePort
    clock: PausableClock


@asynccontextmanager
async def open_scheme(
    name: str,
    servers: ServerAddresses,
    *,
    lease_s: float = 10.0,
    max_status_age_s: float = MAX_STATUS_AGE_S,
    block_size: int = 500,
    pool_size: int = 8,
    ends_cleanly: bool = True,
) -> AsyncIterator[OpenScheme]:
    """Open a scheme, and tend it in the background until the body ends.

    A scheme that can't close cleanly is closed all the same.
    """
    clock = PausableClock()
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            open_pool(
                servers.dsn,
                size=pool_size,
                connect_timeout_s=5,
                lease_duration_s=POOL_LEASE_S,
                application="fencepost lab",
            )
        )
        records = NonceStore(pool, chain_nonce=_nothing_seen, heal_after_s=HEAL_AFTER_S)
        link = RedisClient(servers.redis_url, probe_interval_s=0.2, timeout_s=0.5)
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
                port = RedisFullNonces(records, link, max_status_age_s=max_status_age_s)
            case "leased":
                port = LeasedNonces(records, leases, clock=clock)
            case _:
                port = SegmentNonces(records, clock=clock, block_size=block_size, dead_after_s=DEAD_AFTER_S)
        async with asyncio.TaskGroup() as group:
            tending = group.create_task(_tend(port, clock))
            try:
                yield OpenScheme(port, clock)
            finally:
                tending.cancel()
                if ends_cleanly:
                    with suppress(*EXPECTED):
                        await port.close()


async def _tend(port: NoncePort, clock: PausableClock) -> None:
    task = asyncio.current_task()
    while task is not None and not task.cancelling():  # asyncio.wait_for of 3.11 may swallow one
        if clock.now_s() + TEND_INTERVAL_S >= time.monotonic():  # a paused process does nothing
            with suppress(*EXPECTED):  # failures are retried; the load counts those that callers see
                await port.tend_once()
        await asyncio.sleep(TEND_INTERVAL_S)


async def _nothing_seen(_signer: Signer) -> int:
    return 0


def new_signer() -> Signer:
    """Return a signer that no scheme has seen."""
    return Signer(CHAIN_ID, Address("0x" + (uuid4().hex + uuid4().hex)[:40]))


@dataclass(slots=True)
class Testbed:
    """The running servers and relays."""

    postgres: EmbeddedPostgres
    redis: EmbeddedRedis
    replica: EmbeddedRedis
    to_postgres: Relay
    to_redis: Relay

    @property
    def direct(self) -> ServerAddresses:
        return ServerAddresses(self.postgres.tcp_dsn, self.redis.url)

    @property
    def through_relays(self) -> ServerAddresses:
        parts = urlsplit(self.postgres.tcp_dsn)
        host = f"{parts.netloc.rpartition(':')[0]}:{self.to_postgres.port}"
        return ServerAddresses(
            urlunsplit(parts._replace(netloc=host)), f"redis://127.0.0.1:{self.to_redis.port}/0"
        )


def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fencepost-lab-"))
    folder.chmod(0o755)  # PostgreSQL may run as another user, which must be able to enter
    return folder


@asynccontextmanager
async def open_testbed() -> AsyncIterator[Testbed]:
    """Start the servers and relays."""
    folder = _folder()
    async with AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        postgres = await stack.enter_async_context(embedded_postgres(folder / "postgres"))
        await migrate.apply(postgres.dsn)
        redis = await stack.enter_async_context(embedded_redis(folder / "redis"))
        replica = await stack.enter_async_context(embedded_redis(folder / "replica"))
        yield Testbed(
            postgres,
            redis,
            replica,
            await stack.enter_async_context(relay("127.0.0.1", postgres.port)),
            await stack.enter_async_context(relay("127.0.0.1", redis.port)),
        )
