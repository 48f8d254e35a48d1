"""What loops tell of their failures: an outage in two lines, a mistake of ours with its trace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from uuid import uuid4

import pytest

from fakes.bench import CHAIN_ID, Bench
from fencepost.application.ports import Header
from fencepost.domain.confirmations import BlockRef
from fencepost.errors import RpcUnavailable
from fencepost.lab.sim.ledger import FakeLedger
from fencepost.runtime import following
from fencepost.runtime.looping import Trouble


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_database_that_is_away_costs_those_who_follow_a_chain_two_lines(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(FakeLedger):
        failures = 5

        async def newest_ended_blocks(self, chain_id: int, *, limit: int) -> Sequence[BlockRef]:
            self.failures -= 1
            if self.failures >= 0:
                raise ConnectionRefusedError if self.failures % 2 else TimeoutError
            return await super().newest_ended_blocks(chain_id, limit=limit)

    async def one_head() -> AsyncGenerator[Header, None]:
        yield await bench.chain.head()
        is_told.set()

    monkeypatch.setattr(following, "FIRST_PAUSE_S", 0.001)
    is_told = asyncio.Event()
    node = bench.node(ledger=Away(bench.database, node="node", incarnation=uuid4())).node
    node.following.heads[CHAIN_ID] = one_head  # type: ignore[index]  # a dict, for this once
    async with asyncio.timeout(10):
        await node.following.run(CHAIN_ID)
    assert is_told.is_set()
    assert [record.getMessage() for record in caplog.records] == [
        f"heads of chain {CHAIN_ID}: the database does not answer (TimeoutError)",
        f"heads of chain {CHAIN_ID}: goes on",
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_what_turns_into_something_else_is_told_and_so_is_what_comes_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = Trouble("seek")
    for error in (RpcUnavailable("a"), RpcUnavailable("a"), RpcUnavailable("b"), OSError(), OSError()):
        trouble.met(error)
    trouble.over()
    trouble.over()
    trouble.met(OSError())
    assert [record.getMessage() for record in caplog.records] == [
        "seek: a",
        "seek: b",
        "seek: the database does not answer (OSError)",
        "seek: goes on",
        "seek: the database does not answer (OSError)",
    ]


def test_a_mistake_of_ours_has_its_trace_each_time(caplog: pytest.LogCaptureFixture) -> None:
    trouble = Trouble("seek")
    trouble.met(KeyError("x"))
    trouble.met(KeyError("x"))
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR] * 2
