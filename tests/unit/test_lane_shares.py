"""How many nonces a lane gives at once: its share and a small rest, though its window may hold more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from fakes.bench import QUICK, Bench, BenchNode
from fencepost.application.allocate import MOST_AT_ONCE
from fencepost.application.step import step
from fencepost.domain.send import SendResult
from fencepost.domain.transaction import SignedTx
from fencepost.runtime.shares import LEAST_A_SWEEP, LEAST_AT_ONCE, MOST_A_SWEEP, fair_share, sweep_size


async def _with_room_for(most: int, bench: Bench) -> BenchNode:
    at = bench.node(replace(QUICK, max_in_flight=most))
    await at.ended(1)
    at.observer.notes.clear()
    return at


def _sent_at_once(at: BenchNode) -> list[int]:
    return [len(cast("list[UUID]", fields["txs"])) for fields in at.observer.of("sent")]


async def test_its_share_is_sent_before_more_is_signed() -> None:
    bench = Bench()
    at = await _with_room_for(16, bench)
    await bench.requests(8)
    at.node.hint(bench.signer)
    await step(at.lane, at_most=3)
    assert _sent_at_once(at) == [3, 3, 2]
    assert bench.sent_nonces() == list(range(9))


async def test_a_small_rest_makes_no_round_of_its_own() -> None:
    bench = Bench()
    at = await _with_room_for(16, bench)
    await bench.requests(7)
    at.node.hint(bench.signer)
    await step(at.lane, at_most=3)
    assert _sent_at_once(at) == [3, 4]


async def test_what_a_block_has_is_written_before_the_next_share_is_signed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    at = await _with_room_for(16, bench)
    await bench.requests(8)
    at.node.hint(bench.signer)
    lane, to_chain = at.lane, at.lane.chain.send

    async def mined_at_once(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        results = await to_chain(txs)
        bench.chain.mine()
        await lane.watch.refresh()
        return results

    monkeypatch.setattr(lane.chain, "send", mined_at_once)
    assert await step(lane, at_most=3) == 0.0
    assert _sent_at_once(at) == [3]
    monkeypatch.undo()
    await step(lane, at_most=3)
    assert _sent_at_once(at) == [3, 3, 2]


async def test_a_window_larger_than_a_share_fills() -> None:
    bench = Bench()
    at = await _with_room_for(MOST_AT_ONCE + 40, bench)
    await bench.requests(MOST_AT_ONCE + 50)
    await at.turn()
    assert _sent_at_once(at) == [MOST_AT_ONCE, 40]


@pytest.mark.parametrize(
    ("lanes", "share"),
    [(1, MOST_AT_ONCE), (2, MOST_AT_ONCE // 2), (50, LEAST_AT_ONCE), (10_000, LEAST_AT_ONCE)],
)
def test_a_lane_alone_takes_all_and_one_in_a_crowd_enough_for_a_batch(lanes: int, share: int) -> None:
    assert fair_share(lanes) == share


@pytest.mark.parametrize(
    ("lanes", "size"), [(1, LEAST_A_SWEEP), (400, LEAST_A_SWEEP), (800, 200), (10_000, MOST_A_SWEEP)]
)
def test_a_sweep_is_larger_where_very_many_stand_in_line(lanes: int, size: int) -> None:
    assert sweep_size(lanes) == size
