"""How many nonces a lane allocates per round: its fair share and a small remainder, although its window may hold more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from fakes.bench import QUICK, Bench, BenchNode
from fakes.rounds import run_alone
from fencepost.application.allocate import MAX_NONCES_PER_COMMIT
from fencepost.domain.send_result import SendResult
from fencepost.domain.transaction import SignedTx
from fencepost.runtime.lane_scheduler import (
    MAX_SET_SIZE,
    MIN_NONCES_PER_ROUND,
    MIN_SET_SIZE,
    fair_share,
    set_size,
)


async def _with_room_for(most: int, bench: Bench) -> BenchNode:
    at = bench.node(replace(QUICK, max_in_flight=most))
    await at.ended(1)
    at.observer.notes.clear()
    return at


def _sent_at_once(at: BenchNode) -> list[int]:
    return [len(cast("list[UUID]", fields["txs"])) for fields in at.observer.of("sent")]


async def test_a_share_is_sent_before_more_is_signed() -> None:
    bench = Bench()
    at = await _with_room_for(16, bench)
    await bench.requests(8)
    at.node.hint(bench.signer)
    await run_alone(at.lane, at_most=3)
    assert _sent_at_once(at) == [3, 3, 2]
    assert bench.sent_nonces() == list(range(9))


async def test_a_small_remainder_joins_the_last_round() -> None:
    bench = Bench()
    at = await _with_room_for(16, bench)
    await bench.requests(7)
    at.node.hint(bench.signer)
    await run_alone(at.lane, at_most=3)
    assert _sent_at_once(at) == [3, 4]


async def test_mined_transactions_are_written_before_the_next_share_is_signed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    at = await _with_room_for(16, bench)
    await bench.requests(8)
    at.node.hint(bench.signer)
    lane, to_chain = at.lane, at.lane.ports.chain.send

    async def mined_at_once(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        results = await to_chain(txs)
        bench.chain.mine()
        await lane.ports.chain_view.refresh()
        return results

    monkeypatch.setattr(lane.ports.chain, "send", mined_at_once)
    assert await run_alone(lane, at_most=3) == 0.0
    assert _sent_at_once(at) == [3]
    monkeypatch.undo()
    await run_alone(lane, at_most=3)
    assert _sent_at_once(at) == [3, 3, 2]


async def test_a_window_larger_than_a_share_is_filled() -> None:
    bench = Bench()
    at = await _with_room_for(MAX_NONCES_PER_COMMIT + 40, bench)
    await bench.requests(MAX_NONCES_PER_COMMIT + 50)
    await at.turn()
    assert _sent_at_once(at) == [MAX_NONCES_PER_COMMIT, 40]


@pytest.mark.parametrize(
    ("lanes", "share"),
    [
        (1, MAX_NONCES_PER_COMMIT),
        (2, MAX_NONCES_PER_COMMIT // 2),
        (50, MIN_NONCES_PER_ROUND),
        (10_000, MIN_NONCES_PER_ROUND),
    ],
)
def test_the_share_shrinks_with_the_number_of_lanes_to_a_minimum(lanes: int, share: int) -> None:
    assert fair_share(lanes) == share


@pytest.mark.parametrize(
    ("lanes", "size"), [(1, MIN_SET_SIZE), (400, MIN_SET_SIZE), (800, 200), (10_000, MAX_SET_SIZE)]
)
def test_the_batch_grows_with_many_waiting_lanes(lanes: int, size: int) -> None:
    assert set_size(lanes) == size
