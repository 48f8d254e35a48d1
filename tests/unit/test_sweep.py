"""Lanes that take their steps together: each ends as if it had stepped alone, and what one meets harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

import pytest

from fakes.bench import CHAIN_ID, watched_writes
from fakes.crowd import LEASE_AND_SKEW_S, NEVER, POLICY, SIGNERS, BreakableKeys, Crowd, stepping, sweeping
from fakes.cut import Cut, Died, How
from fencepost.application.lane import StateMoved
from fencepost.application.ports import LaneWrite, Written
from fencepost.application.step import step
from fencepost.application.sweep import StepAlone, is_plain, sweep
from fencepost.domain.ids import Signer, TxHash
from fencepost.domain.managed import Receipt
from fencepost.domain.send import SendCategory, SendResult
from fencepost.domain.states import State
from fencepost.errors import Fenced, RpcUnavailable, SigningError
from fencepost.lab.sim.chain import Lost
from fencepost.lab.sim.ledger import FakeLedger


async def test_what_is_swept_ends_as_if_it_had_been_stepped() -> None:
    ways = []
    for by in (stepping, sweeping):
        crowd = await Crowd.begun()
        sends = crowd.count_sends()
        await crowd.requests()
        await crowd.turn(by)
        assert crowd.states() == [State.ALLOCATED] * 3  # that it was sent is written with what follows
        assert [lane.in_flight[1].state for lane in crowd.lanes] == [State.SUBMITTED] * 3
        crowd.bench.chain.mine()
        await crowd.turn(by)
        assert crowd.states() == [State.CONFIRMED] * 3
        assert sends == ([1, 1, 1] if by is stepping else [3])
        ways.append(crowd.told())
    assert ways[0] == ways[1]


async def test_ends_and_the_nonces_that_follow_them_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    await crowd.turn(sweeping)
    crowd.bench.chain.mine()
    await crowd.requests()
    writes = watched_writes(monkeypatch)
    await crowd.turn(sweeping)
    assert [write.term.signer for write in writes] == SIGNERS
    for write in writes:
        assert [change.after.state for change in write.changes] == [State.CONFIRMED, State.ALLOCATED]


async def test_an_end_is_written_though_what_follows_it_gets_no_nonce() -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    await crowd.turn(sweeping)
    crowd.bench.chain.mine()
    await crowd.requests()
    assert isinstance(crowd.bench.keys, BreakableKeys)
    crowd.bench.keys.broken = SIGNERS[1].address
    await crowd.at.node.heads_once(CHAIN_ID)
    left = await sweep(crowd.lanes)
    assert set(left) == {SIGNERS[1]}
    with pytest.raises(SigningError):
        await step(crowd.lane(1))
    ended, waiting = (crowd.bench.state(tx_id) for tx_id in crowd.tx_ids[SIGNERS[1]][-2:])
    assert (ended, waiting) == (State.CONFIRMED, State.QUEUED)


async def test_what_was_held_is_written_in_time() -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    await sweeping(crowd)
    assert not any(is_plain(lane) for lane in crowd.lanes)
    crowd.bench.clock.advance(POLICY.record_within_s)
    await sweeping(crowd)
    assert crowd.states() == [State.SUBMITTED] * 3
    assert not any(is_plain(lane) for lane in crowd.lanes)


async def test_a_lane_that_is_fenced_takes_nobody_along() -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    other = FakeLedger(crowd.bench.database, node="new", incarnation=uuid4())
    await crowd.at.node.ledger.release([crowd.lane(1).term])
    assert await other.acquire([SIGNERS[1]])
    left = await sweep(crowd.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[1]: Fenced}
    assert crowd.states() == [State.ALLOCATED, State.QUEUED, State.ALLOCATED]
    assert not crowd.lane(1).in_flight


async def test_a_row_that_moved_is_read_again_by_its_lane_alone() -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    moved = crowd.tx_ids[SIGNERS[0]][-1]
    row = crowd.bench.tx(moved)
    crowd.bench.database.txs[moved] = row.changed(version=row.version + 1)
    left = await sweep(crowd.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[0]: StateMoved}
    assert crowd.states()[1:] == [State.ALLOCATED] * 2


async def test_a_key_that_fails_leaves_its_lane_to_its_own_step() -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    assert isinstance(crowd.bench.keys, BreakableKeys)
    crowd.bench.keys.broken = SIGNERS[2].address
    left = await sweep(crowd.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[2]: StepAlone}
    assert crowd.states() == [State.ALLOCATED, State.ALLOCATED, State.QUEUED]
    with pytest.raises(SigningError):
        await step(crowd.lane(2))
    crowd.bench.keys.broken = None
    await step(crowd.lane(2))
    assert crowd.states() == [State.ALLOCATED] * 3


@pytest.mark.parametrize(
    "fault", [SendResult(SendCategory.INSUFFICIENT_FUNDS, "poor"), Lost.BEFORE, Lost.AFTER]
)
async def test_what_is_refused_or_not_answered_is_sent_again_by_its_lane_alone(
    fault: SendResult | Lost,
) -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    crowd.bench.chain.fault_next_sends(None, fault)
    left = await sweep(crowd.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[1]: StepAlone}
    await step(crowd.lane(1))
    crowd.bench.chain.mine()
    for _ in range(2):
        await crowd.turn(stepping)
    assert crowd.states() == [State.CONFIRMED] * 3
    assert [crowd.bench.tx(crowd.tx_ids[signer][-1]).nonce for signer in SIGNERS] == [1, 1, 1]


async def test_receipts_that_nobody_gives_are_asked_for_again_by_each_lane() -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    await sweeping(crowd)
    crowd.bench.chain.mine()
    await crowd.at.node.heads_once(CHAIN_ID)
    real = crowd.bench.chain.receipts

    async def receipts(_hashes: Sequence[TxHash]) -> Sequence[Receipt | None]:
        raise RpcUnavailable("no answer")

    crowd.bench.chain.receipts = receipts  # type: ignore[method-assign,assignment]  # for a while
    left = await sweep(crowd.lanes)
    assert {type(error) for error in left.values()} == {StepAlone}
    assert len(left) == 3
    crowd.bench.chain.receipts = real  # type: ignore[method-assign]  # it is back
    await stepping(crowd)
    assert crowd.states() == [State.CONFIRMED] * 3


async def test_a_receipt_that_is_missing_is_its_own_lanes_concern() -> None:
    crowd = await Crowd.begun()
    await crowd.requests()
    await sweeping(crowd)
    waiting = crowd.lane(0).in_flight[1].latest.signed.hash
    crowd.bench.chain.mine(only={lane.in_flight[1].latest.signed.hash for lane in crowd.lanes[1:]})
    await crowd.at.node.heads_once(CHAIN_ID)
    crowd.lane(0).seen.add(waiting)  # as one node said
    left = await sweep(crowd.lanes)
    assert {signer: type(error) for signer, error in left.items()} == {SIGNERS[0]: StepAlone}
    assert crowd.states() == [State.ALLOCATED, State.CONFIRMED, State.CONFIRMED]


class _Unsure(FakeLedger):
    """Its answers get lost, once that is asked for."""

    is_cut = False

    async def commit(self, write: LaneWrite) -> Written:
        written = await super().commit(write)
        if self.is_cut:
            raise OSError("the connection is gone")
        return written


async def test_an_error_of_the_ledger_is_everybodys() -> None:
    crowd = await Crowd.begun()
    lanes = crowd.at.node.lanes
    lost: list[Signer] = []
    lanes.on_lost = lost.append
    ledger = _Unsure(crowd.bench.database, node="old", incarnation=crowd.at.incarnation)
    ledger.is_cut = True
    for lane in crowd.lanes:
        lane.ledger = ledger
    working = asyncio.create_task(lanes.run())
    await asyncio.sleep(0)
    await crowd.requests()
    for _ in range(50):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert sorted(lost) == sorted(SIGNERS)
    assert not crowd.lanes


async def test_lanes_that_are_woken_together_are_swept_together_and_one_after_the_other() -> None:
    crowd = await Crowd.begun()
    lanes = crowd.at.node.lanes
    sizes = crowd.count_sends(after_first=crowd.requests)
    ready = [crowd.lane(number) for number in range(3)]
    await crowd.requests()
    working = asyncio.create_task(lanes.run())
    for _ in range(200):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert sum(sizes) == 6
    assert [sorted(lane.in_flight) for lane in ready] == [[1, 2]] * 3
    sent = [signed.hash for signed in crowd.bench.chain.sent]
    for lane in ready:
        places = [sent.index(tx.latest.signed.hash) for tx in lane.in_flight.values()]
        assert places == sorted(places)


async def test_who_is_woken_while_all_workers_step_is_swept_when_one_has_ended() -> None:
    crowd = await Crowd.begun()

    async def requests_and_turns() -> None:
        await crowd.requests()
        for _ in range(20):
            await asyncio.sleep(0)

    sizes = crowd.count_sends(after_first=requests_and_turns)
    crowd.lane(0).commands_may_wait = True  # it steps alone
    await crowd.request(SIGNERS[0])
    working = asyncio.create_task(crowd.at.node.lanes.run())
    for _ in range(400):
        await asyncio.sleep(0)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert (sizes[0], sum(sizes)) == (1, 4)


async def _dies(at_call: int, how: How) -> bool:
    """Whether it got as far as the cut. Whoever comes next ends everything, once."""
    cut = Cut(NEVER, how)
    crowd = await Crowd.begun(cut)
    cut._left = at_call
    with suppress(Died):
        for _ in range(2):
            await crowd.requests()
            await crowd.turn(_swept_or_stepped)
            crowd.bench.chain.mine()
    bench = crowd.bench
    bench.clock.advance(LEASE_AND_SKEW_S)
    crowd.at = bench.node(POLICY, name="new")
    for signer in SIGNERS:
        crowd.at.node.hint(signer)
    for _ in range(6):
        await crowd.turn(stepping)
        bench.chain.mine()
        bench.clock.advance(31)
    assert {state for state, _, _ in crowd.told()} == {State.CONFIRMED}
    for signer in SIGNERS:
        nonces = sorted(bench.tx(tx_id).held_nonce() for tx_id in crowd.tx_ids[signer])
        assert nonces == list(range(bench.database.cursors[signer].next_nonce))
    return cut.reached.is_set()


async def _swept_or_stepped(crowd: Crowd) -> None:
    left = await sweep([lane for lane in crowd.lanes if is_plain(lane)])
    for lane in crowd.lanes:
        if lane.signer in left:
            await step(lane)


@pytest.mark.parametrize("how", [How.DIES_BEFORE, How.DIES_AFTER], ids=lambda how: how.name.lower())
async def test_a_death_at_any_call_of_a_sweep_loses_and_doubles_nothing(how: How) -> None:
    for at_call in range(1, 60):
        if not await _dies(at_call, how):
            assert at_call > 8
            return
    raise AssertionError("there are more calls than expected")
