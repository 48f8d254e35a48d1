"""Three signers of one node whose lanes have rounds of their own or one together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID, uuid4

from fakes.bench import CHAIN_ID, SINK, Bench, BenchNode
from fakes.failing_call import FailingCall, FailureMode
from fakes.rounds import run_alone
from fencepost.adapters.signers.local import LocalKeys
from fencepost.application.accept import Request, RequestAcceptor
from fencepost.application.lane import Lane, LaneSettings
from fencepost.application.lane_round import is_plain, run_round
from fencepost.application.ports import KeyPort, ToSign
from fencepost.domain.ids import Address, Signer
from fencepost.domain.send_result import SendResult
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, SignedTx, UnsignedTx
from fencepost.domain.transaction_state import Intent
from fencepost.errors import SigningError
from fencepost.testing import InMemoryLedger

POLICY = LaneSettings(strict=False, required=0, refuse_reverting=False, chain_query="off")
SECRETS = [f"0x{number:064x}" for number in (1, 2, 3)]
KEYS = LocalKeys.from_hex(SECRETS)
SIGNERS = [Signer(CHAIN_ID, address) for address in KEYS.addresses()]
LEASE_AND_SKEW_S = 20.0
NEVER = 0


class BreakableKeys(LocalKeys):
    """Keys of which one can be made to fail."""

    broken: Address | None = None

    async def sign(self, address: Address, txs: Sequence[UnsignedTx]) -> Sequence[SignedTx]:
        if address == self.broken:
            raise SigningError("the key is gone")
        return await super().sign(address, txs)

    async def sign_each(self, wanted: Sequence[ToSign]) -> Sequence[Sequence[SignedTx] | BaseException]:
        return await KeyPort.sign_each(self, wanted)


Walk = Callable[["SignerGroup"], Awaitable[None]]


class SignerGroup:
    """A node with three idle signers whose sequences have begun."""

    def __init__(self, bench: Bench, at: BenchNode) -> None:
        self.bench, self.at = bench, at
        self.tx_ids: dict[Signer, list[UUID]] = {signer: [] for signer in SIGNERS}

    @staticmethod
    async def start(cut: FailingCall | None = None) -> SignerGroup:
        bench = Bench()
        bench.keys = BreakableKeys.from_hex(SECRETS)
        ledger = InMemoryLedger(bench.database, node="old", incarnation=uuid4())
        cut = cut or FailingCall(NEVER, FailureMode.DIES_BEFORE)
        ports = cut.wrap(ledger), cut.wrap(bench.chain), cut.wrap(bench.keys)
        at = bench.node(POLICY, name="old", ledger=ports[0], chain=ports[1], keys=ports[2])
        group = SignerGroup(bench, at)
        await group.requests()
        for _ in range(3):
            await group.turn(by=alone)
            bench.chain.mine()
        assert all(lane.is_idle for lane in group.lanes)
        return group

    @property
    def lanes(self) -> list[Lane]:
        held = (self.at.node.lanes.get(signer) for signer in SIGNERS)
        return [lane for lane in held if lane is not None]

    def lane(self, number: int) -> Lane:
        found = self.at.node.lanes.get(SIGNERS[number])
        assert found is not None
        return found

    async def requests(self) -> None:
        """Submit one more request for each signer."""
        for signer in SIGNERS:
            await self.request(signer)

    async def request(self, signer: Signer) -> None:
        """Submit a request through this node's own acceptor."""
        ledger = InMemoryLedger(self.bench.database, node="acceptor")
        acceptor = RequestAcceptor(
            ledger,
            KEYS,
            frozenset({CHAIN_ID}),
            hint=lambda _: None,
            requested=self.at.node.requested,
        )
        intent = Intent(Call(to=SINK, value_wei=1 + len(self.tx_ids[signer])), gas=21_000)
        self.tx_ids[signer].append((await acceptor.create(Request(signer, intent))).tx_id)

    async def turn(self, by: Walk) -> None:
        await self.at.node.renew_once()
        await self.at.node.heads_once(CHAIN_ID)
        await self.at.node.acquire_once()
        await by(self)

    def count_sends(self, after_first: Callable[[], Awaitable[None]] | None = None) -> list[int]:
        """Record the number of transactions per send; call `after_first` during the first."""
        sizes: list[int] = []
        real = self.bench.chain.send

        async def send(txs: Sequence[SignedTx]) -> Sequence[SendResult]:
            sizes.append(len(txs))
            if after_first is not None and len(sizes) == 1:
                await after_first()
            return await real(txs)

        self.bench.chain.send = send  # type: ignore[method-assign]  # counts calls
        return sizes

    def states(self) -> list[State]:
        return [self.bench.state(self.tx_ids[signer][-1]) for signer in SIGNERS]

    def outcomes(self) -> list[tuple[State, int | None, list[str]]]:
        return [
            (self.bench.state(tx_id), self.bench.tx(tx_id).nonce, self.bench.events(tx_id))
            for tx_ids in self.tx_ids.values()
            for tx_id in tx_ids
        ]


async def alone(group: SignerGroup) -> None:
    """Run a round of each lane as a set of one."""
    for lane in group.lanes:
        await run_alone(lane)


async def together(group: SignerGroup) -> None:
    """Run one round of all lanes as one set."""
    assert all(is_plain(lane) for lane in group.lanes)
    assert not await failures(group.lanes)


async def failures(lanes: Sequence[Lane]) -> dict[Signer, Exception]:
    """Run one round of the lanes as one set; return those that did not complete it."""
    outcomes = await run_round(lanes)
    return {signer: outcome for signer, outcome in outcomes.items() if isinstance(outcome, Exception)}
