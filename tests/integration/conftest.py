"""What more than one of these suites needs: a stage on PostgreSQL, nodes that misbehave, and the schemes of nonces."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fakes.node import Node, Opened, serving
from fencepost.lab.relay import Relay
from integration.stage import Stage, open_stage
from nonce_lab import NonceLab, open_nonce_lab


@pytest_asyncio.fixture
async def on(dsn: str) -> AsyncIterator[Stage]:
    async with open_stage(dsn) as opened:
        yield opened


@pytest_asyncio.fixture
async def nodes() -> AsyncIterator[list[Node]]:
    async with serving(3) as made:
        yield made


@pytest.fixture
def node(nodes: list[Node]) -> Node:
    return nodes[0]


@pytest_asyncio.fixture
async def opened() -> AsyncIterator[Opened]:
    made = Opened()
    yield made
    await made.close()


@pytest_asyncio.fixture
async def lab(dsn: str, redis_relay: Relay) -> AsyncIterator[NonceLab]:
    """Behind a wire to Redis that can be cut."""
    async with open_nonce_lab(dsn, f"redis://127.0.0.1:{redis_relay.port}/0") as made:
        yield made
