"""Slots in which simulated processes run a real node on simulated ports.

A killed process has no effect any more: its gate rejects its calls, and its tasks are cancelled. A new process in the same
slot has the same name and keys, and a new incarnation.
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

from fencepost.application.admission import Sample
from fencepost.application.block_receipts import BlockReceipts
from fencepost.application.chain_view import ChainView
from fencepost.application.hooks import Handler, StuckDecision
from fencepost.application.lane import Lane, LaneSettings
from fencepost.application.lane_parts import LanePorts
from fencepost.application.ports import Chain, Header, KeyPort, Ledger
from fencepost.domain.ids import Signer
from fencepost.domain.lease import Term
from fencepost.domain.states import LIVE, State
from fencepost.domain.transaction_state import ManagedTx
from fencepost.errors import RpcError
from fencepost.runtime.node import LoopIntervals, Node
from fencepost.runtime.routing import ALONE, Router
from fencepost.tasks.service_loop import FailureLog, run_service_loop
from fencepost.testing import InMemoryChain, InMemoryDatabase, InMemoryLedger
from lab.sim.conditions import Conditions
from lab.sim.gate import CallCounter, Gate, Host, SimClock
from lab.sim.keys import SimKeys, decode
from lab.sim.loop import PROCESS, Process, SimLoop
from lab.sim.plan import HOOK_FLAVOURS, SKEW_S, TTL_S, Setup
from lab.sim.ports import ChainPort, KeysPort, LedgerPort, TermChain
from lab.sim.recorder import Recorder

HEAD_POLL_S = 2.0
SAMPLE_INTERVAL_S = 4.0
INTERVALS = LoopIntervals(
    acquire_interval_s=2.0, renew_interval_s=TTL_S / 4, skew_allowance_s=SKEW_S, handover_budget_s=1.0
)


class _Observer:
    """Record what the node notes, without real-time measurements."""

    _LEFT_OUT = frozenset({"waited", "wrote", "renew", "acquire", "receipts", "moved"})

    def __init__(self, process: Process, recorder: Recorder) -> None:
        self._process = process
        self._records = recorder

    def note(self, event: str, /, **fields: object) -> None:
        if event in self._LEFT_OUT or self._process.is_dead:
            return
        signer = fields.get("signer")
        about = (str(signer)[-4:], fields.get("token", "")) if isinstance(signer, Signer) else ()
        self._records.log(self._process.name, f"- {event}", *about)
        self._records.noted(event, fields)


@dataclass(slots=True)
class _SimRouter(Router):
    """A router that learns from the world whether another node serves the chain."""

    others_serve_chain: Callable[[], bool] = lambda: False

    def is_served_by_others(self, _chain_id: int) -> bool:
        return self.others_serve_chain()


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
class NodeSlot:
    """A place for one process at a time, with its name, keys, clock and planned faults."""

    number: int
    name: str
    setup: Setup
    policy: LaneSettings
    loop: SimLoop
    rng: random.Random
    counter: CallCounter
    conditions: Conditions
    host: Host
    recorder: Recorder
    database: InMemoryDatabase
    chain: InMemoryChain
    keys: SimKeys
    clock: SimClock
    tell_freed: Callable[[int, Signer], None]
    is_served_by_others: Callable[[int], bool]  # another node can read the chain
    other_chain: Callable[[], InMemoryChain | None]  # what an endpoint of this node was re-pointed to
    running: Running | None = None
    started: int = 0

    @property
    def is_up(self) -> bool:
        return self.running is not None and not self.running.process.is_dead

    def start(self) -> None:
        self.started += 1
        process = Process(f"n{self.number}.{self.started}")
        context = copy_context()
        context.run(PROCESS.set, process)
        self.running = context.run(self._boot, process, context)
        self.recorder.log(process.name, "starts")

    def _boot(self, process: Process, context: Context) -> Running:
        incarnation = UUID(int=self.rng.getrandbits(128))
        gate = Gate(
            process, self.number, self.loop, self.rng, self.counter, self.conditions, self.host, self.recorder
        )
        inner = InMemoryLedger(
            self.database,
            node=self.name,
            incarnation=incarnation,
            lease_duration_s=TTL_S,
            skew_allowance_s=SKEW_S,
            clock=self.clock,
        )
        port = LedgerPort(gate, inner, self.clock, incarnation)
        chain = ChainPort(gate, self.chain, self.other_chain)
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
        node.lease_releaser.announce_freed = partial(self._freed, gate)
        running = Running(process, context, node, handlers)
        for main in (
            node.run(),
            run_service_loop(partial(self._sample, port, node), failure_log=FailureLog("sampling")),
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
        observer = _Observer(process, self.recorder)
        watch = ChainView(
            cast("Chain", chain), receipts=BlockReceipts(min_own_txs=2)
        )  # blocks are small here

        def make_lane(term: Term) -> Lane:
            return Lane(
                term=term,
                settings=self.policy,
                ports=LanePorts(
                    ledger=ledger,
                    chain=cast("Chain", TermChain(chain, term.token)),
                    chain_view=watch,
                    keys=cast("KeyPort", keys),
                    clock=self.clock,
                    observer=observer,
                    stuck_hook=self._decide,
                    handlers=handlers,
                    decode=decode,
                ),
            )

        return Node(
            name=self.name,
            incarnation=incarnation,
            ledger=ledger,
            clock=self.clock,
            observer=observer,
            chain_views={chain.chain_id: watch},
            heads={chain.chain_id: partial(_heads, chain, watch)},
            addresses=frozenset(self.keys.addresses()),
            intervals=LoopIntervals(
                acquire_interval_s=INTERVALS.acquire_interval_s,
                renew_interval_s=INTERVALS.renew_interval_s,
                idle_release_s=self.setup.idle_release_s,
                skew_allowance_s=INTERVALS.skew_allowance_s,
                handover_budget_s=INTERVALS.handover_budget_s,
            ),
            make_lane=make_lane,
            workers=2,
            router=_SimRouter(ALONE, others_serve_chain=partial(self.is_served_by_others, self.number)),
        )

    async def _decide(self, tx: ManagedTx) -> StuckDecision:
        """Act as the stuck hook: resubmit, unless the hook is planned to misbehave."""
        how = self.conditions.strength("stuck_hook", self.number)
        if not how:
            return "resubmit"
        flavour = HOOK_FLAVOURS[how - 1]
        self.recorder.count_fault("stuck_hook", self.name, flavour)
        match flavour:
            case "raises":
                raise ValueError("a hook that raises")
            case "hangs":
                await asyncio.Event().wait()
            case "odd":
                return cast("StuckDecision", None)
            case "filler":
                self.recorder.may_fail.add(tx.tx_id)
            case _:
                pass
        return cast("StuckDecision", flavour)

    async def _sample(self, port: LedgerPort, node: Node) -> float:
        async def count() -> Sample:
            counts: dict[State, dict[Signer, int]] = {}
            for tx in self.database.txs.values():
                if tx.state in LIVE:
                    of_state = counts.setdefault(tx.state, {})
                    of_state[tx.signer] = of_state.get(tx.signer, 0) + 1
            asked = {asked.signer for asked in self.database.commands.values() if asked.outcome is None}
            return Sample(counts, frozenset(asked))

        node.apply_sample(await port.call("sample", count))
        return SAMPLE_INTERVAL_S

    async def _freed(self, gate: Gate, signers: Any) -> None:
        for signer in signers:
            self.tell_freed(gate.slot, signer)

    # ---- called from outside the process

    def call(self, what: Callable[..., object], *args: object) -> None:
        """Call a function inside the process, as soon as the process runs."""
        if self.running is not None and self.is_up:
            self.loop.call_soon(what, *args, context=self.running.context)

    def kill(self) -> None:
        if self.running is None or not self.is_up:
            return
        process = self.running.process
        process.is_dead = True
        self.recorder.log(process.name, "is gone")
        for task in self.running.tasks:
            task.cancel()
        self.loop.resume(process)  # lets its cancelled tasks end

    async def stop(self, *, within_s: float) -> None:
        """Stop the process gracefully; kill it at the time-out."""
        if self.running is None or not self.is_up:
            return
        running = self.running
        self.recorder.log(running.process.name, "stops")
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                self.loop.create_task(running.node.stop(), context=running.context)
                await asyncio.shield(running.tasks[0])
        if self.running is running:
            self.kill()


async def _heads(chain: ChainPort, watch: ChainView) -> AsyncGenerator[Header, None]:
    """Yield new heads at a slow pace; the real feed polls quickly after a send, which would dominate the run time."""
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
