"""Lanes have a round together: each ends as if it had been alone, and a failure of one affects no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from fakes.bench import CHAIN_ID, watched_writes
from fakes.failing_call import Died, FailingCall, FailureMode
from fakes.rounds import run_alone
from fakes.signer_group import (
    LEASE_AND_SKEW_S,
    NEVER,
    POLICY,
    SIGNERS,
    BreakableKeys,
    SignerGroup,
    alone,
    failures,
    together,
)
from fencepost.application.lane import Lane, StateMoved
from fencepost.application.lane_round import is_plain
from fencepost.application.lane_set import NeedsOwnRound
from fencepost.application.ports import LaneWrite, Written
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import Fenced, RpcUnavailable, SigningError
from fencepost.testing import InMemoryLedger, LostResponse


async def test_a_common_round_has_the_same_result_as_rounds_alone() -> None:
    ways = []
    for by in (alone, together):
        group = await SignerGroup.start()
        sends = group.count_sends()
        await group.requests()
        await group.turn(by)
        assert group.states() == [State.ALLOCATED] * 3  # the send is written with the next commit
        assert [lane.in_flight[1].state for lane in group.lanes] == [State.SUBMITTED] * 3
        group.bench.chain.mine()
        await group.turn(by)
        assert group.states() == [State.CONFIRMED] * 3
        assert sends == ([1, 1, 1] if by is alone else [3])
        ways.append(group.outcomes())
    assert ways[0] == ways[1]


async def test_ends_and_the_next_nonces_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    group = await SignerGroup.start()
    await group.requests()
    await group.turn(together)
    group.bench.chain.mine()
    await group.requests()
    writes = watched_writes(monkeypatch)
    await group.turn(together)
    assert [write.term.signer for write in writes] == SIGNERS
    for write in writes:
        assert [change.after.state for change in write.changes] == [State.CONFIRMED, State.ALLOCATED]


async def test_an_end_is_written_though_the_next_request_gets_no_nonce() -> None:
    group = await SignerGroup.start()
    await group.requests()
    await group.turn(together)
    group.bench.chain.mine()
    await group.requests()
    assert isinstance(group.bench.keys, BreakableKeys)
    group.bench.keys.broken = SIGNERS[1].address
    await group.at.node.heads_once(CHAIN_ID)
    left = await failures(group.lanes)
    assert set(left) == {SIGNERS[1]}
    with pytest.raises(SigningError):
        await run_alone(group.lane(1))
    ended, waiting = (group.bench.state(tx_id) for tx_id in group.tx_ids[SIGNERS[1]][-2:])
    assert (ended, waiting) == (State.CONFIRMED, State.QUEUED)


async def test_deferred_writes_are_written_in_time() -> None:
    group = await SignerGroup.start()
    await group.requests()
    await together(group)
    assert not any(is_plain(lane) for lane in group.lanes)
    group.bench.clock.advance(POLICY.record_within_s)
    await together(group)
    assert group.states() == [State.SUBMITTED] * 3
    assert not any(is_plain(lane) for lane in group.lanes)


async def test_a_fenced_lane_affects_no_other() -> None:
    group = await SignerGroup.start()
    await group.requests()
    other = InMemoryLedger(group.bench.database, node="new", incarnation=uuid4())
    await group.at.node.ledger.release([group.lane(1).term])
    assert await other.acquire([SIGNERS[1]])
    left = await failures(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[1]: Fenced}
    assert group.states() == [State.ALLOCATED, State.QUEUED, State.ALLOCATED]
    assert not group.lane(1).in_flight


async def test_a_lane_with_a_changed_row_reloads_alone() -> None:
    group = await SignerGroup.start()
    await group.requests()
    moved = group.tx_ids[SIGNERS[0]][-1]
    row = group.bench.tx(moved)
    group.bench.database.txs[moved] = row.changed(version=row.version + 1)
    left = await failures(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[0]: StateMoved}
    assert group.states()[1:] == [State.ALLOCATED] * 2


async def test_a_lane_with_a_failing_key_steps_alone() -> None:
    group = await SignerGroup.start()
    await group.requests()
    assert isinstance(group.bench.keys, BreakableKeys)
    group.bench.keys.broken = SIGNERS[2].address
    left = await failures(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[2]: NeedsOwnRound}
    assert group.states() == [State.ALLOCATED, State.ALLOCATED, State.QUEUED]
    with pytest.raises(SigningError):
        await run_alone(group.lane(2))
    group.bench.keys.broken = None
    await run_alone(group.lane(2))
    assert group.states() == [State.ALLOCATED] * 3


@pytest.mark.parametrize(
    "fault", [SendResult(SendCategory.INSUFFICIENT_FUNDS, "poor"), LostResponse.BEFORE, LostResponse.AFTER]
)
async def test_a_lane_resends_rejected_or_unanswered_bytes_alone(
    fault: SendResult | LostResponse,
) -> None:
    group = await SignerGroup.start()
    await group.requests()
    group.bench.chain.script_next_sends(None, fault)
    left = await failures(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[1]: NeedsOwnRound}
    await run_alone(group.lane(1))
    group.bench.chain.mine()
    for _ in range(2):
        await group.turn(alone)
    assert group.states() == [State.CONFIRMED] * 3
    assert [group.bench.tx(group.tx_ids[signer][-1]).nonce for signer in SIGNERS] == [1, 1, 1]


async def test_each_lane_requests_missing_receipts_again() -> None:
    group = await SignerGroup.start()
    await group.requests()
    await together(group)
    group.bench.chain.mine()
    await group.at.node.heads_once(CHAIN_ID)
    real = group.bench.chain.receipts

    async def receipts(_hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        raise RpcUnavailable("no answer")

    group.bench.chain.receipts = receipts  # type: ignore[method-assign,assignment]  # for a while
    left = await failures(group.lanes)
    assert {type(error) for error in left.values()} == {NeedsOwnRound}
    assert len(left) == 3
    group.bench.chain.receipts = real  # type: ignore[method-assign]  # it is back
    await alone(group)
    assert group.states() == [State.CONFIRMED] * 3


async def test_a_missing_receipt_affects_only_its_own_lane() -> None:
    group = await SignerGroup.start()
    await group.requests()
    await together(group)
    waiting = group.lane(0).in_flight[1].latest.signed.hash
    group.bench.chain.mine(only={lane.in_flight[1].latest.signed.hash for lane in group.lanes[1:]})
    await group.at.node.heads_once(CHAIN_ID)
    group.lane(0).blocks.receipt_ready_hashes.add(waiting)  # as one endpoint answered
    left = await failures(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[0]: NeedsOwnRound}
    assert group.states() == [State.ALLOCATED, State.CONFIRMED, State.CONFIRMED]


class _Unsure(InMemoryLedger):
    """A chain whose answers get lost on demand."""

    is_cut = False

    async def commit(self, write: LaneWrite) -> Written:
        written = await super().commit(write)
        if self.is_cut:
            raise OSError("the connection is gone")
        return written


async def test_an_error_of_the_ledger_reaches_every_lane() -> None:
    group = await SignerGroup.start()
    lanes = group.at.node.lanes
    lost: list[Signer] = []
    lanes.on_lost = lost.append
    ledger = _Unsure(group.bench.database, node="old", incarnation=group.at.incarnation)
    ledger.is_cut = True
    for lane in group.lanes:
        lane.ports = replace(lane.ports, ledger=ledger)
    working = asyncio.create_task(lanes.run())
    await asyncio.sleep(0)
    await group.requests()
    for _ in range(50):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert sorted(lost) == sorted(SIGNERS)
    assert not group.lanes


async def test_lanes_woken_together_share_a_round() -> None:
    group = await SignerGroup.start()
    lanes = group.at.node.lanes
    sizes = group.count_sends(after_first=group.requests)
    ready = [group.lane(number) for number in range(3)]
    await group.requests()
    working = asyncio.create_task(lanes.run())
    for _ in range(200):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert sum(sizes) == 6
    assert [sorted(lane.in_flight) for lane in ready] == [[1, 2]] * 3
    sent = [signed.hash for signed in group.bench.chain.sent]
    for lane in ready:
        places = [sent.index(tx.latest.signed.hash) for tx in lane.in_flight.values()]
        assert places == sorted(places)


async def test_a_lane_woken_while_all_workers_are_busy_steps_when_one_is_free() -> None:
    group = await SignerGroup.start()

    async def requests_and_turns() -> None:
        await group.requests()
        for _ in range(20):
            await asyncio.sleep(0)

    sizes = group.count_sends(after_first=requests_and_turns)
    group.lane(0).commands.may_wait = True  # it steps alone
    await group.request(SIGNERS[0])
    working = asyncio.create_task(group.at.node.lanes.run())
    for _ in range(400):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert (sizes[0], sum(sizes)) == (1, 4)


async def test_an_unexpected_error_of_one_lane_affects_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    group = await SignerGroup.start()
    await group.requests()
    await group.turn(together)
    group.bench.chain.mine()
    await group.requests()
    await group.at.node.heads_once(CHAIN_ID)
    broken, honest = group.lane(1), Lane.build_write

    def build_write(lane: Lane, *args: Any, **kwargs: Any) -> LaneWrite:
        if lane is broken:
            raise ValueError("an unexpected row")
        return honest(lane, *args, **kwargs)

    monkeypatch.setattr(Lane, "build_write", build_write)
    left = await failures(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[1]: ValueError}
    assert group.states() == [State.ALLOCATED, State.QUEUED, State.ALLOCATED]
    ended = [group.bench.state(group.tx_ids[signer][-2]) for signer in SIGNERS]
    assert ended == [State.CONFIRMED, State.ALLOCATED, State.CONFIRMED]


async def test_a_write_that_fails_affects_only_the_lanes_it_is_for() -> None:
    group = await SignerGroup.start()
    await group.request(SIGNERS[0])
    await group.request(SIGNERS[1])
    ledger = _Unsure(group.bench.database, node="old", incarnation=group.at.incarnation)
    ledger.is_cut = True
    for lane in group.lanes:
        lane.ports = replace(lane.ports, ledger=ledger)
    left = await failures(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == dict.fromkeys(SIGNERS[:2], OSError)


async def test_a_lane_whose_key_is_slow_holds_back_no_other_lane_and_no_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = await SignerGroup.start()
    await group.requests()
    await group.turn(together)
    lanes, keys = group.at.node.lanes, group.bench.keys
    assert isinstance(keys, BreakableKeys)
    asked, answered = asyncio.Event(), asyncio.Event()
    honest = keys.sign

    async def sign(address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if address == SIGNERS[0].address:
            asked.set()
            await answered.wait()
        return await honest(address, txs)

    monkeypatch.setattr(keys, "sign", sign)
    monkeypatch.setattr(keys, "signs_locally", lambda address: address != SIGNERS[0].address)
    group.bench.chain.mine()
    await group.requests()
    await group.at.node.heads_once(CHAIN_ID)
    working = asyncio.create_task(lanes.run())
    try:
        await asyncio.wait_for(asked.wait(), 20)
        for _ in range(100):
            await asyncio.sleep(0)
        assert group.states() == [State.QUEUED, State.ALLOCATED, State.ALLOCATED]
        ended = [group.bench.state(group.tx_ids[signer][-2]) for signer in SIGNERS]
        assert ended == [State.CONFIRMED] * 3
        await group.request(SIGNERS[1])  # with one worker: a slow lane takes no place of a plain one
        for _ in range(100):
            await asyncio.sleep(0)
        assert group.states() == [State.QUEUED, State.ALLOCATED, State.ALLOCATED]
        answered.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert group.states() == [State.ALLOCATED] * 3
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_an_estimate_of_one_lane_holds_back_no_other_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    group = await SignerGroup.start()
    await group.requests()
    group.lane(2).settings = replace(POLICY, refuse_reverting=True)  # its request needs an estimate
    asked, answered = asyncio.Event(), asyncio.Event()
    honest = group.bench.chain.estimate_gas

    async def estimate_gas(sender: Address, call: Call) -> int:
        asked.set()
        await answered.wait()
        return await honest(sender, call)

    monkeypatch.setattr(group.bench.chain, "estimate_gas", estimate_gas)
    working = asyncio.create_task(group.at.node.lanes.run())
    try:
        await asyncio.wait_for(asked.wait(), 20)
        for _ in range(100):
            await asyncio.sleep(0)
        assert group.states() == [State.ALLOCATED, State.ALLOCATED, State.QUEUED]
        answered.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert group.states() == [State.ALLOCATED] * 3
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _dies(at_call: int, how: FailureMode) -> bool:
    """Tell whether the run reached the failing call. The next owner finishes everything once."""
    cut = FailingCall(NEVER, how)
    group = await SignerGroup.start(cut)
    cut._left = at_call
    with suppress(Died):
        for _ in range(2):
            await group.requests()
            await group.turn(_common_then_alone)
            group.bench.chain.mine()
    bench = group.bench
    bench.clock.advance(LEASE_AND_SKEW_S)
    group.at = bench.node(POLICY, name="new")
    for signer in SIGNERS:
        group.at.node.hint(signer)
    for _ in range(6):
        await group.turn(alone)
        bench.chain.mine()
        bench.clock.advance(31)
    assert {state for state, _, _ in group.outcomes()} == {State.CONFIRMED}
    for signer in SIGNERS:
        nonces = sorted(bench.tx(tx_id).held_nonce() for tx_id in group.tx_ids[signer])
        assert nonces == list(range(bench.database.cursors[signer].next_nonce))
    return cut.reached.is_set()


async def _common_then_alone(group: SignerGroup) -> None:
    left = await failures([lane for lane in group.lanes if is_plain(lane)])
    for lane in group.lanes:
        if lane.signer in left:
            await run_alone(lane)


@pytest.mark.parametrize(
    "how", [FailureMode.DIES_BEFORE, FailureMode.DIES_AFTER], ids=lambda how: how.name.lower()
)
async def test_a_crash_at_any_call_of_a_common_round_loses_and_duplicates_nothing(how: FailureMode) -> None:
    for at_call in range(1, 60):
        if not await _dies(at_call, how):
            assert at_call > 8
            return
    raise AssertionError("there are more calls than expected")
