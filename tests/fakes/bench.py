"""A test bench: fakes at the ports, the real node, lanes and use cases between them; each turn is taken by hand.

`Bench` has one signer, one chain, one database and one clock; `bench.node()` adds a node. A node's `turn` renews its lease, reads
the head, acquires and steps its lane once, in that order, and raises what the step raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest

from fakes.clock import FakeClock
from fakes.observer import FakeObserver
from fakes.rounds import run_alone
from fencepost.adapters.evm.encoding import decode_signed
from fencepost.adapters.signers.local import LocalKeys
from fencepost.application.accept import Request, RequestAcceptor
from fencepost.application.chain_view import ChainView
from fencepost.application.fee_sources import FeeSources
from fencepost.application.hooks import Handler, StuckDecision, StuckHook
from fencepost.application.lane import Lane, LaneSettings
from fencepost.application.lane_parts import LanePorts
from fencepost.application.nonce_sync import CHECK_INTERVAL_S
from fencepost.application.ports import Chain, KeyPort, LaneWrite, Ledger, Written
from fencepost.application.spending_policy import SpendingGuard
from fencepost.domain.ids import Address, Signer, TxHash
from fencepost.domain.lease import Term
from fencepost.domain.states import State
from fencepost.domain.transaction import Call, UnsignedTx
from fencepost.domain.transaction_state import Intent, ManagedTx
from fencepost.runtime.node import LoopIntervals, Node
from fencepost.testing import DecodedTx, InMemoryChain, InMemoryDatabase, InMemoryLedger

CHAIN_ID = 31_337
GWEI = 10**9
SINK = Address("0x" + "5e" * 20)
REVERTER = Address("0x" + "bd" * 20)
_KEY = "0x" + "01" * 32
MAX_TURNS = 60

# One confirmation; pipelined unless a test says otherwise.
# No deferred writes: the result of a step is in the ledger when the step ends.
QUICK = LaneSettings(strict=False, required=1, record_within_s=0.0)
STRICT = LaneSettings(strict=True, required=1, record_within_s=0.0)


def decode(raw: bytes) -> tuple[Address, UnsignedTx, TxHash]:
    decoded = decode_signed(raw)
    return decoded.sender, decoded.tx, decoded.hash


def _for_the_chain(raw: bytes) -> DecodedTx:
    sender, tx, _ = decode(raw)
    return DecodedTx(sender, tx.nonce, tx.fees.tip_wei, tx.fees.fee_cap_wei, tx.call)


@dataclass(slots=True)
class BenchNode:
    bench: Bench
    node: Node
    handlers: dict[UUID, Handler]
    observer: FakeObserver
    incarnation: UUID

    @property
    def lane(self) -> Lane:
        lane = self.node.lanes.get(self.bench.signer)
        assert lane is not None, "this node does not hold the signer"
        return lane

    async def turn(self, turns: int = 1) -> float | None:
        """Take turns and return the delay that the last step asked for."""
        again_s: float | None = None
        for _ in range(turns):
            await self.node.renew_once()
            await self.node.heads_once(CHAIN_ID)
            self.node.hint(self.bench.signer)
            await self.node.acquire_once()
            again_s = await run_alone(self.lane)
        return again_s

    async def turn_for(self, seconds: float, *, every_s: float = CHECK_INTERVAL_S) -> float | None:
        """Take turns while the clock advances; return the delay that the last step asked for."""
        again_s: float | None = None
        for _ in range(round(seconds / every_s)):
            self.bench.clock.advance(every_s)
            again_s = await self.turn()
        return again_s

    async def ended(self, count: int) -> list[UUID]:
        """Submit `count` requests and have them confirmed two blocks later."""
        tx_ids = await self.bench.requests(count)
        await self.turn()
        self.bench.chain.mine(2)
        await self.turn(2)
        assert {self.bench.state(tx_id) for tx_id in tx_ids} == {State.CONFIRMED}
        return tx_ids

    async def release(self) -> None:
        term = self.lane.term
        self.node.lanes.drop(self.bench.signer)
        await self.node.ledger.release([term])


@dataclass(slots=True)
class Bench:
    clock: FakeClock = field(default_factory=FakeClock)
    database: InMemoryDatabase = field(init=False)
    chain: InMemoryChain = field(init=False)
    keys: LocalKeys = field(init=False)
    signer: Signer = field(init=False)
    accepting: RequestAcceptor = field(init=False)
    stuck: StuckDecision = "mark"
    stuck_hook: StuckHook | None = None  # overrides `stuck`
    spending: SpendingGuard | None = None  # for lanes created from now on
    fees: FeeSources | None = None  # likewise

    def __post_init__(self) -> None:
        self.database = InMemoryDatabase(self.clock)
        self.chain = InMemoryChain(_for_the_chain, chain_id=CHAIN_ID)
        self.keys = LocalKeys.from_hex([_KEY])
        self.signer = Signer(CHAIN_ID, self.keys.addresses()[0])
        self.accepting = RequestAcceptor(
            InMemoryLedger(self.database, node="acceptor"), self.keys, frozenset({CHAIN_ID}), lambda _: None
        )

    def node(
        self,
        policy: LaneSettings = QUICK,
        *,
        name: str = "node",
        ledger: Ledger | None = None,
        chain: Chain | None = None,
        keys: KeyPort | None = None,
    ) -> BenchNode:
        incarnation = uuid4()
        used_chain = chain or self.chain
        used_ledger = ledger or InMemoryLedger(self.database, node=name, incarnation=incarnation)
        tag = None if isinstance(policy.required, int) else policy.required
        watch = ChainView(used_chain, settled_tag=tag)
        handlers: dict[UUID, Handler] = {}
        observer = FakeObserver()

        async def decide(_tx: ManagedTx) -> StuckDecision:
            return self.stuck if self.stuck_hook is None else await self.stuck_hook(_tx)

        def make_lane(term: Term) -> Lane:
            return Lane(
                term=term,
                settings=policy,
                ports=LanePorts(
                    ledger=used_ledger,
                    chain=used_chain,
                    chain_view=watch,
                    keys=keys or self.keys,
                    clock=self.clock,
                    observer=observer,
                    stuck_hook=decide,
                    handlers=handlers,
                    decode=decode,
                    incarnation=incarnation,
                    spending=self.spending,
                    fees=self.fees,
                ),
            )

        node = Node(
            name=name,
            incarnation=incarnation,
            ledger=used_ledger,
            clock=self.clock,
            observer=observer,
            chain_views={CHAIN_ID: watch},
            heads={},  # no feed: `turn` reads the head
            addresses=frozenset(self.keys.addresses()),
            intervals=LoopIntervals(),
            make_lane=make_lane,
            workers=1,
        )
        return BenchNode(self, node, handlers, observer, incarnation)

    # ---- callers and operators

    async def request(
        self, intent: Intent | None = None, *, request_id: str | None = None, valid_for_s: float | None = None
    ) -> UUID:
        asked = Request(self.signer, intent or transfer(), request_id, valid_for_s)
        return (await self.accepting.create(asked)).tx_id

    async def requests(self, count: int) -> list[UUID]:
        return [await self.request(transfer(value_wei=i)) for i in range(count)]

    async def with_nonce(self, at: BenchNode, handler: Handler) -> UUID:
        tx_id = uuid4()
        at.handlers[tx_id] = handler
        await self.accepting.create_for_handler(self.signer, tx_id, at.incarnation)
        return tx_id

    async def ask(
        self, command: str, tx_id: UUID | None = None, *, reason: str | None = None, **detail: Any
    ) -> int:
        return await self.accepting.ledger.add_command(
            self.signer, command, tx_id=tx_id, author="eve", reason=reason, detail=detail
        )

    # ---- observation

    def tx(self, tx_id: UUID) -> ManagedTx:
        return self.database.txs[tx_id]

    def state(self, tx_id: UUID) -> State:
        return self.database.txs[tx_id].state

    def events(self, tx_id: UUID | None = None) -> list[str]:
        return [row.event for row in self.database.journal_of(tx_id)]

    def sent_nonces(self) -> list[int]:
        return [decode(signed.raw)[1].nonce for signed in self.chain.sent]


def transfer(*, value_wei: int = 1, to: Address = SINK) -> Intent:
    return Intent(call=Call(to=to, value_wei=value_wei))


def watched_writes(monkeypatch: pytest.MonkeyPatch) -> list[LaneWrite]:
    """Record everything that lanes write from now on, in order."""
    made: list[LaneWrite] = []
    honest = InMemoryLedger.commit

    async def commit(ledger: InMemoryLedger, write: LaneWrite) -> Written:
        made.append(write)
        return await honest(ledger, write)

    monkeypatch.setattr(InMemoryLedger, "commit", commit)
    return made
