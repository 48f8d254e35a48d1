"""A transaction that finishes in the step that sent it frees the window for the next request without another wake-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fakes.bench import CHAIN_ID, QUICK, STRICT, Bench
from fencepost.application.track import INSTANT_MINING_PAUSES_S
from fencepost.domain.send_result import SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import SignedTx


async def test_the_queue_continues_after_a_transaction_that_finishes_instantly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    node = bench.node(replace(STRICT, required=0, fetch_receipt_upon_entry=True))
    _mine_with_every_send(bench, monkeypatch)
    first, second = await bench.requests(2)
    await node.turn()
    assert (bench.state(first), bench.state(second)) == (State.CONFIRMED, State.CONFIRMED)


async def test_an_instant_receipt_may_need_a_short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    node = bench.node(replace(STRICT, required=0, fetch_receipt_upon_entry=True))
    pauses_s: list[float] = []

    async def a_block_meanwhile(seconds: float) -> None:
        pauses_s.append(seconds)
        bench.chain.mine()

    monkeypatch.setattr(bench.clock, "sleep", a_block_meanwhile)
    first, second = await bench.requests(2)
    await node.turn()
    assert (bench.state(first), bench.state(second)) == (State.CONFIRMED, State.CONFIRMED)
    assert pauses_s == [INSTANT_MINING_PAUSES_S[0]] * 2


async def test_a_chain_that_does_not_mine_instantly_is_polled_for_one_send_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    node = bench.node(replace(QUICK, required=0, fetch_receipt_upon_entry=True))
    pauses_s: list[float] = []

    async def nothing_meanwhile(seconds: float) -> None:
        pauses_s.append(seconds)

    monkeypatch.setattr(bench.clock, "sleep", nothing_meanwhile)
    tx_id = await bench.request()
    await node.turn()
    assert pauses_s == list(INSTANT_MINING_PAUSES_S)
    await bench.request()
    await node.turn()
    assert pauses_s == list(INSTANT_MINING_PAUSES_S)
    bench.chain.mine()
    await node.turn()
    assert bench.state(tx_id) is State.CONFIRMED


async def test_only_an_unsuccessful_instant_read_wakes_the_head_follower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    node = bench.node(replace(STRICT, required=0, fetch_receipt_upon_entry=True))
    block_expected = node.node.chain_views[CHAIN_ID].block_expected
    with monkeypatch.context() as at_once:
        _mine_with_every_send(bench, at_once)
        await bench.request()
        await node.turn()
    assert not block_expected.is_set()
    node.lane.blocks.mines_instantly = False
    tx_id = await bench.request()
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    assert block_expected.is_set()


async def test_an_instant_read_notices_a_fork_at_the_same_height(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    node = bench.node(replace(STRICT, required=0, fetch_receipt_upon_entry=True))
    bench.chain.mine()
    await node.node.heads_once(CHAIN_ID)
    height = bench.chain.height
    honest = bench.chain.send

    async def forks(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        results = await honest(txs)
        bench.chain.reorg(1, keep=[tx.hash for tx in txs])
        bench.chain._blocks.pop()  # the last block has not arrived here yet
        return results

    monkeypatch.setattr(bench.chain, "send", forks)
    tx_id = await bench.request()
    await node.turn()
    assert bench.chain.height == height
    assert bench.state(tx_id) is State.TRACKING  # it finishes once earlier finished transactions are verified
    await node.turn()
    assert bench.state(tx_id) is State.CONFIRMED


def _mine_with_every_send(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = bench.chain.send

    async def mined_at_once(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        results = await honest(txs)
        bench.chain.mine()
        return results

    monkeypatch.setattr(bench.chain, "send", mined_at_once)
