"""A real Redis a worker, empty for each test; and a relay in front of it that can be cut."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest_asyncio

from fencepost.dev.redis import EmbeddedRedis, embedded_redis
from fencepost.lab.relay import Relay, relay
from fencepost.nonce.redis_link import RedisLink
from fix_postgres import run_folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def worker_redis() -> AsyncIterator[EmbeddedRedis]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    async with embedded_redis(run_folder() / f"redis-{worker}") as server:
        yield server


@pytest_asyncio.fixture
async def redis_server(worker_redis: EmbeddedRedis) -> AsyncIterator[EmbeddedRedis]:
    link = RedisLink(worker_redis.url)
    await link.command("FLUSHALL")
    await link.close()
    yield worker_redis


@pytest_asyncio.fixture
async def redis_relay(redis_server: EmbeddedRedis) -> AsyncIterator[Relay]:
    async with relay("127.0.0.1", redis_server.port) as made:
        yield made
