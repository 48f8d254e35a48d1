"""Filling a hole: the nonces below our cursor that nobody has get fillers, and only those."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode, decode
from fencepost.application import holes
from fencepost.application.ports import Cursor
from fencepost.domain.managed import Kind, ManagedTx, Purpose
from fencepost.domain.states import CursorState, State
from fencepost.errors import RpcUnavailable


@pytest.fixture
def bench() -> Bench:
    return Bench()


def too_high(bench: Bench, *, next_nonce: int, start_nonce: int | None = None) -> None:
    """Somebody moved the cursor on the word of a node that lied."""
    start = next_nonce if start_nonce is None else start_nonce
    bench.database.cursors[bench.signer] = Cursor(next_nonce, start)


def fillers(bench: Bench) -> list[ManagedTx]:
    made = [tx for tx in bench.database.txs.values() if tx.kind is Kind.FILLER]
    return sorted(made, key=ManagedTx.held_nonce)


async def protect_and_fill(bench: Bench, node: BenchNode) -> str:
    await bench.ask("protect", reason="nothing is mined")
    wish = await bench.ask("unprotect", reason="found it", decision="fill")
    await node.turn()
    return bench.database.outcome(wish) or ""


async def test_fillers_take_exactly_the_missing_nonces_and_what_lies_above_is_mined(bench: Bench) -> None:
    too_high(bench, next_nonce=3)
    node = bench.node()
    above = await bench.requests(2)
    await node.turn()
    bench.chain.mine()
    await node.turn()
    assert [bench.state(tx_id) for tx_id in above] == [State.SUBMITTED] * 2
    outcome = await protect_and_fill(bench, node)
    assert outcome == "active, fill: fillers take 3 nonces, 0 to 2"
    assert [tx.nonce for tx in fillers(bench)] == [0, 1, 2]
    assert [nonce for nonce in bench.sent_nonces() if nonce < 3] == [0, 1, 2]
    cursor = bench.database.cursors[bench.signer]
    assert cursor == Cursor(next_nonce=5, start_nonce=0)
    bench.chain.mine(2)
    await node.turn(2)
    assert {tx.state for tx in bench.database.txs.values()} == {State.CONFIRMED}
    assert [bench.tx(tx_id).nonce for tx_id in above] == [3, 4]
    later = await bench.request()
    await node.turn()
    assert bench.tx(later).nonce == 5


async def test_a_filler_sends_nothing_to_oneself_and_tells_its_story(bench: Bench) -> None:
    too_high(bench, next_nonce=1)
    node = bench.node()
    await protect_and_fill(bench, node)
    (filler,) = fillers(bench)
    sender, said, _ = decode(filler.latest.signed.raw)
    assert (said.call.to, said.call.value_wei, said.call.data) == (sender, 0, b"")
    assert filler.latest.purpose is Purpose.FILLER
    assert filler.request_id is None
    assert bench.events(filler.tx_id) == ["AssignNonce", "SendResult"]
    assert bench.events(None)[-1] == "Unprotect"
    detail = bench.database.journal_of(None)[-1].detail
    assert (detail["decision"], detail["by"], detail["reason"]) == ("fill", "eve", "found it")


async def test_nonces_that_rows_of_ours_hold_are_left_alone(bench: Bench) -> None:
    node = bench.node()
    mined, waiting = await bench.requests(2)
    await node.turn()
    bench.chain.mine(only=bench.chain.pool - {bench.tx(waiting).latest.signed.hash})
    await node.turn()
    bench.chain.drop(bench.tx(waiting).latest.signed.hash)  # nobody but us knows of nonce 1
    await node.release()
    too_high(bench, next_nonce=4, start_nonce=0)
    node = bench.node()
    (highest,) = await bench.requests(1)
    bench.clock.advance(60)
    await node.turn()
    assert bench.tx(highest).nonce == 4
    await protect_and_fill(bench, node)
    assert [tx.nonce for tx in fillers(bench)] == [2, 3]
    bench.chain.mine(3)
    await node.turn(3)
    assert [bench.state(tx_id) for tx_id in (mined, waiting, highest)] == [State.CONFIRMED] * 3
    assert bench.database.cursors[bench.signer].start_nonce == 0


async def test_what_waits_in_the_pool_is_not_outbid(bench: Bench) -> None:
    """It may be ours, and forgotten by a database that was restored: it will be mined by itself."""
    bench.chain.stranger(bench.signer.address, nonce=0)
    too_high(bench, next_nonce=2)
    node = bench.node()
    await protect_and_fill(bench, node)
    assert [tx.nonce for tx in fillers(bench)] == [1]


async def test_without_a_hole_nothing_is_decided(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    outcome = await protect_and_fill(bench, node)
    assert outcome == "fill does not apply: the chain's nonce is 1, ours is 1, no hole between"
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    await bench.ask("unprotect", decision="keep")
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert fillers(bench) == []


async def test_a_strict_signer_waits_for_its_fillers_before_it_gives_a_nonce(bench: Bench) -> None:
    too_high(bench, next_nonce=2)
    node = bench.node(STRICT)
    await protect_and_fill(bench, node)
    tx_id = await bench.request()
    await node.turn()
    assert bench.state(tx_id) is State.QUEUED
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.tx(tx_id).nonce == 2


async def test_a_wide_hole_is_filled_in_goes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holes, "MOST_FILLED", 2)
    too_high(bench, next_nonce=10**12)
    node = bench.node()
    outcome = await protect_and_fill(bench, node)
    left = 10**12 - 2
    assert (
        outcome
        == f"active, fill: fillers take 2 nonces, 0 to 1; {left} more are missing: protect and fill again when these are mined"
    )
    bench.chain.mine(2)
    await node.turn(2)
    await protect_and_fill(bench, node)
    assert [tx.nonce for tx in fillers(bench)] == [0, 1, 2, 3]


async def test_a_wish_that_a_silent_node_held_up_leaves_nothing_and_is_carried_out_later(
    bench: Bench,
) -> None:
    too_high(bench, next_nonce=2)
    node = bench.node()
    await bench.ask("protect", reason="r")
    await node.turn()
    wish = await bench.ask("unprotect", reason="r", decision="fill")
    node.node.hint(bench.signer)
    bench.chain.offline = True
    with pytest.raises(RpcUnavailable):
        await node.turn()
    bench.chain.offline = False
    assert (fillers(bench), bench.database.outcome(wish)) == ([], None)
    await node.turn()
    assert [tx.nonce for tx in fillers(bench)] == [0, 1]


async def test_the_next_owner_sends_fillers_that_a_node_forgot(bench: Bench) -> None:
    too_high(bench, next_nonce=2)
    node = bench.node(replace(QUICK, resubmit_enabled=False))
    await protect_and_fill(bench, node)
    for filler in fillers(bench):
        bench.chain.drop(filler.latest.signed.hash)
    await node.release()
    other = bench.node(name="other")
    bench.clock.advance(60)
    bench.chain.sent.clear()
    await bench.request()
    await other.turn()
    assert bench.sent_nonces() == [0, 1]  # nothing gets a nonce while they wait
    bench.chain.mine(2)
    await other.turn(2)
    assert bench.sent_nonces() == [0, 1, 2]
