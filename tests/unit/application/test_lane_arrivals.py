"""Requests that a node passes directly to its lane, without a read from the ledger: once each, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from uuid import UUID, uuid4

import pytest

from fakes.bench import CHAIN_ID, QUICK, Bench, BenchNode, transfer
from fakes.clock import FakeClock
from fakes.rounds import run_alone
from fencepost.application.accept import Request, RequestAcceptor
from fencepost.application.hooks import NonceContext
from fencepost.application.lane import LaneSettings
from fencepost.application.ports import LaneState, Requested
from fencepost.domain.ids import Signer
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, UnsignedTx
from fencepost.domain.transaction_state import ManagedTx
from fencepost.testing import InMemoryDatabase, InMemoryLedger


class _Ledger(InMemoryLedger):
    """Counts reads; a load can be delayed before and after it reads."""

    def __init__(self, database: InMemoryDatabase) -> None:
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
    """A node that holds an idle signer, its own acceptor, and the acceptor of another node."""

    def __init__(self, policy: LaneSettings = QUICK) -> None:
        self.bench = Bench()
        self.ledger = _Ledger(self.bench.database)
        self.at: BenchNode = self.bench.node(policy, ledger=self.ledger)
        self.own = self.acceptor(self.at.node.requested)

    def acceptor(self, requested: Requested) -> RequestAcceptor:
        """Build an acceptor that reports requests with this function."""
        chains = frozenset({CHAIN_ID})
        return RequestAcceptor(self.ledger, self.bench.keys, chains, hint=lambda _: None, requested=requested)

    async def begin(self) -> None:
        await self.bench.request()
        await self.at.turn()
        self.bench.chain.mine(2)
        await self.at.turn()
        await run_alone(self.at.lane)
        self.ledger.loads = 0

    async def on_this_node(self, value_wei: int = 1, *, valid_for_s: float | None = None) -> UUID:
        request = Request(self.bench.signer, transfer(value_wei=value_wei), valid_for_s=valid_for_s)
        return (await self.own.create(request)).tx_id

    async def on_other_node(self) -> UUID:
        """Submit through another node, whose hint has not arrived yet."""
        return await self.bench.request()

    def nonces(self, *tx_ids: UUID) -> list[int | None]:
        return [self.bench.tx(tx_id).nonce for tx_id in tx_ids]


@pytest.fixture
async def place() -> _Place:
    place = _Place()
    await place.begin()
    return place


async def test_a_request_is_sent_without_a_read(place: _Place) -> None:
    first = await place.on_this_node()
    await run_alone(place.at.lane)
    assert place.bench.state(first) is State.SUBMITTED
    second, third = [
        answer.tx_id
        for answer in await place.own.accept([Request(place.bench.signer, transfer()) for _ in range(2)])
    ]
    await run_alone(place.at.lane)
    assert place.nonces(first, second, third) == [1, 2, 3]
    assert place.ledger.loads == 0


async def test_earlier_requests_are_sent_first_even_without_a_hint(place: _Place) -> None:
    earlier = await place.on_other_node()
    later = await place.on_this_node()
    await run_alone(place.at.lane)
    assert place.nonces(earlier, later) == [1, 2]
    assert place.ledger.loads == 1


async def test_a_burst_is_sent_in_order_without_a_read(place: _Place) -> None:
    burst = [await place.on_this_node() for _ in range(4)]
    await run_alone(place.at.lane)
    assert place.nonces(*burst) == [1, 2, 3, 4]
    assert place.ledger.loads == 0


async def test_an_earlier_request_may_have_its_nonce_before_the_lane_gets_the_later_one(
    place: _Place,
) -> None:
    first = await place.on_this_node()
    reported: list[tuple[Sequence[ManagedTx], Collection[int]]] = []
    own = place.acceptor(lambda _, arrived, behind: reported.append((arrived, behind)))
    second = (await own.create(Request(place.bench.signer, transfer()))).tx_id
    await run_alone(place.at.lane)
    assert place.nonces(first, second) == [1, None]
    ((arrived, behind),) = reported
    assert list(behind) == [place.bench.tx(first).seq]
    place.at.node.requested(place.bench.signer, arrived, behind)
    await run_alone(place.at.lane)
    assert place.nonces(first, second) == [1, 2]
    assert place.ledger.loads == 0


async def test_a_request_stored_by_another_node_in_between_is_sent_in_order(place: _Place) -> None:
    """The lane holds the first request, and the second follows two: the unknown one must be read."""
    first = await place.on_this_node()
    between = await place.on_other_node()
    second = await place.on_this_node()
    await run_alone(place.at.lane)
    assert place.nonces(first, between, second) == [1, 2, 3]
    assert place.ledger.loads == 1


async def test_a_request_that_arrives_during_a_queue_read_is_taken_once(place: _Place) -> None:
    """The read may see the request or not."""
    for holds_back in (place.ledger.before, place.ledger.after):
        place.at.lane.on_request(())  # the queue must be read
        holds_back.clear()
        place.ledger.has_read.clear()
        stepping = asyncio.create_task(run_alone(place.at.lane))
        if holds_back is place.ledger.after:
            await place.ledger.has_read.wait()
        else:
            await asyncio.sleep(0)
        tx_id = await place.on_this_node()
        holds_back.set()
        await stepping
        await run_alone(place.at.lane)
        assert place.bench.state(tx_id) is State.SUBMITTED
    assert place.nonces(tx_id) == [2]
    assert place.ledger.loads == 2
    assert place.bench.events(tx_id).count("AssignNonce") == 1


@pytest.mark.parametrize("waits_already", [False, True])
async def test_a_request_that_arrives_during_a_lane_load_does_not_wait_for_the_periodic_count(
    place: _Place, *, waits_already: bool
) -> None:
    """Earlier requests are read; new ones are taken directly or read afterwards."""
    earlier = [await place.on_other_node()] if waits_already else []
    place.at.lane.reconciled = False
    place.ledger.after.clear()
    place.ledger.has_read.clear()
    stepping = asyncio.create_task(run_alone(place.at.lane))
    await place.ledger.has_read.wait()
    on_this_node, on_other_node = await place.on_this_node(), await place.on_other_node()
    place.at.node.requested(place.bench.signer)  # the other node's hint
    place.ledger.after.set()
    await stepping
    await run_alone(place.at.lane)
    wanted = [*earlier, on_this_node, on_other_node]
    assert place.nonces(*wanted) == list(range(1, 1 + len(wanted)))


async def test_requests_stored_concurrently_are_queued_by_arrival(place: _Place) -> None:
    reported: list[Sequence[ManagedTx]] = []
    own = place.acceptor(lambda _, arrived, __: reported.append(arrived))
    one = await own.create(Request(place.bench.signer, transfer()))
    (first,) = reported.pop()
    two = first.changed(tx_id=uuid4(), seq=first.seq + 1)  # neither saw the other
    place.bench.database.txs[two.tx_id] = two
    place.at.node.requested(place.bench.signer, [two])
    place.at.node.requested(place.bench.signer, [first])
    await run_alone(place.at.lane)
    assert place.nonces(one.tx_id, two.tx_id) == [1, 2]
    assert place.ledger.loads == 0


async def test_a_late_report_of_a_finished_request_makes_the_lane_read_again(place: _Place) -> None:
    reported: list[Sequence[ManagedTx]] = []
    own = place.acceptor(lambda _, arrived, __: reported.append(arrived))
    tx_id = (await own.create(Request(place.bench.signer, transfer()))).tx_id
    await place.at.turn()  # the lane has read it
    place.bench.chain.mine(2)
    await place.at.turn()
    assert place.bench.state(tx_id) is State.CONFIRMED
    place.at.node.requested(place.bench.signer, reported[0])
    working = asyncio.create_task(place.at.node.lanes.run())
    try:
        for _ in range(200):
            await asyncio.sleep(0)
    finally:
        working.cancel()
    assert place.bench.state(tx_id) is State.CONFIRMED
    assert place.bench.events(tx_id).count("AssignNonce") == 1
    assert place.at.lane.is_idle


async def test_a_reload_discards_directly_received_requests(place: _Place) -> None:
    tx_id = await place.on_this_node()
    place.at.lane.reconciled = False
    await run_alone(place.at.lane)
    assert place.nonces(tx_id) == [1]
    await run_alone(place.at.lane)
    assert place.bench.events(tx_id).count("AssignNonce") == 1


async def test_requests_beyond_the_read_ahead_stay_in_the_ledger() -> None:
    place = _Place(LaneSettings(strict=True, chain_query="off", read_ahead=3, required=1))
    await place.begin()
    await place.own.accept([Request(place.bench.signer, transfer()) for _ in range(4)])
    assert place.at.lane.queue.arrived == []
    assert place.at.lane.queue.may_be_longer
    assert not place.at.lane.is_idle


async def test_the_deadline_of_a_received_request_applies(place: _Place) -> None:
    tx_id = await place.on_this_node(valid_for_s=5)
    clock: FakeClock = place.bench.clock
    clock.advance(6)
    await place.at.node.renew_once()
    await run_alone(place.at.lane)
    assert place.bench.state(tx_id) is State.FAILED
    assert place.ledger.loads == 0


async def test_a_handler_gets_its_nonce(place: _Place) -> None:
    async def build(context: NonceContext) -> UnsignedTx:
        return UnsignedTx(CHAIN_ID, context.nonce, Call(to=context.signer.address), 21_000, context.fees)

    tx_id = uuid4()
    place.at.handlers[tx_id] = build
    await place.own.create_for_handler(place.bench.signer, tx_id, place.at.incarnation)
    await run_alone(place.at.lane)
    assert place.bench.state(tx_id) is State.SUBMITTED
    assert place.ledger.loads == 0


async def test_a_command_for_a_request_that_just_arrived_is_carried_out(place: _Place) -> None:
    tx_id = await place.on_this_node()
    await place.bench.ask("cancel", tx_id)
    place.at.node.hint(place.bench.signer)
    await run_alone(place.at.lane)
    assert place.bench.state(tx_id) is State.CANCELLED
    assert place.at.lane.is_idle or await run_alone(place.at.lane) is None


async def test_a_paused_signer_keeps_arriving_requests_queued(place: _Place) -> None:
    await place.bench.ask("pause")
    place.at.node.hint(place.bench.signer)
    await run_alone(place.at.lane)
    first, second = await place.on_this_node(), await place.on_this_node()
    await run_alone(place.at.lane)
    assert place.nonces(first, second) == [None, None]
    await place.bench.ask("unpause")
    place.at.node.hint(place.bench.signer)
    await run_alone(place.at.lane)
    assert place.nonces(first, second) == [1, 2]


async def test_a_full_window_reads_nothing(place: _Place) -> None:
    window = QUICK.window
    await place.own.accept([Request(place.bench.signer, transfer()) for _ in range(window)])
    await run_alone(place.at.lane)
    assert place.ledger.loads == 0
    await place.on_other_node()
    place.at.lane.on_request(())
    await run_alone(place.at.lane)
    assert place.ledger.loads == 0, "the window is full"
    place.bench.chain.mine(2)
    await place.at.turn()
    assert place.ledger.loads == 1
