"""Failure logs of the loops: an outage gives two lines, an internal error its trace."""

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
from fencepost.runtime import head_follower
from fencepost.tasks.service_loop import FailureLog
from fencepost.testing import InMemoryLedger


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_database_outage_gives_the_head_follower_two_log_lines(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(InMemoryLedger):
        failures = 5

        async def newest_ended_blocks(
            self, chain_id: int, *, limit: int, below: int | None = None
        ) -> Sequence[BlockRef]:
            self.failures -= 1
            if self.failures >= 0:
                raise ConnectionRefusedError if self.failures % 2 else TimeoutError
            return await super().newest_ended_blocks(chain_id, limit=limit, below=below)

    async def one_head() -> AsyncGenerator[Header, None]:
        yield await bench.chain.head()
        is_read.set()

    monkeypatch.setattr(head_follower, "FIRST_PAUSE_S", 0.001)
    is_read = asyncio.Event()
    node = bench.node(ledger=Away(bench.database, node="node", incarnation=uuid4())).node
    node.head_follower.heads[CHAIN_ID] = one_head  # type: ignore[index]  # a dict here
    async with asyncio.timeout(10):
        await node.head_follower.run(CHAIN_ID)
    assert is_read.is_set()
    assert [record.getMessage() for record in caplog.records] == [
        f"heads of chain {CHAIN_ID}: the database does not answer (TimeoutError)",
        f"heads of chain {CHAIN_ID}: recovered",
    ]
    assert not any(record.exc_info for record in caplog.records)


def test_a_changed_or_returning_failure_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure_log = FailureLog("seek")
    for error in (RpcUnavailable("a"), RpcUnavailable("a"), RpcUnavailable("b"), OSError(), OSError()):
        failure_log.failed(error)
    failure_log.succeeded()
    failure_log.succeeded()
    failure_log.failed(OSError())
    assert [record.getMessage() for record in caplog.records] == [
        "seek: a",
        "seek: b",
        "seek: the database does not answer (OSError)",
        "seek: recovered",
        "seek: the database does not answer (OSError)",
    ]


def test_an_internal_error_is_logged_with_its_trace_each_time(caplog: pytest.LogCaptureFixture) -> None:
    failure_log = FailureLog("seek")
    failure_log.failed(KeyError("x"))
    failure_log.failed(KeyError("x"))
    assert [record.levelno for record in caplog.records if record.exc_info] == [logging.ERROR] * 2
