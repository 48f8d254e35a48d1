"""Lanes step as a batch: each ends as if it had stepped alone, and a failure of one affects no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import uuid4

import pytest

from fakes.bench import CHAIN_ID, watched_writes
from fakes.failing_call import Died, FailingCall, FailureMode
from fakes.signer_group import (
    LEASE_AND_SKEW_S,
    NEVER,
    POLICY,
    SIGNERS,
    BreakableKeys,
    SignerGroup,
    step_as_batch,
    step_each,
)
from fencepost.application.batch_step import NeedsOwnStep, batch_step, is_batchable
from fencepost.application.lane import StateMoved
from fencepost.application.lane_step import lane_step
from fencepost.application.ports import LaneWrite, Written
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.send_result import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction_state import Receipt
from fencepost.errors import Fenced, RpcUnavailable, SigningError
from fencepost.testing import InMemoryLedger, LostResponse


async def test_a_batch_step_has_the_same_result_as_single_steps() -> None:
    ways = []
    for by in (step_each, step_as_batch):
        group = await SignerGroup.start()
        sends = group.count_sends()
        await group.requests()
        await group.turn(by)
        assert group.states() == [State.ALLOCATED] * 3  # the send is written with the next commit
        assert [lane.in_flight[1].state for lane in group.lanes] == [State.SUBMITTED] * 3
        group.bench.chain.mine()
        await group.turn(by)
        assert group.states() == [State.CONFIRMED] * 3
        assert sends == ([1, 1, 1] if by is step_each else [3])
        ways.append(group.outcomes())
    assert ways[0] == ways[1]


async def test_ends_and_the_next_nonces_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    group = await SignerGroup.start()
    await group.requests()
    await group.turn(step_as_batch)
    group.bench.chain.mine()
    await group.requests()
    writes = watched_writes(monkeypatch)
    await group.turn(step_as_batch)
    assert [write.term.signer for write in writes] == SIGNERS
    for write in writes:
        assert [change.after.state for change in write.changes] == [State.CONFIRMED, State.ALLOCATED]


async def test_an_end_is_written_though_the_next_request_gets_no_nonce() -> None:
    group = await SignerGroup.start()
    await group.requests()
    await group.turn(step_as_batch)
    group.bench.chain.mine()
    await group.requests()
    assert isinstance(group.bench.keys, BreakableKeys)
    group.bench.keys.broken = SIGNERS[1].address
    await group.at.node.heads_once(CHAIN_ID)
    left = await batch_step(group.lanes)
    assert set(left) == {SIGNERS[1]}
    with pytest.raises(SigningError):
        await lane_step(group.lane(1))
    ended, waiting = (group.bench.state(tx_id) for tx_id in group.tx_ids[SIGNERS[1]][-2:])
    assert (ended, waiting) == (State.CONFIRMED, State.QUEUED)


async def test_deferred_writes_are_written_in_time() -> None:
    group = await SignerGroup.start()
    await group.requests()
    await step_as_batch(group)
    assert not any(is_batchable(lane) for lane in group.lanes)
    group.bench.clock.advance(POLICY.record_within_s)
    await step_as_batch(group)
    assert group.states() == [State.SUBMITTED] * 3
    assert not any(is_batchable(lane) for lane in group.lanes)


async def test_a_fenced_lane_affects_no_other() -> None:
    group = await SignerGroup.start()
    await group.requests()
    other = InMemoryLedger(group.bench.database, node="new", incarnation=uuid4())
    await group.at.node.ledger.release([group.lane(1).term])
    assert await other.acquire([SIGNERS[1]])
    left = await batch_step(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[1]: Fenced}
    assert group.states() == [State.ALLOCATED, State.QUEUED, State.ALLOCATED]
    assert not group.lane(1).in_flight


async def test_a_lane_with_a_changed_row_reloads_alone() -> None:
    group = await SignerGroup.start()
    await group.requests()
    moved = group.tx_ids[SIGNERS[0]][-1]
    row = group.bench.tx(moved)
    group.bench.database.txs[moved] = row.changed(version=row.version + 1)
    left = await batch_step(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[0]: StateMoved}
    assert group.states()[1:] == [State.ALLOCATED] * 2


async def test_a_lane_with_a_failing_key_steps_alone() -> None:
    group = await SignerGroup.start()
    await group.requests()
    assert isinstance(group.bench.keys, BreakableKeys)
    group.bench.keys.broken = SIGNERS[2].address
    left = await batch_step(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[2]: NeedsOwnStep}
    assert group.states() == [State.ALLOCATED, State.ALLOCATED, State.QUEUED]
    with pytest.raises(SigningError):
        await lane_step(group.lane(2))
    group.bench.keys.broken = None
    await lane_step(group.lane(2))
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
    left = await batch_step(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[1]: NeedsOwnStep}
    await lane_step(group.lane(1))
    group.bench.chain.mine()
    for _ in range(2):
        await group.turn(step_each)
    assert group.states() == [State.CONFIRMED] * 3
    assert [group.bench.tx(group.tx_ids[signer][-1]).nonce for signer in SIGNERS] == [1, 1, 1]


async def test_each_lane_requests_missing_receipts_again() -> None:
    group = await SignerGroup.start()
    await group.requests()
    await step_as_batch(group)
    group.bench.chain.mine()
    await group.at.node.heads_once(CHAIN_ID)
    real = group.bench.chain.receipts

    async def receipts(_hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        raise RpcUnavailable("no answer")

    group.bench.chain.receipts = receipts  # type: ignore[method-assign,assignment]  # for a while
    left = await batch_step(group.lanes)
    assert {type(error) for error in left.values()} == {NeedsOwnStep}
    assert len(left) == 3
    group.bench.chain.receipts = real  # type: ignore[method-assign]  # it is back
    await step_each(group)
    assert group.states() == [State.CONFIRMED] * 3


async def test_a_missing_receipt_affects_only_its_own_lane() -> None:
    group = await SignerGroup.start()
    await group.requests()
    await step_as_batch(group)
    waiting = group.lane(0).in_flight[1].latest.signed.hash
    group.bench.chain.mine(only={lane.in_flight[1].latest.signed.hash for lane in group.lanes[1:]})
    await group.at.node.heads_once(CHAIN_ID)
    group.lane(0).blocks.receipt_ready_hashes.add(waiting)  # as one endpoint answered
    left = await batch_step(group.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[0]: NeedsOwnStep}
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


async def test_lanes_woken_together_step_as_one_batch() -> None:
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


async def _dies(at_call: int, how: FailureMode) -> bool:
    """Tell whether the run reached the failing call. The next owner finishes everything once."""
    cut = FailingCall(NEVER, how)
    group = await SignerGroup.start(cut)
    cut._left = at_call
    with suppress(Died):
        for _ in range(2):
            await group.requests()
            await group.turn(_swept_or_stepped)
            group.bench.chain.mine()
    bench = group.bench
    bench.clock.advance(LEASE_AND_SKEW_S)
    group.at = bench.node(POLICY, name="new")
    for signer in SIGNERS:
        group.at.node.hint(signer)
    for _ in range(6):
        await group.turn(step_each)
        bench.chain.mine()
        bench.clock.advance(31)
    assert {state for state, _, _ in group.outcomes()} == {State.CONFIRMED}
    for signer in SIGNERS:
        nonces = sorted(bench.tx(tx_id).held_nonce() for tx_id in group.tx_ids[signer])
        assert nonces == list(range(bench.database.cursors[signer].next_nonce))
    return cut.reached.is_set()


async def _swept_or_stepped(group: SignerGroup) -> None:
    left = await batch_step([lane for lane in group.lanes if is_batchable(lane)])
    for lane in group.lanes:
        if lane.signer in left:
            await lane_step(lane)


@pytest.mark.parametrize(
    "how", [FailureMode.DIES_BEFORE, FailureMode.DIES_AFTER], ids=lambda how: how.name.lower()
)
async def test_a_crash_at_any_call_of_a_batch_step_loses_and_duplicates_nothing(how: FailureMode) -> None:
    for at_call in range(1, 60):
        if not await _dies(at_call, how):
            assert at_call > 8
            return
    raise AssertionError("there are more calls than expected")
