"""Fixtures of several integration suites: a stage on PostgreSQL, misbehaving endpoints, and the nonce schemes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fakes.endpoint import FakeEndpoint, OpenChains, serve_endpoints
from integration.stage import Stage, open_stage
from lab.proxies.relay import Relay
from nonce_lab import NonceLab, open_nonce_lab


@pytest_asyncio.fixture
async def on(dsn: str) -> AsyncIterator[Stage]:
    async with open_stage(dsn) as chains:
        yield chains


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[list[FakeEndpoint]]:
    async with serve_endpoints(3) as made:
        yield made


@pytest.fixture
def node(nodes: list[FakeEndpoint]) -> FakeEndpoint:
    return nodes[0]


@pytest_asyncio.fixture
async def chains() -> AsyncIterator[OpenChains]:
    made = OpenChains()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def lab(dsn: str, redis_relay: Relay) -> AsyncIterator[NonceLab]:
    """Open the nonce lab behind a connection to Redis that can be cut."""
    async with open_nonce_lab(dsn, f"redis://127.0.0.1:{redis_relay.port}/0") as made:
        yield made
