"""Slots: places where a node runs. Processes come and go there; each is the real node on simulated ports.

A killed process never acts again: its ports refuse it, and its tasks are cancelled so that nothing of it stays in
memory. A new process in the same slot has the same name, the same keys, and another incarnation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

from fencepost.application.block_receipts import BlockReceipts
from fencepost.application.heads import ChainWatch
from fencepost.application.hooks import Handler, StuckDecision
from fencepost.application.intake import Sample
from fencepost.application.lane import Lane, Policy
from fencepost.application.ports import Chain, Header, KeyPort, Ledger
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term
from fencepost.domain.managed import ManagedTx
from fencepost.domain.states import LIVE, State
from fencepost.errors import RpcError
from fencepost.lab.sim.chain import FakeChain
from fencepost.lab.sim.gate import CallCounter, Gate, Host, SimClock
from fencepost.lab.sim.keys import SimKeys, decode
from fencepost.lab.sim.ledger import FakeDatabase, FakeLedger
from fencepost.lab.sim.loop import PROCESS, Process, SimLoop
from fencepost.lab.sim.plan import SKEW_S, TTL_S, Setup
from fencepost.lab.sim.ports import ChainPort, KeysPort, LedgerPort, TermChain
from fencepost.lab.sim.records import Records
from fencepost.lab.sim.weather import Weather
from fencepost.runtime.looping import Trouble, keep_turning
from fencepost.runtime.node import Node, Pace

HEAD_POLL_S = 2.0
SAMPLE_EVERY_S = 4.0
PACE = Pace(seek_s=2.0, renew_s=TTL_S / 4, skew_allowance_s=SKEW_S, handover_budget_s=1.0)


class _Observer:
    """Trace and records hear what the node notes; real time is left out."""

    _LEFT_OUT = frozenset({"waited", "wrote", "renew", "acquire", "receipts", "moved"})

    def __init__(self, process: Process, records: Records) -> None:
        self._process = process
        self._records = records

    def note(self, event: str, /, **fields: object) -> None:
        if event in self._LEFT_OUT or self._process.is_gone:
            return
        signer = fields.get("signer")
        about = (str(signer)[-4:], fields.get("token", "")) if isinstance(signer, Signer) else ()
        self._records.say(self._process.name, f"- {event}", *about)
        self._records.noted(event, fields)


@dataclass(slots=True)
class Running:
    """One process with its node."""

    process: Process
    context: Context
    node: Node
    handlers: dict[UUID, Handler]
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def incarnation(self) -> UUID:
        return self.node.incarnation


@dataclass(slots=True)
class Slot:
    number: int
    name: str
    setup: Setup
    policy: Policy
    loop: SimLoop
    rng: random.Random
    counter: CallCounter
    weather: Weather
    host: Host
    records: Records
    database: FakeDatabase
    chain: FakeChain
    keys: SimKeys
    clock: SimClock
    tell_freed: Callable[[int, Signer], None]
    running: Running | None = None
    started: int = 0

    @property
    def is_up(self) -> bool:
        return self.running is not None and not self.running.process.is_gone

    def start(self) -> None:
        self.started += 1
        process = Process(f"n{self.number}.{self.started}")
        context = copy_context()
        context.run(PROCESS.set, process)
        self.running = context.run(self._boot, process, context)
        self.records.say(process.name, "starts")

    def _boot(self, process: Process, context: Context) -> Running:
        incarnation = UUID(int=self.rng.getrandbits(128))
        gate = Gate(
            process, self.number, self.loop, self.rng, self.counter, self.weather, self.host, self.records
        )
        inner = FakeLedger(
            self.database,
            node=self.name,
            incarnation=incarnation,
            lease_duration_s=TTL_S,
            skew_allowance_s=SKEW_S,
            clock=self.clock,
        )
        port = LedgerPort(gate, inner, self.clock, incarnation)
        chain = ChainPort(gate, self.chain)
        handlers: dict[UUID, Handler] = {}
        node = self._node(
            process=process,
            incarnation=incarnation,
            port=port,
            chain=chain,
            keys=KeysPort(gate, self.keys),
            handlers=handlers,
        )
        port.on_history_changed = partial(node.history_changed, "before", "after")
        node.letting_go.tell_freed = partial(self._freed, gate)
        running = Running(process, context, node, handlers)
        for main in (
            node.run(),
            keep_turning(partial(self._sample, port, node), trouble=Trouble("sampling")),
        ):
            running.tasks.append(self.loop.create_task(main, context=context))
        return running

    def _node(
        self,
        *,
        process: Process,
        incarnation: UUID,
        port: LedgerPort,
        chain: ChainPort,
        keys: KeysPort,
        handlers: dict[UUID, Handler],
    ) -> Node:
        ledger = cast("Ledger", port)
        observer = _Observer(process, self.records)
        watch = ChainWatch(
            cast("Chain", chain), receipts=BlockReceipts(least_ours=2)
        )  # blocks are small here

        def make_lane(term: Term) -> Lane:
            return Lane(
                term=term,
                policy=self.policy,
                ledger=ledger,
                chain=cast("Chain", TermChain(chain, term.token)),
                watch=watch,
                keys=cast("KeyPort", keys),
                clock=self.clock,
                observer=observer,
                stuck_hook=_mark,
                handlers=handlers,
                decode=decode,
            )

        return Node(
            name=self.name,
            incarnation=incarnation,
            ledger=ledger,
            clock=self.clock,
            observer=observer,
            watches={chain.chain_id: watch},
            heads={chain.chain_id: partial(_heads, chain, watch)},
            addresses=frozenset(self.keys.addresses()),
            pace=Pace(
                seek_s=PACE.seek_s,
                renew_s=PACE.renew_s,
                idle_release_s=self.setup.idle_release_s,
                skew_allowance_s=PACE.skew_allowance_s,
                handover_budget_s=PACE.handover_budget_s,
            ),
            make_lane=make_lane,
            workers=2,
        )

    async def _sample(self, port: LedgerPort, node: Node) -> float:
        async def count() -> Sample:
            counts: dict[State, dict[Signer, int]] = {}
            for tx in self.database.txs.values():
                if tx.state in LIVE:
                    of_state = counts.setdefault(tx.state, {})
                    of_state[tx.signer] = of_state.get(tx.signer, 0) + 1
            asked = {asked.signer for asked in self.database.asked.values() if asked.outcome is None}
            return Sample(counts, frozenset(asked))

        node.told(await port.call("sample", count))
        return SAMPLE_EVERY_S

    async def _freed(self, gate: Gate, signers: Any) -> None:
        for signer in signers:
            self.tell_freed(gate.slot, signer)

    # ---- from outside

    def call(self, what: Callable[..., object], *args: object) -> None:
        """Inside the process, as soon as it runs."""
        if self.running is not None and self.is_up:
            self.loop.call_soon(what, *args, context=self.running.context)

    def kill(self) -> None:
        if self.running is None or not self.is_up:
            return
        process = self.running.process
        process.is_gone = True
        self.records.say(process.name, "is gone")
        for task in self.running.tasks:
            task.cancel()
        self.loop.resume(process)  # only so that it can fall apart

    async def stop(self, *, within_s: float) -> None:
        """Gracefully; what does not end in time is killed."""
        if self.running is None or not self.is_up:
            return
        running = self.running
        self.records.say(running.process.name, "stops")
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                self.loop.create_task(running.node.stop(), context=running.context)
                await asyncio.shield(running.tasks[0])
        if self.running is running:
            self.kill()


async def _heads(chain: ChainPort, watch: ChainWatch) -> AsyncGenerator[Header, None]:
    """The head now and then; the real feed's quick looks after a send would be most of a run's work."""
    last: Header | None = None
    while True:
        with suppress(RpcError):
            head: Header = await chain.head()  # type: ignore[attr-defined]  # set by name, see ChainPort
            if last is None or head.hash != last.hash:
                last = head
                yield head
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAD_POLL_S):
                await watch.block_expected.wait()
                await asyncio.sleep(HEAD_POLL_S / 3)
        watch.block_expected.clear()


async def _mark(_tx: ManagedTx) -> StuckDecision:
    return "mark"
