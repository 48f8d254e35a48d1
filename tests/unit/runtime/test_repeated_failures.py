"""A lane that keeps failing the same way: PROTECT with the error instead of a loop; an unreadable row is named."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench, BenchNode
from fencepost.application.ports import LaneState
from fencepost.domain.ids import Signer
from fencepost.domain.states import CursorState, State
from fencepost.errors import InvalidRequest
from fencepost.runtime.repeated_failures import MAX_EQUAL_FAILURES, MAX_PAUSE_S
from fencepost.testing import InMemoryLedger


class _Poisoned(InMemoryLedger):
    """A ledger whose lane cannot be loaded, for a permanent reason."""

    is_poisoned = True
    loads = 0

    async def load(self, signer: Signer, *, queue_limit: int) -> LaneState:
        self.loads += 1
        if self.is_poisoned:
            raise ValueError(f"year 10000 is out of range ({self.loads})")
        return await super().load(signer, queue_limit=queue_limit)


async def _run_until_lost(at: BenchNode) -> None:
    """Acquire the signer and run its lane until it is lost."""
    await at.node.heads_once(CHAIN_ID)
    at.node.hint(at.bench.signer)
    await at.node.acquire_once()
    working = asyncio.create_task(at.node.lanes.run())
    try:
        for _ in range(500):
            await asyncio.sleep(0)
            if at.bench.signer not in at.node.lanes:
                break
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_repeated_equal_failures_protect_the_lane_with_the_error() -> None:
    bench = Bench()
    ledger = _Poisoned(bench.database, node="node")
    at = bench.node(ledger=ledger)
    waiting = await bench.request()
    for _ in range(MAX_EQUAL_FAILURES):
        assert bench.signer not in bench.database.cursors
        await _run_until_lost(at)
        assert bench.signer not in at.node.lanes
        await _run_until_lost(at)  # not during its pause
        bench.clock.advance(MAX_PAUSE_S + 1)
    assert ledger.loads == MAX_EQUAL_FAILURES
    await _run_until_lost(at)
    cursor = bench.database.cursors[bench.signer]
    assert cursor.state is CursorState.PROTECT
    assert "ValueError: year 10000 is out of range" in (cursor.reason or "")
    assert bench.events().count("Protect") == 1
    bench.clock.advance(MAX_PAUSE_S + 1)
    await _run_until_lost(at)  # it still fails and reports nothing twice
    assert bench.events().count("Protect") == 1

    ledger.is_poisoned = False
    bench.clock.advance(MAX_PAUSE_S + 1)
    await _run_until_lost(at)
    await bench.ask("unprotect", decision="keep")
    await at.turn(2)
    assert bench.state(waiting) is State.SUBMITTED


async def test_another_failure_or_a_successful_step_restarts_the_count() -> None:
    bench = Bench()
    ledger = _Poisoned(bench.database, node="node")
    at = bench.node(ledger=ledger)
    await bench.request()
    for _ in range(MAX_EQUAL_FAILURES - 1):
        await _run_until_lost(at)
        bench.clock.advance(MAX_PAUSE_S + 1)
    ledger.is_poisoned = False
    await _run_until_lost(at)
    ledger.is_poisoned = True
    at.lane.reconciled = False
    await _run_until_lost(at)
    bench.clock.advance(MAX_PAUSE_S + 1)
    assert at.node.lanes.failures.alarm(bench.signer) is None


async def test_an_unreadable_request_is_named_and_can_be_cancelled() -> None:
    bench = Bench()
    at = bench.node()
    first = await bench.request()
    await at.turn()
    poisoned, behind = await bench.requests(2)
    bench.database.unreadable[poisoned] = "bad payload"
    again_s = await _settled(at)
    cursor = bench.database.cursors[bench.signer]
    assert cursor.state is CursorState.PROTECT
    assert str(poisoned) in (cursor.reason or "")
    assert "cancel" in (cursor.reason or "")
    assert again_s is None or again_s > 0  # it is idle
    bench.chain.mine(2)
    await at.turn(2)
    assert bench.state(first) is State.CONFIRMED  # transactions in flight are still tracked

    early = await bench.ask("unprotect", decision="keep")
    await at.turn()
    assert str(poisoned) in (bench.database.outcome(early) or "")
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    await bench.ask("cancel", poisoned)
    await at.turn()
    assert bench.state(poisoned) is State.CANCELLED
    await bench.ask("unprotect", decision="keep")
    await at.turn(3)
    assert bench.state(behind) is State.SUBMITTED


async def _settled(at: BenchNode) -> float | None:
    """Answer an unreadable row by a reload, like the scheduler."""
    for _ in range(3):
        with suppress(Exception):
            return await at.turn()
        at.lane.reconciled = False
    raise AssertionError("it is read again and again")


@pytest.mark.parametrize("valid_for_s", [0.0, -1.0, 8_000 * 365 * 86_400.0, float("inf"), float("nan")])
async def test_a_deadline_out_of_bounds_is_rejected(valid_for_s: float) -> None:
    bench = Bench()
    with pytest.raises(InvalidRequest) as caught:
        await bench.request(valid_for_s=valid_for_s)
    assert caught.value.field == "validUntil"
    assert not bench.database.txs
    bench.node(QUICK)
