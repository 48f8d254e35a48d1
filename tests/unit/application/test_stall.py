"""A lane that can't continue for long: its transactions say why, and no longer when it continues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench, BenchNode
from fencepost.adapters.signers.local import LocalKeys
from fencepost.application.stall import STALL_AFTER_S
from fencepost.domain.ids import Address
from fencepost.domain.states import State, SubState
from fencepost.domain.transaction import SignedTx, UnsignedTx
from fencepost.errors import RpcRefused, SigningError
from fencepost.runtime.lane_slot import MAX_PAUSE_S
from fencepost.testing import InMemoryChain


class _Silent:
    """Keys of a signing service that does not answer at the moment."""

    def __init__(self, keys: LocalKeys) -> None:
        self._keys = keys
        self.is_down = True

    def __getattr__(self, name: str) -> object:
        return getattr(self._keys, name)

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if self.is_down:
            raise SigningError("the signing service answered HTTP 503")
        return await self._keys.sign(address, txs)


async def _run(at: BenchNode) -> None:
    """Let the scheduler do what is due now: acquire the signer and step its lane."""
    await at.node.heads_once(CHAIN_ID)
    at.node.hint(at.bench.signer)
    await at.node.acquire_once()
    at.node.lanes.wake(at.bench.signer)
    working = asyncio.create_task(at.node.lanes.run())
    try:
        for _ in range(200):
            await asyncio.sleep(0)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    await at.node.renew_once()


async def _run_for(at: BenchNode, seconds: float) -> None:
    for _ in range(round(seconds)):
        at.bench.clock.advance(1.0)
        await _run(at)


async def test_a_signing_service_that_does_not_answer_is_named_on_the_request() -> None:
    bench = Bench()
    keys = _Silent(bench.keys)
    at = bench.node(keys=keys)  # type: ignore[arg-type]  # it refuses everything
    tx_id = await bench.request()
    await _run(at)
    assert bench.tx(tx_id).sub_state is None  # it may pass
    await _run_for(at, STALL_AFTER_S + 2)
    stuck = bench.tx(tx_id)
    assert stuck.sub_state is SubState.STUCK
    assert "the signing service answered HTTP 503" in (stuck.error or "")
    await _run_for(at, 3 * MAX_PAUSE_S)
    assert bench.events(tx_id).count("Stuck") == 1  # and not in every round

    keys.is_down = False
    await _run_for(at, 2)
    allocated = bench.tx(tx_id)
    assert allocated.state is State.SUBMITTED
    assert (allocated.sub_state, allocated.error) == (None, None)


@pytest.mark.parametrize("method", ["nonce", "receipts", "quote_fees"])
async def test_a_permanently_rejected_read_is_recorded_on_the_waiting_transactions(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    at = bench.node(QUICK)
    out = await bench.request()
    await _run(at)
    assert bench.state(out) is State.SUBMITTED

    async def refuse(*_: object, **__: object) -> object:
        raise RpcRefused(f"{method} is not available", rpc_code=-32601)

    monkeypatch.setattr(InMemoryChain, method, refuse)
    bench.clock.advance(60.0)  # what was read before has expired
    at.lane.blocks.must_fetch_receipts = True
    waiting = await bench.request()
    await _run_for(at, STALL_AFTER_S + 20)
    said = {bench.tx(tx_id).error for tx_id in (out, waiting) if bench.tx(tx_id).sub_state is SubState.STUCK}
    assert any(f"{method} is not available" in (error or "") for error in said), said
