"""Requests that a lane gets from the door of its own node, without reading them back: once each, and in their order."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from uuid import UUID, uuid4

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench, BenchNode, transfer
from fakes.clock import FakeClock
from fencepost.application.accept import Accept, Request
from fencepost.application.hooks import NonceContext
from fencepost.application.lane import Policy
from fencepost.application.ports import LaneState, Requested
from fencepost.application.step import step
from fencepost.domain.ids import Signer
from fencepost.domain.managed import ManagedTx
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, UnsignedTx
from fencepost.lab.sim.ledger import FakeDatabase, FakeLedger


class _Ledger(FakeLedger):
    """Counts what is read; a load can be held back, before it reads and after."""

    def __init__(self, database: FakeDatabase) -> None:
        super().__init__(database, node="node", incarnation=uuid4())
        self.loads = 0
        self.before, self.after = asyncio.Event(), asyncio.Event()
        self.has_read = asyncio.Event()
        self.before.set()
        self.after.set()

    async def load(self, signer: Signer, *, queue_limit: int) -> LaneState:
        await self.before.wait()
        loaded = await super().load(signer, queue_limit=queue_limit)
        self.has_read.set()
        await self.after.wait()
        return loaded

    async def load_queue(self, signer: Signer, *, limit: int) -> Sequence[ManagedTx]:
        self.loads += 1
        await self.before.wait()
        loaded = await super().load_queue(signer, limit=limit)
        self.has_read.set()
        await self.after.wait()
        return loaded


class _Place:
    """A node that holds the signer, with nothing to do; its own door, and the door of another node."""

    def __init__(self, policy: Policy = QUICK) -> None:
        self.bench = Bench()
        self.ledger = _Ledger(self.bench.database)
        self.at: BenchNode = self.bench.node(policy, ledger=self.ledger)
        self.own = self.door(self.at.node.requested)

    def door(self, requested: Requested) -> Accept:
        """One that tells of requests in this way."""
        chains = frozenset({CHAIN_ID})
        return Accept(self.ledger, self.bench.keys, chains, hint=lambda _: None, requested=requested)

    async def begin(self) -> None:
        await self.bench.request()
        await self.at.turn()
        self.bench.chain.mine(2)
        await self.at.turn()
        await step(self.at.lane)
        self.ledger.loads = 0

    async def here(self, value_wei: int = 1, *, valid_for_s: float | None = None) -> UUID:
        request = Request(self.bench.signer, transfer(value_wei=value_wei), valid_for_s=valid_for_s)
        return (await self.own.create(request)).tx_id

    async def elsewhere(self) -> UUID:
        """By another node, whose hint is still on its way."""
        return await self.bench.request()

    def nonces(self, *tx_ids: UUID) -> list[int | None]:
        return [self.bench.tx(tx_id).nonce for tx_id in tx_ids]


@pytest.fixture
async def place() -> _Place:
    place = _Place()
    await place.begin()
    return place


async def test_a_request_goes_out_without_being_read_back(place: _Place) -> None:
    first = await place.here()
    await step(place.at.lane)
    assert place.bench.state(first) is State.SUBMITTED
    second, third = [
        answer.tx_id
        for answer in await place.own.accept([Request(place.bench.signer, transfer()) for _ in range(2)])
    ]
    await step(place.at.lane)
    assert place.nonces(first, second, third) == [1, 2, 3]
    assert place.ledger.loads == 0


async def test_what_waits_already_goes_first_though_nobody_told_the_lane(place: _Place) -> None:
    earlier = await place.elsewhere()
    later = await place.here()
    await step(place.at.lane)
    assert place.nonces(earlier, later) == [1, 2]
    assert place.ledger.loads == 1


async def test_a_burst_goes_out_in_order_without_being_read_back(place: _Place) -> None:
    burst = [await place.here() for _ in range(4)]
    await step(place.at.lane)
    assert place.nonces(*burst) == [1, 2, 3, 4]
    assert place.ledger.loads == 0


async def test_what_it_is_behind_may_have_its_nonce_before_the_lane_is_told(place: _Place) -> None:
    first = await place.here()
    told: list[tuple[Sequence[ManagedTx], Collection[int]]] = []
    own = place.door(lambda _, arrived, behind: told.append((arrived, behind)))
    second = (await own.create(Request(place.bench.signer, transfer()))).tx_id
    await step(place.at.lane)
    assert place.nonces(first, second) == [1, None]
    ((arrived, behind),) = told
    assert list(behind) == [place.bench.tx(first).seq]
    place.at.node.requested(place.bench.signer, arrived, behind)
    await step(place.at.lane)
    assert place.nonces(first, second) == [1, 2]
    assert place.ledger.loads == 0


async def test_what_was_stored_elsewhere_between_two_goes_before_the_second(place: _Place) -> None:
    """The first is held here, and the second is behind both of them: what nobody told of must be read."""
    first = await place.here()
    between = await place.elsewhere()
    second = await place.here()
    await step(place.at.lane)
    assert place.nonces(first, between, second) == [1, 2, 3]
    assert place.ledger.loads == 1


async def test_a_request_that_arrives_while_the_queue_is_read_is_taken_once(place: _Place) -> None:
    """Whether the read saw it or not."""
    for holds_back in (place.ledger.before, place.ledger.after):
        place.at.lane.receive(())  # the queue must be read
        holds_back.clear()
        place.ledger.has_read.clear()
        stepping = asyncio.create_task(step(place.at.lane))
        if holds_back is place.ledger.after:
            await place.ledger.has_read.wait()
        else:
            await asyncio.sleep(0)
        tx_id = await place.here()
        holds_back.set()
        await stepping
        await step(place.at.lane)
        assert place.bench.state(tx_id) is State.SUBMITTED
    assert place.nonces(tx_id) == [2]
    assert place.ledger.loads == 2
    assert place.bench.events(tx_id).count("AssignNonce") == 1


@pytest.mark.parametrize("waits_already", [False, True])
async def test_a_request_that_arrives_while_the_lane_is_read_is_not_left_to_a_count(
    place: _Place, *, waits_already: bool
) -> None:
    """What waited before is read, and what came meanwhile is either taken as it is or read after it."""
    earlier = [await place.elsewhere()] if waits_already else []
    place.at.lane.reconciled = False
    place.ledger.after.clear()
    place.ledger.has_read.clear()
    stepping = asyncio.create_task(step(place.at.lane))
    await place.ledger.has_read.wait()
    here, elsewhere = await place.here(), await place.elsewhere()
    place.at.node.requested(place.bench.signer)  # the other node's hint
    place.ledger.after.set()
    await stepping
    await step(place.at.lane)
    wanted = [*earlier, here, elsewhere]
    assert place.nonces(*wanted) == list(range(1, 1 + len(wanted)))


async def test_two_that_were_stored_side_by_side_are_queued_by_arrival(place: _Place) -> None:
    told: list[Sequence[ManagedTx]] = []
    own = place.door(lambda _, arrived, __: told.append(arrived))
    one = await own.create(Request(place.bench.signer, transfer()))
    (first,) = told.pop()
    two = first.changed(tx_id=uuid4(), seq=first.seq + 1)  # neither saw the other
    place.bench.database.txs[two.tx_id] = two
    place.at.node.requested(place.bench.signer, [two])
    place.at.node.requested(place.bench.signer, [first])
    await step(place.at.lane)
    assert place.nonces(one.tx_id, two.tx_id) == [1, 2]
    assert place.ledger.loads == 0


async def test_told_late_of_a_request_that_has_ended_the_lane_reads_again(place: _Place) -> None:
    told: list[Sequence[ManagedTx]] = []
    own = place.door(lambda _, arrived, __: told.append(arrived))
    tx_id = (await own.create(Request(place.bench.signer, transfer()))).tx_id
    await place.at.turn()  # it was read
    place.bench.chain.mine(2)
    await place.at.turn()
    assert place.bench.state(tx_id) is State.CONFIRMED
    place.at.node.requested(place.bench.signer, told[0])
    working = asyncio.create_task(place.at.node.lanes.run())
    try:
        for _ in range(200):
            await asyncio.sleep(0)
    finally:
        working.cancel()
    assert place.bench.state(tx_id) is State.CONFIRMED
    assert place.bench.events(tx_id).count("AssignNonce") == 1
    assert place.at.lane.is_idle


async def test_a_lane_that_is_read_anew_forgets_what_it_was_given(place: _Place) -> None:
    tx_id = await place.here()
    place.at.lane.reconciled = False
    await step(place.at.lane)
    assert place.nonces(tx_id) == [1]
    await step(place.at.lane)
    assert place.bench.events(tx_id).count("AssignNonce") == 1


async def test_more_than_the_lane_reads_ahead_is_left_to_the_ledger() -> None:
    place = _Place(Policy(strict=True, chain_query="off", read_ahead=3, required=1))
    await place.begin()
    await place.own.accept([Request(place.bench.signer, transfer()) for _ in range(4)])
    assert place.at.lane.queue.arrived == []
    assert place.at.lane.queue_may_have_more
    assert not place.at.lane.is_idle


async def test_the_deadline_of_a_request_holds(place: _Place) -> None:
    tx_id = await place.here(valid_for_s=5)
    clock: FakeClock = place.bench.clock
    clock.advance(6)
    await place.at.node.renew_once()
    await step(place.at.lane)
    assert place.bench.state(tx_id) is State.FAILED
    assert place.ledger.loads == 0


async def test_a_handler_gets_its_nonce(place: _Place) -> None:
    async def build(context: NonceContext) -> UnsignedTx:
        return UnsignedTx(CHAIN_ID, context.nonce, Call(to=context.signer.address), 21_000, context.fees)

    tx_id = uuid4()
    place.at.handlers[tx_id] = build
    await place.own.create_for_handler(place.bench.signer, tx_id, place.at.incarnation)
    await step(place.at.lane)
    assert place.bench.state(tx_id) is State.SUBMITTED
    assert place.ledger.loads == 0


async def test_a_wish_about_a_request_that_just_arrived_is_carried_out(place: _Place) -> None:
    tx_id = await place.here()
    await place.bench.ask("cancel", tx_id)
    place.at.node.hint(place.bench.signer)
    await step(place.at.lane)
    assert place.bench.state(tx_id) is State.CANCELLED
    assert place.at.lane.is_idle or await step(place.at.lane) is None


async def test_a_paused_signer_keeps_what_arrives(place: _Place) -> None:
    await place.bench.ask("pause")
    place.at.node.hint(place.bench.signer)
    await step(place.at.lane)
    first, second = await place.here(), await place.here()
    await step(place.at.lane)
    assert place.nonces(first, second) == [None, None]
    await place.bench.ask("unpause")
    place.at.node.hint(place.bench.signer)
    await step(place.at.lane)
    assert place.nonces(first, second) == [1, 2]


async def test_a_full_window_reads_nothing(place: _Place) -> None:
    window = QUICK.window
    await place.own.accept([Request(place.bench.signer, transfer()) for _ in range(window)])
    await step(place.at.lane)
    assert place.ledger.loads == 0
    await place.elsewhere()
    place.at.lane.receive(())
    await step(place.at.lane)
    assert place.ledger.loads == 0, "there is no room for it"
    place.bench.chain.mine(2)
    await place.at.turn()
    assert place.ledger.loads == 1
