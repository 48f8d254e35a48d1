"""What ends in the step that sent it makes room for the next request, and nobody else would say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fakes.bench import CHAIN_ID, STRICT, Bench
from fencepost.domain.send import SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import SignedTx


async def test_the_queue_goes_on_behind_what_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    node = bench.node(replace(STRICT, required=0, fetch_receipt_upon_entry=True))
    honest = bench.chain.send

    async def mined_at_once(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        results = await honest(txs)
        bench.chain.mine()
        await node.node.heads_once(CHAIN_ID)
        return results

    monkeypatch.setattr(bench.chain, "send", mined_at_once)
    first, second = await bench.requests(2)
    await node.turn()
    assert (bench.state(first), bench.state(second)) == (State.CONFIRMED, State.CONFIRMED)
