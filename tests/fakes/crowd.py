"""Three signers of one node whose lanes can be stepped one by one, or swept together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID, uuid4

from fakes.bench import CHAIN_ID, SINK, Bench, BenchNode
from fakes.cut import Cut, How
from fencepost.adapters.signers.local import LocalKeys
from fencepost.application.accept import Accept, Request
from fencepost.application.lane import Lane, Policy
from fencepost.application.ports import KeyPort, ToSign
from fencepost.application.step import step
from fencepost.application.sweep import is_plain, sweep
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import Intent
from fencepost.domain.send import SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, SignedTx, UnsignedTx
from fencepost.errors import SigningError
from fencepost.lab.sim.ledger import FakeLedger

POLICY = Policy(strict=False, required=0, refuse_reverting=False, chain_query="off")
SECRETS = [f"0x{number:064x}" for number in (1, 2, 3)]
KEYS = LocalKeys.from_hex(SECRETS)
SIGNERS = [Signer(CHAIN_ID, address) for address in KEYS.addresses()]
LEASE_AND_SKEW_S = 20.0
NEVER = 0


class BreakableKeys(LocalKeys):
    """One of them can't be used for a while."""

    broken: Address | None = None

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if address == self.broken:
            raise SigningError("the key is gone")
        return await super().sign(address, txs)

    async def sign_each(self, wanted: Sequence[ToSign]) -> Sequence[Sequence[SignedTx] | BaseException]:
        return await KeyPort.sign_each(self, wanted)


Walk = Callable[["Crowd"], Awaitable[None]]


class Crowd:
    """A node with three signers, whose sequences have begun, and which have nothing to do."""

    def __init__(self, bench: Bench, at: BenchNode) -> None:
        self.bench, self.at = bench, at
        self.tx_ids: dict[Signer, list[UUID]] = {signer: [] for signer in SIGNERS}

    @staticmethod
    async def begun(cut: Cut | None = None) -> Crowd:
        bench = Bench()
        bench.keys = BreakableKeys.from_hex(SECRETS)
        ledger = FakeLedger(bench.database, node="old", incarnation=uuid4())
        cut = cut or Cut(NEVER, How.DIES_BEFORE)
        ports = cut.wrap(ledger), cut.wrap(bench.chain), cut.wrap(bench.keys)
        at = bench.node(POLICY, name="old", ledger=ports[0], chain=ports[1], keys=ports[2])
        crowd = Crowd(bench, at)
        await crowd.requests()
        for _ in range(3):
            await crowd.turn(by=stepping)
            bench.chain.mine()
        assert all(lane.is_idle for lane in crowd.lanes)
        return crowd

    @property
    def lanes(self) -> list[Lane]:
        held = (self.at.node.lanes.get(signer) for signer in SIGNERS)
        return [lane for lane in held if lane is not None]

    def lane(self, number: int) -> Lane:
        found = self.at.node.lanes.get(SIGNERS[number])
        assert found is not None
        return found

    async def requests(self) -> None:
        """One more for each of them."""
        for signer in SIGNERS:
            await self.request(signer)

    async def request(self, signer: Signer) -> None:
        """Taken at this node's own door."""
        ledger = FakeLedger(self.bench.database, node="door")
        door = Accept(
            ledger,
            KEYS,
            frozenset({CHAIN_ID}),
            hint=lambda _: None,
            requested=self.at.node.requested,
        )
        intent = Intent(Call(to=SINK, value_wei=1 + len(self.tx_ids[signer])), gas=21_000)
        self.tx_ids[signer].append((await door.create(Request(signer, intent))).tx_id)

    async def turn(self, by: Walk) -> None:
        await self.at.node.renew_once()
        await self.at.node.heads_once(CHAIN_ID)
        await self.at.node.seek_once()
        await by(self)

    def count_sends(self, after_first: Callable[[], Awaitable[None]] | None = None) -> list[int]:
        """How many transactions each had; the first may be the moment for something."""
        sizes: list[int] = []
        real = self.bench.chain.send

        async def send(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
            sizes.append(len(txs))
            if after_first is not None and len(sizes) == 1:
                await after_first()
            return await real(txs)

        self.bench.chain.send = send  # type: ignore[method-assign]  # it counts
        return sizes

    def states(self) -> list[State]:
        return [self.bench.state(self.tx_ids[signer][-1]) for signer in SIGNERS]

    def told(self) -> list[tuple[State, int | None, list[str]]]:
        return [
            (self.bench.state(tx_id), self.bench.tx(tx_id).nonce, self.bench.events(tx_id))
            for tx_ids in self.tx_ids.values()
            for tx_id in tx_ids
        ]


async def stepping(crowd: Crowd) -> None:
    for lane in crowd.lanes:
        await step(lane)


async def sweeping(crowd: Crowd) -> None:
    assert all(is_plain(lane) for lane in crowd.lanes)
    assert not await sweep(crowd.lanes)
