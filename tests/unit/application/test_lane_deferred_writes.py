"""Deferred writes: a successful send is written with the next commit or a little later, and a crash before that loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, QUICK, SINK, STRICT, Bench, BenchNode, watched_writes
from fencepost.application.lane import LaneSettings, StateMoved
from fencepost.application.ports import KeyPort, LaneWrite, Written
from fencepost.domain import transaction_state
from fencepost.domain.ids import Address
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Intent
from fencepost.errors import RpcUnavailable

LATE_S = 0.5
LATE = replace(QUICK, record_within_s=LATE_S)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[LaneWrite]:
    return watched_writes(monkeypatch)


async def test_a_deferred_write_is_written_alone_if_nothing_follows(bench: Bench) -> None:
    node = bench.node(LATE)
    tx_id = await bench.request()
    assert await node.turn() == pytest.approx(LATE_S)
    assert bench.state(tx_id) is State.ALLOCATED
    bench.clock.advance(LATE_S)
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    assert bench.events(tx_id) == ["Receive", "AssignNonce", "SendResult"]
    assert bench.sent_nonces() == [0]


async def test_send_receipt_and_end_are_one_write(bench: Bench, writes: list[LaneWrite]) -> None:
    node = bench.node(replace(LATE, required=0))
    tx_id = await bench.request()
    await node.turn()
    before = len(writes)
    bench.chain.mine()
    await node.turn()
    assert len(writes) == before + 1
    tx = bench.tx(tx_id)
    assert bench.events(tx_id) == ["Receive", "AssignNonce", "SendResult", "ReceiveReceipt", "Finish"]
    assert [row.state for row in bench.database.journal_of(tx_id)] == [
        *(State.QUEUED, State.ALLOCATED, State.SUBMITTED, State.TRACKING, State.CONFIRMED)
    ]
    assert (tx.state, tx.version, tx.journal_count) == (State.CONFIRMED, 3, 5)
    assert (tx.latest.sent_count, tx.latest.last_result) == (1, SendCategory.ACCEPTED)


async def test_the_next_lease_holder_sends_the_same_bytes_if_the_write_is_lost(bench: Bench) -> None:
    node = bench.node(LATE, name="first")
    tx_id = await bench.request()
    await node.turn()
    await node.release()
    head_follower = bench.node(LATE, name="second")
    await head_follower.turn()
    assert [signed.hash for signed in bench.chain.sent] == [bench.tx(tx_id).hash] * 2
    for _ in range(3):
        bench.chain.mine()
        bench.clock.advance(LATE_S)
        await head_follower.turn()
    assert bench.state(tx_id) is State.CONFIRMED


async def test_a_released_lane_flushes_its_deferred_writes(bench: Bench) -> None:
    node = bench.node(LATE)
    tx_id = await bench.request()
    await node.turn()
    await _release(node)
    assert bench.state(tx_id) is State.SUBMITTED


async def test_a_lane_that_cannot_flush_is_released_nevertheless(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bench.node(LATE)
    tx_id = await bench.request()
    await node.turn()

    async def silent(*_: object) -> Written:
        raise OSError("no answer")

    monkeypatch.setattr(node.lane.ports.ledger, "commit", silent)
    await _release(node)
    assert bench.state(tx_id) is State.ALLOCATED


async def _release(node: BenchNode) -> None:
    """Hand the signer over to another node through the workers."""
    lanes, signer = node.node.lanes, node.bench.signer
    lanes.retire(signer)
    assert signer in lanes  # it has a deferred write
    working = asyncio.create_task(lanes.run())
    try:
        for _ in range(100):
            await asyncio.sleep(0)
        assert signer not in lanes
    finally:
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


async def test_an_alarm_is_written_after_deferred_writes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = bench.node(LATE)
    await bench.request()
    await node.turn()
    taken = bench.chain.send

    async def underpriced(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
        return [SendResult(SendCategory.REPLACEMENT_UNDERPRICED, "underpriced") for _ in await taken(txs)]

    monkeypatch.setattr(bench.chain, "send", underpriced)
    await bench.request()
    await node.turn()
    shown = [row.event for row in bench.database.journal]
    assert shown[-3:] == ["SendResult", "SendResult", "Protect"]


async def test_a_transaction_from_before_a_deferred_write_is_no_base_for_a_change(bench: Bench) -> None:
    node = bench.node(LATE)
    tx_id = await bench.request()
    await node.turn()
    with pytest.raises(StateMoved):
        node.lane.change(bench.tx(tx_id), transaction_state.mark_stale)


async def test_a_reload_discards_deferred_writes(bench: Bench) -> None:
    node = bench.node(LATE)
    tx_id = await bench.request()
    await node.turn()
    node.lane.reconciled = False
    await node.turn()  # by the ledger it was never sent
    assert bench.sent_nonces() == [0, 0]
    bench.clock.advance(LATE_S)
    await node.turn()
    assert bench.events(tx_id) == ["Receive", "AssignNonce", "SendResult"]


ONE_BY_ONE = LaneSettings(strict=False, max_in_flight=1)
IN_STOCK = replace(ONE_BY_ONE, refuse_reverting=False)  # no call concerns the next request


@pytest.mark.parametrize("policy", [STRICT, IN_STOCK], ids=["strict", "pipelined"])
async def test_an_end_and_the_next_nonce_are_one_write(
    bench: Bench, writes: list[LaneWrite], policy: LaneSettings
) -> None:
    first, second, made = await _end_of_one_and_next(bench, writes, policy)
    assert (bench.state(first), bench.state(second)) == (State.CONFIRMED, State.ALLOCATED)
    (write,) = made
    assert [change.after.state for change in write.changes] == [State.CONFIRMED, State.ALLOCATED]


async def test_an_end_does_not_wait_for_a_call_about_the_next_request(
    bench: Bench, writes: list[LaneWrite]
) -> None:
    *_, made = await _end_of_one_and_next(bench, writes, ONE_BY_ONE)
    ended, given = made
    assert [change.after.state for change in ended.changes] == [State.CONFIRMED]
    assert [change.after.state for change in given.changes] == [State.ALLOCATED]


class _RemoteKeys(KeyPort):
    """The bench's key behind a signing service."""

    def __init__(self, keys: KeyPort) -> None:
        self._keys = keys

    def addresses(self) -> Sequence[Address]:
        return self._keys.addresses()

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        return await self._keys.sign(address, txs)


