"""One simulated run: nodes, database, chain, callers and an operator on one loop, as planned.

Faults end with the plan. Then the network works, every node is up, blocks are mined, and the operator resolves every
PROTECT. Within `SETTLE_TIMEOUT_S` all requests must have ended, in blocks that are canonical.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

from fencepost.application.accept import Request, RequestAcceptor
from fencepost.application.hooks import NonceContext
from fencepost.application.lane import LaneSettings
from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address, Signer
from fencepost.domain.states import LIVE
from fencepost.domain.transaction import Call, UnsignedTx
from fencepost.domain.transaction_state import Intent, ManagedTx
from fencepost.errors import RequestConflict, SignerProtected
from fencepost.testing import DecodedTx, InMemoryChain, InMemoryDatabase, InMemoryLedger
from lab.checker.history import effect_of
from lab.sim import database_failover, fault_actions
from lab.sim.chain import SimChain
from lab.sim.conditions import Conditions
from lab.sim.gate import CallCounter, SimClock
from lab.sim.keys import SimKeys, decode
from lab.sim.loop import Process, SimLoop
from lab.sim.node_slot import NodeSlot
from lab.sim.plan import ANY_SLOT, AT_CALL, Fault, Plan, PlannedRequest
from lab.sim.recorder import Recorder

CHAIN_ID = 31_337
SINK = Address("0x" + "5e" * 20)
SETTLE_TIMEOUT_S = 420.0
POLL_INTERVAL_S = 3.0
MAX_TRIES = 60
GAS = 30_000
EMPTY_BLOCKS = 0.15
DEEPEST_FORK = 8
LEASE_HOLDER_SHARE = 0.7  # the share of requests that go to the lease holder
CALLER_GONE = (
    0.5  # the share of callers that disconnect when a request is stored, so that no lane is notified
)


@dataclass(slots=True)
class World:
    """All parts of a run, and the methods that drive it."""

    plan: Plan
    loop: SimLoop = field(default_factory=SimLoop)
    rng: random.Random = field(init=False)
    entry_rng: random.Random = field(init=False)  # chooses the node that a request goes to
    clock: SimClock = field(init=False)
    database: InMemoryDatabase = field(init=False)
    chain: SimChain = field(init=False)
    recorder: Recorder = field(init=False)
    signers: list[Signer] = field(init=False)
    slots: list[NodeSlot] = field(init=False)
    keys: SimKeys = field(init=False)
    accepting: RequestAcceptor = field(init=False)
    began_s: float = 0.0
    settled_in_s: float | None = None
    live_when_faults_ended: int = 0
    faults_go_on: bool = True
    lost_answers: set[int] = field(default_factory=set)  # requests whose first acknowledgement is lost
    conditions: Conditions = field(init=False)
    replicas: dict[Fault, tuple[InMemoryDatabase, dict[object, tuple[int, int]]]] = field(
        default_factory=dict
    )
    other_chains: dict[int, InMemoryChain] = field(
        default_factory=dict
    )  # by slot: the chain that an endpoint was re-pointed to
    by_number: dict[int, UUID] = field(default_factory=dict)
    refused: int = 0  # requests that were rejected for good, or lost
    jobs: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        plan, setup = self.plan, self.plan.setup
        self.rng = random.Random(f"world {plan.seed}")
        self.entry_rng = random.Random(f"doors {plan.seed}")
        self.clock = SimClock(self.loop)
        self.conditions = Conditions(self.loop)
        self.began_s = self.loop.time()
        self.database = InMemoryDatabase(self.clock)
        self.chain = SimChain(_for_the_chain, chain_id=CHAIN_ID)
        self.recorder = Recorder(self.loop, self.database, setup.required)
        addresses = [Address(f"0x{number:040x}") for number in range(0xA1, 0xA1 + setup.signers)]
        self.signers = [Signer(CHAIN_ID, address) for address in addresses]
        self.keys = keys = SimKeys(addresses)
        self.accepting = RequestAcceptor(
            InMemoryLedger(self.database, node="door"),
            cast("KeyPort", keys),
            frozenset({CHAIN_ID}),
            self.hint,
        )
        any_slot = CallCounter([f for f in plan.faults if f.kind in AT_CALL and f.slot == ANY_SLOT])
        self.slots = [self._slot(number, keys, any_slot) for number in range(setup.nodes)]
        self.lost_answers = {fault.size for fault in plan.faults if fault.kind == "accept_answer_lost"}

    def _slot(self, number: int, keys: SimKeys, any_slot: CallCounter) -> NodeSlot:
        setup = self.plan.setup
        at_call = [fault for fault in self.plan.faults if fault.kind in AT_CALL]
        return NodeSlot(
            number=number,
            name="same" if setup.same_names else f"n{number}",
            setup=setup,
            policy=_policy(self.plan),
            loop=self.loop,
            rng=random.Random(f"slot {number} {self.plan.seed}"),
            counter=CallCounter([fault for fault in at_call if fault.slot == number], any_slot),
            conditions=self.conditions,
            host=self,
            recorder=self.recorder,
            database=self.database,
            chain=self.chain,
            keys=keys,
            clock=SimClock(self.loop),
            tell_freed=self.freed,
            is_served_by_others=self._is_served_by_others,
            other_chain=partial(self.other_chains.get, number),
        )

    def _is_served_by_others(self, slot: int) -> bool:
        """Return whether another node is up and its endpoints answer, as heartbeats would show."""
        return any(
            other.number != slot and other.is_up and not self.conditions.has("rpc_dead", other.number)
            for other in self.slots
        )

    # ---- the run

    async def play(self) -> None:
        for slot in self.slots:
            self.loop.call_later(self.rng.uniform(0.0, 1.0), slot.start)
        self.job(self._blocks())
        for asked in self.plan.requests:
            self.loop.call_later(asked.at_s, self._begin_request, asked)
        for fault in self.plan.faults:
            if fault.kind not in AT_CALL and fault.kind != "accept_answer_lost":
                self.loop.call_later(fault.at_s, fault_actions.strike, self, fault)
            if fault.kind in ("fail_over", "restored"):
                self.loop.call_later(
                    max(0.0, fault.at_s - fault.length_s), database_failover.replicate, self, fault
                )
        await asyncio.sleep(self.plan.length_s)
        self._end_faults()
        await self._settle()
        await self._close()

    def job(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.jobs.add(task)
        task.add_done_callback(self._job_done)

    def _begin_request(self, asked: PlannedRequest) -> None:
        self.job(self._request(asked))

    def _job_done(self, task: asyncio.Task[Any]) -> None:
        self.jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _blocks(self) -> None:
        while True:
            await asyncio.sleep(self.plan.setup.block_s * self.rng.uniform(0.6, 1.4))
            if not self.conditions.has("no_blocks"):
                self.mine(empty=self.faults_go_on and self.rng.random() < EMPTY_BLOCKS)

    def mine(self, *, empty: bool = False) -> None:
        block = self.chain.mine(only=() if empty else None)
        self.recorder.log("chain", "block", block.header.number, len(block.tx_hashes))
        self.note_depths()

    def note_depths(self, forked: int = 0) -> None:
        """Record how deep the newest blocks are; a fork adds as many blocks as it replaced."""
        headers = self.chain.newest(self.plan.setup.required + max(forked, DEEPEST_FORK) + 1)
        for depth, header in enumerate(headers):
            self.recorder.deepest[header.hash] = max(depth, self.recorder.deepest.get(header.hash, 0))

    def _end_faults(self) -> None:
        self.recorder.log("world", "faults end")
        self.live_when_faults_ended = sum(tx.state in LIVE for tx in self.database.txs.values())
        self.faults_go_on = False
        self.conditions.end()
        self.chain.nonce_lag_blocks = 0
        self.chain.base_fee_wei = fault_actions.BASE_FEE_WEI
        for slot in self.slots:
            slot.counter.end()
            if slot.running is not None and slot.running.process.is_paused:
                self.loop.resume(slot.running.process)
            if not slot.is_up:
                slot.start()

    async def _settle(self) -> None:
        until_s = self.loop.time() + SETTLE_TIMEOUT_S
        ended_s = self.loop.time()
        while self.loop.time() < until_s:
            await asyncio.sleep(POLL_INTERVAL_S)
            if self.is_quiet():
                self.settled_in_s = self.loop.time() - ended_s
                break
            await fault_actions.act_as_operator(self)

    def is_quiet(self) -> bool:
        pending = len(self.by_number) + self.refused < len(self.plan.requests)
        if pending or any(tx.state in LIVE for tx in self.database.txs.values()):
            return False
        if any(asked.outcome is None for asked in self.database.commands.values()):
            return False
        if any(not cursor.is_open for cursor in self.database.cursors.values()):
            return False
        return all(
            tx.mined is None or self.chain.is_canonical(tx.mined.block.number, tx.mined.block.hash)
            for tx in self.database.txs.values()
        )

    async def _close(self) -> None:
        for task in list(self.jobs):
            task.cancel()
        for _ in range(200):  # lets the cancelled tasks end
            for slot in self.slots:
                slot.kill()  # one may have been about to start
            await asyncio.sleep(0.01)
            if all(t.done() for s in self.slots if s.running is not None for t in s.running.tasks):
                return
        self.recorder.add_violation(14, "a killed process does not end", "the whole run")

    # ---- callers

    async def _request(self, asked: PlannedRequest) -> None:
        signer = self.signers[asked.signer]
        if asked.by_handler:
            await self._request_by_handler(signer, asked.number)
            return
        intent = Intent(call=Call(to=SINK, value_wei=asked.number), gas=GAS)
        request = Request(signer, intent, request_id=f"r{asked.number}")
        for _ in range(MAX_TRIES):
            if self.conditions.has("db_down") or self.conditions.has("disk_full"):
                await asyncio.sleep(1.0)
                continue
            try:
                accepted = await self._acceptor_for(signer).create(request)
            except SignerProtected:
                self.refused += 1
                return
            except RequestConflict:
                self.recorder.add_violation(5, f"request r{asked.number} conflicts with itself", signer)
                return
            self.recorder.mark_lines()
            if asked.number in self.lost_answers:
                self.lost_answers.discard(asked.number)
                self.recorder.count_fault("accept_answer_lost", "caller", asked.number)
                await asyncio.sleep(self.rng.uniform(0.1, 5.0))
                continue
            self.by_number[asked.number] = accepted.tx_id
            if asked.number in self.keys.refused:
                self.recorder.may_fail.add(accepted.tx_id)
            self.recorder.acknowledge(
                signer,
                f"r{asked.number}",
                accepted.tx_id,
                effect_of(to=SINK, value_wei=asked.number, data=""),
            )
            self.recorder.log("caller", "acknowledged", asked.number)
            return

    async def _request_by_handler(self, signer: Signer, number: int) -> None:
        """Submit a request with a handler at the lease holder, as an embedding program does."""
        up = [slot.running for slot in self.slots if slot.running is not None and slot.is_up]
        holding = [running for running in up if signer in running.node.lanes] or up
        if not holding:
            self.refused += 1
            return
        running = holding[0]
        tx_id = UUID(int=self.rng.getrandbits(128))

        async def build(context: NonceContext) -> UnsignedTx:
            return UnsignedTx(
                CHAIN_ID, context.nonce, Call(to=signer.address, value_wei=number), GAS, context.fees
            )

        running.handlers[tx_id] = build
        self.recorder.may_fail.add(tx_id)
        try:
            await self.accepting.create_for_handler(signer, tx_id, running.incarnation)
        except SignerProtected:
            self.refused += 1
            return
        self.recorder.mark_lines()
        self.by_number[number] = tx_id
        self.recorder.log("caller", "handler", number)

    def _acceptor_for(self, signer: Signer) -> RequestAcceptor:
        """Return the acceptor of a node that is up, preferably the lease holder, which passes requests to its lane."""
        up = [slot for slot in self.slots if slot.is_up]
        if not up:
            return self.accepting
        holding = [slot for slot in up if slot.running is not None and signer in slot.running.node.lanes]
        slot = self.entry_rng.choice(
            holding if holding and self.entry_rng.random() < LEASE_HOLDER_SHARE else up
        )
        ledger = InMemoryLedger(self.database, node="door", clock=slot.clock)
        keys = cast("KeyPort", self.keys)
        on_requested = partial(self._requested, slot)
        return RequestAcceptor(ledger, keys, frozenset({CHAIN_ID}), self.hint, requested=on_requested)

    def _requested(
        self, slot: NodeSlot, signer: Signer, arrived: Sequence[ManagedTx], behind: Collection[int]
    ) -> None:
        """Tell the node that accepted a request, and the other nodes if it does not hold the lane."""
        running = slot.running
        if self.conditions.has("hints_lost"):  # its caller disconnected after it was stored
            self.recorder.count_fault("hints_lost", slot.name)
            return

        def tell() -> None:
            if running is not None and not running.node.requested(signer, arrived, behind):
                self.hint(signer)

        slot.call(tell)

    def hint(self, signer: Signer) -> None:
        if self.conditions.has("hints_lost"):
            self.recorder.count_fault("hints_lost", "world")
            return
        for slot in self.slots:
            if slot.running is not None:
                slot.call(slot.running.node.hint, signer)

    def freed(self, by_slot: int, signer: Signer) -> None:
        for slot in self.slots:
            if slot.number != by_slot and slot.running is not None:
                slot.call(slot.running.node.freed, signer)

    # ---- where processes run

    def pause(self, process: Process, seconds: float) -> None:
        process.is_paused = True
        self.loop.call_later(seconds, self.loop.resume, process, context=fault_actions.NO_PROCESS)

    def kill(self, slot: int, *, start_again_in_s: float) -> None:
        self.slots[slot].kill()
        self.loop.call_later(start_again_in_s, self._start_again, slot, context=fault_actions.NO_PROCESS)

    def _start_again(self, slot: int) -> None:
        if not self.slots[slot].is_up:
            self.slots[slot].start()


def _policy(plan: Plan) -> LaneSettings:
    setup = plan.setup
    return LaneSettings(
        strict=setup.strict,
        max_in_flight=setup.max_in_flight,
        chain_query="off" if setup.chain_query_off else "pending",
        state_timeout_s=setup.state_timeout_s,
        resubmit_interval_s=setup.resubmit_s,
        resubmit_max_attempts=setup.resubmit_limit,
        required=setup.required,
        stale_receipt_timeout_s=setup.stale_s,
        fetch_receipt_upon_entry=setup.receipt_upon_entry,
        bump_enabled=setup.bump,
        refuse_reverting=setup.signers == 1,  # lanes that estimate no gas are stepped in batches
        bump_after_resubmits=1,
    )


def _for_the_chain(raw: bytes) -> DecodedTx:
    sender, tx, _ = decode(raw)
    return DecodedTx(sender, tx.nonce, tx.fees.tip_wei, tx.fees.fee_cap_wei, tx.call)
