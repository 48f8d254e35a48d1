"""The cost of idle signers and of many signers is low and does not grow with their number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from fakes.bench import CHAIN_ID, Bench
from fencepost.domain.ids import Address, Signer
from fencepost.domain.lease import Term
from fencepost.runtime.lane_scheduler import LaneScheduler
from fencepost.runtime.lease_acquirer import MAX_ACQUIRED_AT_ONCE, LeaseAcquirer
from fencepost.runtime.routing import ALONE, Router
from fencepost.testing import InMemoryLedger

MANY = 2 * MAX_ACQUIRED_AT_ONCE + 10
SIGNERS = [Signer(CHAIN_ID, Address(f"0x{number:040x}")) for number in range(MANY)]


class CountingLedger(InMemoryLedger):
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
    """A lease acquirer with lanes that are not stepped."""

    bench: Bench = field(default_factory=Bench)
    lanes: LaneScheduler = field(init=False)
    ledger: CountingLedger = field(init=False)
    lease_acquirer: LeaseAcquirer = field(init=False)
    expiry_looks: int = 0
    left_s: float | None = None
    given_back: list[Term] = field(default_factory=list)

    def __post_init__(self) -> None:
        node = self.bench.node().node
        self.ledger = CountingLedger(self.bench.database, node="node")
        self.ledger.passes = self.bench.clock.advance
        self.lanes = node.lanes
        self.lease_acquirer = LeaseAcquirer(
            ledger=self.ledger,
            clock=self.bench.clock,
            observer=node.observer,
            lanes=node.lanes,
            router=Router(ALONE),
            addresses=frozenset(signer.address for signer in SIGNERS),
            chain_ids=[CHAIN_ID],
            poll_interval_s=1.0,
            expiry_check_interval_s=2.5,
            skew_allowance_s=0.0,
            soonest_expiry=self._soonest_expiry,
            release_later=self.given_back.append,
        )

    async def _soonest_expiry(self) -> float | None:
        self.expiry_looks += 1
        return self.left_s


async def test_all_hinted_signers_are_acquired_without_a_poll() -> None:
    ground = Ground()
    await ground.lease_acquirer.turn()
    assert ground.ledger.looks == 1
    for signer in SIGNERS:
        ground.lease_acquirer.hint(signer)
    taken = 0
    while ground.lease_acquirer.wake.is_set():
        ground.lease_acquirer.wake.clear()
        taken += await ground.lease_acquirer.turn()
    assert taken == len(ground.lanes) == MANY
    assert ground.ledger.looks == 1


async def test_the_acquirer_polls_at_its_interval_and_when_more_work_is_expected() -> None:
    ground = Ground()
    await ground.lease_acquirer.turn()
    ground.bench.clock.advance(0.5)
    await ground.lease_acquirer.turn()
    assert ground.ledger.looks == 1
    assert ground.lease_acquirer.rest_s() == 0.5
    ground.bench.clock.advance(0.5)
    await ground.lease_acquirer.turn()
    assert ground.ledger.looks == 2
    ground.lease_acquirer.poll_soon()
    await ground.lease_acquirer.turn()
    assert ground.ledger.looks == 3


async def test_expiring_leases_of_other_nodes_are_checked_in_time_and_rarely_before() -> None:
    ground = Ground(left_s=10.0)
    for _ in range(5):
        await ground.lease_acquirer.turn()
        ground.bench.clock.advance(1.0)
    assert ground.expiry_looks == 2
    ground.left_s = 1.5
    await ground.lease_acquirer.turn()  # at 5 s
    assert ground.expiry_looks == 2
    ground.bench.clock.advance(1.0)
    await ground.lease_acquirer.turn()
    ground.left_s = 0.02
    ground.bench.clock.advance(1.0)
    await ground.lease_acquirer.turn()
    assert ground.expiry_looks == 4
    ground.lease_acquirer.wake.clear()
    await asyncio.wait_for(ground.lease_acquirer.wake.wait(), timeout=10)
    assert ground.lease_acquirer.rest_s() == 0  # a full poll, not only hints


async def test_slow_polls_are_rare_but_in_time_for_an_expiry() -> None:
    ground = Ground()
    for takes_s, rest_s in ((0.01, 1.0), (0.1, 2.0), (3.0, 5.0)):
        ground.ledger.takes_s = takes_s
        await ground.lease_acquirer.poll()
        ground.ledger.takes_s = 0.0
        await ground.lease_acquirer.poll()
        assert ground.lease_acquirer.rest_s() == pytest.approx(rest_s)


async def test_signers_without_a_local_key_do_not_hide_others() -> None:
    """The next poll begins where the last one stopped, however many signers wait."""
    ground = Ground()
    ground.lease_acquirer.addresses = frozenset({SIGNERS[-1].address})
    for number, signer in enumerate(SIGNERS):
        await ground.ledger.add_command(
            signer, "pause", tx_id=None, author="eve", reason=None, detail={"n": number}
        )
    assert await ground.lease_acquirer.poll() == 1
    assert ground.ledger.looks == 3
    assert SIGNERS[-1] in ground.lanes


async def test_an_acquirer_switched_off_during_a_poll_acquires_nothing_and_keeps_its_hints() -> None:
    ground = Ground()

    def switch_off(_seconds: float) -> None:
        ground.lease_acquirer.is_off = True

    ground.ledger.passes = switch_off
    ground.lease_acquirer.hint(SIGNERS[0])
    assert await ground.lease_acquirer.poll() == 0
    assert SIGNERS[0] not in ground.lanes
    ground.lease_acquirer.is_off = False
    assert await ground.lease_acquirer.turn() == 1
    assert SIGNERS[0] in ground.lanes


async def test_an_acquirer_switched_off_during_an_acquisition_releases_the_lease() -> None:
    ground = Ground()

    def switch_off() -> None:
        ground.lease_acquirer.is_off = True

    ground.ledger.on_acquired = switch_off
    ground.lease_acquirer.hint(SIGNERS[0])
    assert await ground.lease_acquirer.poll() == 0
    assert SIGNERS[0] not in ground.lanes
    assert [term.signer for term in ground.given_back] == [SIGNERS[0]]
    await ground.ledger.release(ground.given_back)
    ground.ledger.on_acquired = lambda: None
    ground.lease_acquirer.is_off = False
    assert await ground.lease_acquirer.turn() == 1
    assert SIGNERS[0] in ground.lanes
