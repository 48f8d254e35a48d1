"""One run: nodes, a database, a chain, callers and a person, on one loop, as a plan says. Then everything must settle.

Faults strike until the plan's end. From then on the network is fine, every node is up, blocks come, and a person
answers every PROTECT; within `SETTLE_WITHIN_S` all requests must have ended, and ended in blocks that stand.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

from fencepost.application.accept import Accept, Request
from fencepost.application.hooks import NonceContext
from fencepost.application.lane import Policy
from fencepost.application.ports import KeyPort
from fencepost.domain.ids import Address, Signer
from fencepost.domain.managed import Intent, ManagedTx
from fencepost.domain.states import LIVE, CursorState
from fencepost.domain.transaction import Call, UnsignedTx
from fencepost.errors import RequestConflict, SignerProtected
from fencepost.lab.history import effect_of
from fencepost.lab.sim import acts, failing_over
from fencepost.lab.sim.chain import Decoded, FakeChain
from fencepost.lab.sim.gate import CallCounter, SimClock
from fencepost.lab.sim.keys import SimKeys, decode
from fencepost.lab.sim.ledger import FakeDatabase, FakeLedger
from fencepost.lab.sim.loop import Process, SimLoop
from fencepost.lab.sim.plan import ANYBODY, AT_CALL, Asked, Fault, Plan
from fencepost.lab.sim.records import Records
from fencepost.lab.sim.slots import Slot
from fencepost.lab.sim.weather import Weather

CHAIN_ID = 31_337
SINK = Address("0x" + "5e" * 20)
SETTLE_WITHIN_S = 420.0
LOOK_EVERY_S = 3.0
MOST_TRIES = 60
GAS = 30_000
EMPTY_BLOCKS = 0.15
DEEPEST_FORK = 8
HELD_HERE = 0.7  # requests that come to the node that has the lane, if there is one
CALLER_GONE = (
    0.5  # callers that go away when a request is stored, so that no lane is told, when hints are lost
)


@dataclass(slots=True)
class World:
    plan: Plan
    loop: SimLoop = field(default_factory=SimLoop)
    rng: random.Random = field(init=False)
    doors: random.Random = field(init=False)  # which of them a request comes to
    clock: SimClock = field(init=False)
    database: FakeDatabase = field(init=False)
    chain: FakeChain = field(init=False)
    records: Records = field(init=False)
    signers: list[Signer] = field(init=False)
    slots: list[Slot] = field(init=False)
    keys: SimKeys = field(init=False)
    accepting: Accept = field(init=False)
    began_s: float = 0.0
    settled_in_s: float | None = None
    faults_go_on: bool = True
    lost_answers: set[int] = field(default_factory=set)  # of requests whose first acknowledgement gets lost
    weather: Weather = field(init=False)
    replicas: dict[Fault, tuple[FakeDatabase, dict[object, tuple[int, int]]]] = field(default_factory=dict)
    by_number: dict[int, UUID] = field(default_factory=dict)
    refused: int = 0  # requests that were told to come back another day
    jobs: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        plan, setup = self.plan, self.plan.setup
        self.rng = random.Random(f"world {plan.seed}")
        self.doors = random.Random(f"doors {plan.seed}")
        self.clock = SimClock(self.loop)
        self.weather = Weather(self.loop)
        self.began_s = self.loop.time()
        self.database = FakeDatabase(self.clock)
        self.chain = FakeChain(_for_the_chain, chain_id=CHAIN_ID)
        self.records = Records(self.loop, self.database, setup.required)
        addresses = [Address(f"0x{number:040x}") for number in range(0xA1, 0xA1 + setup.signers)]
        self.signers = [Signer(CHAIN_ID, address) for address in addresses]
        self.keys = keys = SimKeys(addresses)
        self.accepting = Accept(
            FakeLedger(self.database, node="door"), cast("KeyPort", keys), frozenset({CHAIN_ID}), self.hint
        )
        anybody = CallCounter([f for f in plan.faults if f.kind in AT_CALL and f.slot == ANYBODY])
        self.slots = [self._slot(number, keys, anybody) for number in range(setup.nodes)]
        self.lost_answers = {fault.size for fault in plan.faults if fault.kind == "accept_answer_lost"}

    def _slot(self, number: int, keys: SimKeys, anybody: CallCounter) -> Slot:
        setup = self.plan.setup
        at_call = [fault for fault in self.plan.faults if fault.kind in AT_CALL]
        return Slot(
            number=number,
            name="same" if setup.same_names else f"n{number}",
            setup=setup,
            policy=_policy(self.plan),
            loop=self.loop,
            rng=random.Random(f"slot {number} {self.plan.seed}"),
            counter=CallCounter([fault for fault in at_call if fault.slot == number], anybody),
            weather=self.weather,
            host=self,
            records=self.records,
            database=self.database,
            chain=self.chain,
            keys=keys,
            clock=SimClock(self.loop),
            tell_freed=self.freed,
        )

    # ---- the run

    async def play(self) -> None:
        for slot in self.slots:
            self.loop.call_later(self.rng.uniform(0.0, 1.0), slot.start)
        self.job(self._blocks())
        for asked in self.plan.requests:
            self.loop.call_later(asked.at_s, self.job, self._request(asked))
        for fault in self.plan.faults:
            if fault.kind not in AT_CALL and fault.kind != "accept_answer_lost":
                self.loop.call_later(fault.at_s, acts.strike, self, fault)
            if fault.kind == "fail_over":
                self.loop.call_later(
                    max(0.0, fault.at_s - fault.length_s), failing_over.replicate, self, fault
                )
        await asyncio.sleep(self.plan.length_s)
        self._end_faults()
        await self._settle()
        await self._close()

    def job(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.jobs.add(task)
        task.add_done_callback(self._job_done)

    def _job_done(self, task: asyncio.Task[Any]) -> None:
        self.jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def _blocks(self) -> None:
        while True:
            await asyncio.sleep(self.plan.setup.block_s * self.rng.uniform(0.6, 1.4))
            if not self.weather.has("no_blocks"):
                self.mine(empty=self.faults_go_on and self.rng.random() < EMPTY_BLOCKS)

    def mine(self, *, empty: bool = False) -> None:
        block = self.chain.mine(only=() if empty else None)
        self.records.say("chain", "block", block.header.number, len(block.tx_hashes))
        self.note_depths()

    def note_depths(self) -> None:
        """How deep each of the newest blocks has ever been."""
        headers = self.chain.newest(self.plan.setup.required + DEEPEST_FORK)
        for depth, header in enumerate(headers):
            self.records.deepest[header.hash] = max(depth, self.records.deepest.get(header.hash, 0))

    def _end_faults(self) -> None:
        self.records.say("world", "faults end")
        self.faults_go_on = False
        self.weather.end()
        self.chain.nonce_lag_blocks = 0
        self.chain.base_fee_wei = acts.BASE_FEE_WEI
        for slot in self.slots:
            slot.counter.end()
            if slot.running is not None and slot.running.process.is_paused:
                self.loop.resume(slot.running.process)
            if not slot.is_up:
                slot.start()

    async def _settle(self) -> None:
        until_s = self.loop.time() + SETTLE_WITHIN_S
        ended_s = self.loop.time()
        while self.loop.time() < until_s:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.is_quiet():
                self.settled_in_s = self.loop.time() - ended_s
                break
            await acts.person_helps(self)

    def is_quiet(self) -> bool:
        pending = len(self.by_number) + self.refused < len(self.plan.requests)
        if pending or any(tx.state in LIVE for tx in self.database.txs.values()):
            return False
        if any(asked.outcome is None for asked in self.database.asked.values()):
            return False
        if any(cursor.state is not CursorState.ACTIVE for cursor in self.database.cursors.values()):
            return False
        return all(
            tx.mined is None or self.chain.is_canonical(tx.mined.block.number, tx.mined.block.hash)
            for tx in self.database.txs.values()
        )

    async def _close(self) -> None:
        for task in list(self.jobs):
            task.cancel()
        for _ in range(200):  # they fall apart, without effect
            for slot in self.slots:
                slot.kill()  # one may have been about to start
            await asyncio.sleep(0.01)
            if all(t.done() for s in self.slots if s.running is not None for t in s.running.tasks):
                return
        self.records.violated(14, "a killed process does not end", "the whole run")

    # ---- callers

    async def _request(self, asked: Asked) -> None:
        signer = self.signers[asked.signer]
        if asked.by_handler:
            await self._request_by_handler(signer, asked.number)
            return
        intent = Intent(call=Call(to=SINK, value_wei=asked.number), gas=GAS)
        request = Request(signer, intent, request_id=f"r{asked.number}")
        for _ in range(MOST_TRIES):
            if self.weather.has("db_down") or self.weather.has("disk_full"):
                await asyncio.sleep(1.0)
                continue
            try:
                accepted = await self._door(signer).create(request)
            except SignerProtected:
                self.refused += 1
                return
            except RequestConflict:
                self.records.violated(5, f"request r{asked.number} conflicts with itself", signer)
                return
            self.records.mark_lines()
            if asked.number in self.lost_answers:
                self.lost_answers.discard(asked.number)
                self.records.struck("accept_answer_lost", "caller", asked.number)
                await asyncio.sleep(self.rng.uniform(0.1, 5.0))
                continue
            self.by_number[asked.number] = accepted.tx_id
            self.records.told(
                signer,
                f"r{asked.number}",
                accepted.tx_id,
                effect_of(to=SINK, value_wei=asked.number, data=""),
            )
            self.records.say("caller", "acknowledged", asked.number)
            return

    async def _request_by_handler(self, signer: Signer, number: int) -> None:
        """With whoever holds the signer, as an embedding program does."""
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
        self.records.may_fail.add(tx_id)
        try:
            await self.accepting.create_for_handler(signer, tx_id, running.incarnation)
        except SignerProtected:
            self.refused += 1
            return
        self.records.mark_lines()
        self.by_number[number] = tx_id
        self.records.say("caller", "handler", number)

    def _door(self, signer: Signer) -> Accept:
        """Of a node that is up, more often than not the one that has the lane: it hands over what it may."""
        up = [slot for slot in self.slots if slot.is_up]
        if not up:
            return self.accepting
        holding = [slot for slot in up if slot.running is not None and signer in slot.running.node.lanes]
        slot = self.doors.choice(holding if holding and self.doors.random() < HELD_HERE else up)
        ledger = FakeLedger(self.database, node="door", clock=slot.clock)
        keys = cast("KeyPort", self.keys)
        told = partial(self._requested, slot)
        return Accept(ledger, keys, frozenset({CHAIN_ID}), self.hint, requested=told)

    def _requested(
        self, slot: Slot, signer: Signer, arrived: Sequence[ManagedTx], behind: Collection[int]
    ) -> None:
        """Told where it was accepted; to the others, if that node does not hold the lane. A dead one tells nobody."""
        running = slot.running
        if self.weather.has("hints_lost"):  # its caller went away when it was stored
            self.records.struck("hints_lost", slot.name)
            return

        def tell() -> None:
            if running is not None and not running.node.requested(signer, arrived, behind):
                self.hint(signer)

        slot.call(tell)

    def hint(self, signer: Signer) -> None:
        if self.weather.has("hints_lost"):
            self.records.struck("hints_lost", "world")
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
        self.loop.call_later(seconds, self.loop.resume, process, context=acts.OUTSIDE)

    def kill(self, slot: int, *, start_again_in_s: float) -> None:
        self.slots[slot].kill()
        self.loop.call_later(start_again_in_s, self._start_again, slot, context=acts.OUTSIDE)

    def _start_again(self, slot: int) -> None:
        if not self.slots[slot].is_up:
            self.slots[slot].start()


def _policy(plan: Plan) -> Policy:
    setup = plan.setup
    return Policy(
        strict=setup.strict,
        max_in_flight=setup.max_in_flight,
        chain_query="off" if setup.chain_query_off else "pending",
        state_timeout_s=setup.state_timeout_s,
        resubmit_interval_s=setup.resubmit_s,
        required=setup.required,
        stale_receipt_timeout_s=setup.stale_s,
        fetch_receipt_upon_entry=setup.receipt_upon_entry,
        bump_enabled=setup.bump,
        refuse_reverting=setup.signers == 1,  # where nobody is asked about gas, lanes are swept
        bump_after_resubmits=1,
    )


def _for_the_chain(raw: bytes) -> Decoded:
    sender, tx, _ = decode(raw)
    return Decoded(sender, tx.nonce, tx.fees.tip_wei, tx.fees.fee_cap_wei)
