"""What a node does for signers that have nothing to do, and for many at once: little, and no more for more of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from fakes.bench import CHAIN_ID, Bench, BenchNode
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.domain.states import State
from fencepost.lab.sim.ledger import FakeLedger
from fencepost.runtime.lanes import Lanes
from fencepost.runtime.routing import ALONE, Router
from fencepost.runtime.seeking import MOST_ACQUIRED_AT_ONCE, Seeking

MANY = 2 * MOST_ACQUIRED_AT_ONCE + 10
SIGNERS = [Signer(CHAIN_ID, Address(f"0x{number:040x}")) for number in range(MANY)]


class CountingLedger(FakeLedger):
    looks = 0
    takes_s = 0.0
    passes: Callable[[float], None]
    on_acquired: Callable[[], None] = staticmethod(lambda: None)

    async def signers_with_work(
        self, chain_ids: Sequence[int], *, limit: int, after: Signer | None = None
    ) -> Sequence[Signer]:
        self.looks += 1
        self.passes(self.takes_s)
        return await super().signers_with_work(chain_ids, limit=limit, after=after)

    async def acquire(self, signers: Sequence[Signer]) -> Sequence[Term]:
        terms = await super().acquire(signers)
        self.on_acquired()
        return terms


@dataclass(slots=True)
class Ground:
    """A node's seeking, with lanes that nobody steps."""

    bench: Bench = field(default_factory=Bench)
    lanes: Lanes = field(init=False)
    ledger: CountingLedger = field(init=False)
    seeking: Seeking = field(init=False)
    expiry_looks: int = 0
    left_s: float | None = None
    given_back: list[Term] = field(default_factory=list)

    def __post_init__(self) -> None:
        node = self.bench.node().node
        self.ledger = CountingLedger(self.bench.database, node="node")
        self.ledger.passes = self.bench.clock.advance
        self.lanes = node.lanes
        self.seeking = Seeking(
            ledger=self.ledger,
            clock=self.bench.clock,
            observer=node.observer,
            lanes=node.lanes,
            router=Router(ALONE),
            addresses=frozenset(signer.address for signer in SIGNERS),
            chain_ids=[CHAIN_ID],
            look_every_s=1.0,
            expiries_every_s=2.5,
            skew_allowance_s=0.0,
            soonest_expiry=self._soonest_expiry,
            give_back=self.given_back.append,
        )

    async def _soonest_expiry(self) -> float | None:
        self.expiry_looks += 1
        return self.left_s


async def test_all_that_were_hinted_at_are_acquired_and_nobody_else_is_looked_for() -> None:
    ground = Ground()
    await ground.seeking.turn()
    assert ground.ledger.looks == 1
    for signer in SIGNERS:
        ground.seeking.hint(signer)
    taken = 0
    while ground.seeking.wake.is_set():
        ground.seeking.wake.clear()
        taken += await ground.seeking.turn()
    assert taken == len(ground.lanes) == MANY
    assert ground.ledger.looks == 1


async def test_it_looks_for_all_when_it_is_time_and_when_there_may_be_more() -> None:
    ground = Ground()
    await ground.seeking.turn()
    ground.bench.clock.advance(0.5)
    await ground.seeking.turn()
    assert ground.ledger.looks == 1
    assert ground.seeking.rest_s() == 0.5
    ground.bench.clock.advance(0.5)
    await ground.seeking.turn()
    assert ground.ledger.looks == 2
    ground.seeking.look_soon()
    await ground.seeking.turn()
    assert ground.ledger.looks == 3


async def test_the_leases_of_others_are_looked_at_in_time_for_the_first_to_end_and_seldom_before() -> None:
    ground = Ground(left_s=10.0)
    for _ in range(5):
        await ground.seeking.turn()
        ground.bench.clock.advance(1.0)
    assert ground.expiry_looks == 2
    ground.left_s = 1.5
    await ground.seeking.turn()  # at 5 s
    assert ground.expiry_looks == 2
    ground.bench.clock.advance(1.0)
    await ground.seeking.turn()
    ground.left_s = 0.02
    ground.bench.clock.advance(1.0)
    await ground.seeking.turn()
    assert ground.expiry_looks == 4
    ground.seeking.wake.clear()
    await asyncio.wait_for(ground.seeking.wake.wait(), timeout=10)
    assert ground.seeking.rest_s() == 0  # a look at everything, not at hints alone


async def test_looks_that_take_long_are_rare_but_in_time_for_an_expiry() -> None:
    ground = Ground()
    for takes_s, rest_s in ((0.01, 1.0), (0.1, 2.0), (3.0, 5.0)):
        ground.ledger.takes_s = takes_s
        await ground.seeking.look()
        ground.ledger.takes_s = 0.0
        await ground.seeking.look()
        assert ground.seeking.rest_s() == pytest.approx(rest_s)


async def test_signers_whose_keys_are_elsewhere_hide_nobody() -> None:
    """However many of them wait: what a look has no time for, the next one begins with."""
    ground = Ground()
    ground.seeking.addresses = frozenset({SIGNERS[-1].address})
    for number, signer in enumerate(SIGNERS):
        await ground.ledger.ask(
            signer, "pause", tx_id=None, asked_by="eve", reason=None, detail={"n": number}
        )
    assert await ground.seeking.look() == 1
    assert ground.ledger.looks == 3
    assert SIGNERS[-1] in ground.lanes