async def test_an_end_does_not_wait_for_a_remote_signature(bench: Bench, writes: list[LaneWrite]) -> None:
    *_, made = await _end_of_one_and_next(bench, writes, IN_STOCK, _RemoteKeys(bench.keys))
    ended, given = made
    assert [change.after.state for change in ended.changes] == [State.CONFIRMED]
    assert [change.after.state for change in given.changes] == [State.ALLOCATED]


async def _end_of_one_and_next(
    bench: Bench, writes: list[LaneWrite], policy: LaneSettings, keys: KeyPort | None = None
) -> tuple[UUID, UUID, Sequence[LaneWrite]]:
    """Submit two requests and return what is written once the first is mined."""
    node = bench.node(replace(policy, required=0, record_within_s=LATE_S), keys=keys)
    call = Call(to=SINK, value_wei=1)
    first, second = [await bench.request(Intent(call=call, gas=21_000)) for _ in range(2)]
    await node.turn()
    before = len(writes)
    bench.chain.mine()
    await node.turn()
    return first, second, writes[before:]


async def test_a_silent_endpoint_does_not_delay_an_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    node = bench.node(replace(STRICT, required=0, record_within_s=LATE_S))
    first, second = await bench.requests(2)
    await node.turn()
    bench.chain.mine()

    async def silent(*_: object) -> int:
        raise RpcUnavailable("no answer")

    monkeypatch.setattr(bench.chain, "estimate_gas", silent)
    with pytest.raises(RpcUnavailable):
        await node.turn()
    assert (bench.state(first), bench.state(second)) == (State.CONFIRMED, State.QUEUED)


async def test_lanes_notice_a_view_that_another_lane_refreshed(bench: Bench) -> None:
    node = bench.node(LATE)
    await bench.request()
    await node.turn()
    bench.chain.mine()
    await node.node.chain_views[CHAIN_ID].refresh()
    assert node.lane.blocks.receipt_ready_hashes == {tx.hash for tx in bench.chain.sent}


async def test_a_head_older_than_the_view_is_no_fork(bench: Bench) -> None:
    node = bench.node(LATE)
    await bench.request()
    await node.turn()
    older = await bench.chain.head()
    bench.chain.mine()
    watch = node.node.chain_views[CHAIN_ID]
    await watch.refresh()
    change = await watch.refresh(older)
    assert change.forked_at is None
    assert watch.view.head == older.number + 1
