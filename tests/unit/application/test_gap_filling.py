"""Gap filling: only the free nonces below the cursor get fillers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.bench import QUICK, STRICT, Bench, BenchNode, decode
from fencepost.application import gap_filling
from fencepost.application.gap_filling import GAP_ALARM_S
from fencepost.application.nonce_sync import LAG_RETRY_S
from fencepost.application.ports import Cursor
from fencepost.domain.states import CursorState, State
from fencepost.domain.transaction_state import Kind, ManagedTx, Purpose
from fencepost.errors import RpcUnavailable


@pytest.fixture
def bench() -> Bench:
    return Bench()


def too_high(bench: Bench, *, next_nonce: int, start_nonce: int | None = None) -> None:
    """Move the cursor too far, as after a wrong answer of an endpoint."""
    start = next_nonce if start_nonce is None else start_nonce
    bench.database.cursors[bench.signer] = Cursor(next_nonce, start)


def fillers(bench: Bench) -> list[ManagedTx]:
    made = [tx for tx in bench.database.txs.values() if tx.kind is Kind.FILLER]
    return sorted(made, key=ManagedTx.held_nonce)


async def protect_and_fill(bench: Bench, node: BenchNode) -> str:
    await bench.ask("protect", reason="nothing is mined")
    command = await bench.ask("unprotect", reason="found it", decision="fill")
    await node.turn()
    return bench.database.outcome(command) or ""


async def test_fillers_take_exactly_the_missing_nonces_and_higher_transactions_are_mined(
    bench: Bench,
) -> None:
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


async def test_a_filler_is_an_empty_transfer_to_its_signer_and_has_a_journal(bench: Bench) -> None:
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


async def test_nonces_with_stored_transactions_get_no_filler(bench: Bench) -> None:
    node = bench.node()
    mined, waiting = await bench.requests(2)
    await node.turn()
    bench.chain.mine(only=bench.chain.pool - {bench.tx(waiting).latest.signed.hash})
    await node.turn()
    bench.chain.drop(bench.tx(waiting).latest.signed.hash)  # only the ledger knows nonce 1
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


async def test_a_pending_transaction_is_not_outbid(bench: Bench) -> None:
    """It may be ours, lost by a restored database: it will be mined by itself."""
    bench.chain.add_foreign_tx(bench.signer.address, nonce=0)
    too_high(bench, next_nonce=2)
    node = bench.node()
    await protect_and_fill(bench, node)
    assert [tx.nonce for tx in fillers(bench)] == [1]


async def test_without_a_gap_nothing_changes(bench: Bench) -> None:
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    outcome = await protect_and_fill(bench, node)
    assert (
        outcome
        == "fill does not apply: the chain's nonce is 1, the cursor is 1, and there is no nonce gap between them"
    )
    assert bench.database.cursors[bench.signer].state is CursorState.PROTECT
    await bench.ask("unprotect", decision="keep")
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.state(tx_id) is State.CONFIRMED
    assert fillers(bench) == []


async def test_a_strict_signer_waits_for_its_fillers_before_it_allocates(bench: Bench) -> None:
    too_high(bench, next_nonce=2)
    node = bench.node(STRICT)
    await protect_and_fill(bench, node)
    tx_id = await bench.request()
    await node.turn()
    assert bench.state(tx_id) is State.QUEUED
    bench.chain.mine(2)
    await node.turn(2)
    assert bench.tx(tx_id).nonce == 2


async def test_a_wide_gap_is_filled_in_several_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_filling, "MAX_FILLERS", 2)
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


async def test_a_fill_command_delayed_by_a_silent_endpoint_runs_later(
    bench: Bench,
) -> None:
    too_high(bench, next_nonce=2)
    node = bench.node()
    await bench.ask("protect", reason="r")
    await node.turn()
    command = await bench.ask("unprotect", reason="r", decision="fill")
    node.node.hint(bench.signer)
    bench.chain.offline = True
    with pytest.raises(RpcUnavailable):
        await node.turn()
    bench.chain.offline = False
    assert (fillers(bench), bench.database.outcome(command)) == ([], None)
    await node.turn()
    assert [tx.nonce for tx in fillers(bench)] == [0, 1]


async def test_the_next_lease_holder_sends_fillers_that_an_endpoint_forgot(bench: Bench) -> None:
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
    assert bench.sent_nonces() == [0, 1]  # no nonce is allocated while they wait
    bench.chain.mine(2)
    await other.turn(2)
    assert bench.sent_nonces() == [0, 1, 2]


# ---- alarms, once a lagging endpoint no longer explains free nonces below the cursor


STALE_S = QUICK.stale_receipt_timeout_s


def is_protected(node: BenchNode) -> bool:
    return node.lane.is_protected


async def test_a_doubted_cursor_above_the_chain_without_transactions_in_flight_raises_an_alarm(
    bench: Bench,
) -> None:
    bench.database.cursors[bench.signer] = Cursor(3, 0, is_doubted=True)
    node = bench.node()
    tx_id = await bench.request()
    await node.turn()
    assert not is_protected(node)
    await node.turn_for(GAP_ALARM_S + 2 * LAG_RETRY_S, every_s=LAG_RETRY_S)
    assert is_protected(node)
    reason = bench.database.cursors[bench.signer].reason or ""
    assert "from 0 to 2" in reason
    assert "decision fill" in reason
    await bench.ask("unprotect", decision="fill")
    await node.turn(2)
    bench.chain.mine(2)
    await node.turn_for(2.0)
    assert (bench.state(tx_id), is_protected(node)) == (
        State.QUEUED,
        False,
    )  # the next step resolves the doubt


async def test_a_briefly_lagging_endpoint_raises_no_alarm(bench: Bench) -> None:
    node = bench.node()
    await node.ended(2)
    await node.release()
    cursor = bench.database.cursors[bench.signer]
    bench.database.cursors[bench.signer] = cursor.changed(is_doubted=True)
    after = bench.node(name="after")
    await bench.request()
    bench.chain.nonce_lag_blocks = 5
    await after.turn()
    await after.turn_for(GAP_ALARM_S / 2, every_s=LAG_RETRY_S)
    bench.chain.nonce_lag_blocks = 0
    await after.turn_for(2 * GAP_ALARM_S, every_s=LAG_RETRY_S)
    assert not is_protected(after)


async def test_sends_above_missing_nonces_raise_an_alarm(bench: Bench) -> None:
    bench.database.cursors[bench.signer] = Cursor(2, 0)
    node = bench.node()
    await bench.request()
    await node.turn()
    for _ in range(4):
        bench.clock.advance(STALE_S)
        await node.turn()
    assert is_protected(node)
    assert "from 0 to 1" in (bench.database.cursors[bench.signer].reason or "")


async def test_sends_that_wait_for_their_own_lower_nonces_raise_no_alarm(bench: Bench) -> None:
    node = bench.node()
    await bench.requests(3)
    await node.turn()
    for _ in range(6):
        bench.clock.advance(STALE_S)
        await node.turn()
    assert not is_protected(node)