async def _until(bench: Bench, node: BenchNode, tx_id: UUID, state: State) -> None:
    for _ in range(1_000):  # turns of the loop: nothing here waits for anything outside
        if bench.state(tx_id) is state and not node.node.lanes.is_busy(bench.signer):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{bench.state(tx_id)}, not {state}")


async def _at_rest() -> tuple[Bench, BenchNode]:
    """A node whose one lane has done its work, stepped by a worker as in life."""
    bench = Bench()
    node = bench.node()
    tx_id = await bench.request()
    await node.node.heads_once(CHAIN_ID)
    await node.node.seek_once()
    working = asyncio.create_task(node.node.lanes.run())
    try:
        await _until(bench, node, tx_id, State.SUBMITTED)
        assert node.node.lanes.watchful() == [], "it waits for a block with its hash, not for any"
        bench.chain.mine(2)
        await node.node.heads_once(CHAIN_ID)
        await _until(bench, node, tx_id, State.CONFIRMED)
    finally:
        working.cancel()
    return bench, node


async def test_a_block_wakes_the_lane_whose_hashes_it_holds_and_no_lane_for_which_it_is_empty() -> None:
    bench = Bench()
    node = bench.node()
    tx_id = await bench.request()
    await node.node.heads_once(CHAIN_ID)
    await node.node.seek_once()
    working = asyncio.create_task(node.node.lanes.run())
    try:
        await _until(bench, node, tx_id, State.SUBMITTED)
        bench.chain.mine(1, only=())
        await node.node.heads_once(CHAIN_ID)
        assert not node.node.lanes.is_busy(bench.signer)
        bench.chain.mine(1)
        await node.node.heads_once(CHAIN_ID)
        assert node.node.lanes.is_busy(bench.signer)
        await _until(bench, node, tx_id, State.TRACKING)
        assert node.node.lanes.watchful() == [node.lane]
        bench.chain.mine(1)
        await node.node.heads_once(CHAIN_ID)
        assert node.node.lanes.is_busy(bench.signer), "it waits for depth"
        await _until(bench, node, tx_id, State.CONFIRMED)
    finally:
        working.cancel()


async def test_a_block_tells_nothing_to_a_lane_that_rests_but_a_fork_does() -> None:
    bench, node = await _at_rest()
    assert node.node.lanes.watchful() == []
    bench.chain.mine(1)
    await node.node.heads_once(CHAIN_ID)
    assert not node.node.lanes.is_busy(bench.signer)
    bench.chain.reorg(1)
    await node.node.heads_once(CHAIN_ID)
    assert node.node.lanes.is_busy(bench.signer)


async def test_no_hash_is_looked_for_after_its_transaction_or_its_lane_is_gone() -> None:
    bench, node = await _at_rest()
    awaited = node.node.watches[CHAIN_ID].awaited
    assert not awaited, "it is mined"
    tx_id = await bench.request()
    node.node.hint(bench.signer)
    await node.turn()
    assert bench.state(tx_id) is State.SUBMITTED
    assert awaited == {bench.tx(tx_id).hash: bench.signer}
    bench.chain.mine(1)
    await node.node.heads_once(CHAIN_ID)
    bench.chain.reorg(1)
    await node.turn()
    assert awaited == {bench.tx(tx_id).hash: bench.signer}, "a fork took its block"
    node.node.lanes.drop(bench.signer)
    assert not awaited


async def test_the_lease_of_a_lane_that_rests_is_renewed_every_other_time_and_at_work_each_time() -> None:
    bench, node = await _at_rest()
    pace_s = node.node.pace.renew_s
    await node.node.renew_once()
    renewed = []
    for _ in range(4):
        bench.clock.advance(pace_s)
        renewed.append(await node.node.renew_once())
    assert sum(renewed) == 2
    assert node.lane.term.is_trusted(bench.clock.now_s())
    node.node.hint(bench.signer)
    for _ in range(3):
        bench.clock.advance(pace_s)
        assert await node.node.renew_once() == 1


async def test_who_is_switched_off_while_it_looks_takes_nobody_and_forgets_no_hint() -> None:
    ground = Ground()

    def switch_off(_seconds: float) -> None:
        ground.seeking.is_off = True

    ground.ledger.passes = switch_off
    ground.seeking.hint(SIGNERS[0])
    assert await ground.seeking.look() == 0
    assert SIGNERS[0] not in ground.lanes
    ground.seeking.is_off = False
    assert await ground.seeking.turn() == 1
    assert SIGNERS[0] in ground.lanes


async def test_who_is_switched_off_while_it_acquires_gives_back_what_it_got() -> None:
    ground = Ground()

    def switch_off() -> None:
        ground.seeking.is_off = True

    ground.ledger.on_acquired = switch_off
    ground.seeking.hint(SIGNERS[0])
    assert await ground.seeking.look() == 0
    assert SIGNERS[0] not in ground.lanes
    assert [term.signer for term in ground.given_back] == [SIGNERS[0]]
    await ground.ledger.release(ground.given_back)
    ground.ledger.on_acquired = lambda: None
    ground.seeking.is_off = False
    assert await ground.seeking.turn() == 1
    assert SIGNERS[0] in ground.lanes
